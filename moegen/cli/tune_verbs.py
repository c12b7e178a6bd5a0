"""``moegen tune``: measures a built package on this machine and freezes the winners."""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moegen.cli.console import Lane, duration, progress, show_json, show_line, show_note, show_table, size
from moegen.cli.db import open_database
from moegen.cli.options import (
    GENERATED,
    AsJson,
    Database,
    Generated,
    OneTarget,
    PackageOrSpec,
    Routings,
    Threads,
    Tokens,
)
from moegen.core.enums import Target
from moegen.core.errors import TuneError
from moegen.tune.policy import Cache, Effort

if TYPE_CHECKING:
    from moegen.store.tables import Table
    from moegen.tune.policy import MeasurePolicy
    from moegen.tune.session import SessionReport, Step
    from moegen.tune.worker import Worker

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def tune(
    package: PackageOrSpec,
    target: OneTarget = Target.CPU,
    tokens: Tokens = None,
    routing: Routings = None,
    effort: Annotated[
        Effort, typer.Option(help="quick: smoke tests, demos; full: tables that are kept.")
    ] = Effort.FULL,
    cache: Annotated[Cache, typer.Option(help="State of the last-level cache before each call.")] = Cache.COLD,
    budget: Annotated[
        str | None, typer.Option(help="Begin no new point after this time, such as 90s, 10m or 2h.", show_default=False)
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure points that an earlier session finished.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the estimate and stop.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds after which a candidate counts as hanging.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    threads: Threads = 0,
    database: Database = None,
    generated: Generated = GENERATED,
    as_json: AsJson = False,
) -> None:
    """Measure pipelines on this machine, confirm winners against the default, and write the table that serving loads.

    Ctrl-C keeps every finished point; the same command goes on from there.
    """
    from moegen.cli.packages import load_package
    from moegen.tune.freeze import freeze_tables, policy_content
    from moegen.tune.planning import tune_points
    from moegen.tune.policy import SelectPolicy, Stage, measure_policy
    from moegen.tune.rig import open_book
    from moegen.tune.session import Ending, TuneSession
    from moegen.tune.tables import write_tables

    budget_s = None if budget is None else parse_duration(budget)
    directory, manifest = load_package(package, generated)
    policy = measure_policy(target, effort, cache)
    points = tune_points(manifest, tokens or (), routing or ())
    open_book(directory, target).built()
    with (
        open_database(database) as db,
        start_worker(directory, target, policy, timeout, threads) as worker,
        ExitStack() as st,
    ):
        session = TuneSession(
            manifest,
            target,
            worker,
            db,
            policy,
            seed=seed,
            budget_s=budget_s,
            command=f"moegen tune {manifest.name} --target {target.value}",
            effort=effort.value,
            again=again,
            progress=_Bars(st),
        )
        estimate = session.estimate(points)
        text = f"{estimate.points} points to explore, about {estimate.calls} calls, {duration(estimate.seconds)}"
        show_note(f"{manifest.name} on {session.environment.device}: {text}, {size(estimate.disk_bytes)} of trials")
        if dry_run:
            show_json(estimate) if as_json else show_line("dry run: nothing was measured")
            return
        report = session.run(points)
        offer = manifest.offer_digest(target)
        results, pins = db.results(package=offer, target=target.value), db.pins(offer, target.value)
    if report.ending is Ending.INTERRUPTED:
        show_note(f"interrupted after {report.explored} points; the same command goes on from there")
        raise typer.Exit(130)
    tables = freeze_tables(results, manifest, target, SelectPolicy(), pins)
    paths = write_tables(tables, None)
    if any(table.policy != policy_content(policy.record(Stage.FINAL)) for table in tables):
        show_note("the table keeps measurements under another policy, which cover more points than these")
    _show(report, tables, paths, manifest.offer_digest(target), as_json)


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``10m`` or ``2h``.

    Raises:
        TuneError: none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise TuneError(f"{text!r} is no duration", "--budget", "write 90s, 10m or 2h")
    return float(match[1]) * _UNITS[match[2]]


class _Bars:
    """One lane a phase of the session."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._lanes: dict[str, Lane] = {}
        self._done: dict[str, int] = {}

    def __call__(self, step: "Step") -> None:
        """Moves the lane of the step's phase on."""
        if step.phase not in self._lanes:
            self._lanes[step.phase] = self._stack.enter_context(progress(step.phase, step.total))
        lane = self._lanes[step.phase]
        if step.done > self._done.get(step.phase, 0):
            self._done[step.phase] = step.done
            lane.advance(step.detail)
        else:
            lane.note(step.detail)


def start_worker(directory: Path, target: Target, policy: "MeasurePolicy", timeout: float, threads: int) -> "Worker":
    """The process in which a package's pipelines run; ``timeout`` in seconds is for one request."""
    from moegen.tune.layer_subject import FACTORY
    from moegen.tune.worker import Worker

    options = {
        "package_dir": str(directory.resolve()),
        "target": target.value,
        "timer": policy.timer.value,
        "cache": policy.cache.value,
        "threads": threads,
    }
    return Worker(FACTORY, options, timeout_s=timeout)


def _show(report: "SessionReport", tables: "list[Table]", paths: list[Path], offer: str, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "package": offer,
                "session": {**vars(report), "ending": report.ending.value},
                "tables": [
                    {"path": str(path), "digest": table.digest} for path, table in zip(paths, tables, strict=True)
                ],
            }
        )
        return
    for name, reason in report.excluded.items():
        show_note(f"excluded: {name}: {reason}")
    for table, path in zip(tables, paths, strict=True):
        rows = []
        for point in table.points:
            times = {candidate.pipeline: candidate.median_us for candidate in point.candidates}
            rows.append((point.tokens, point.routing, point.winner, times[point.winner], len(times)))
        show_table(
            ("tokens", "routing", "winner", "median µs", "compared"), rows, f"table {table.digest[:16]} in {path}"
        )
    show_line(
        f"{report.explored} points explored, {report.skipped} known before, {report.duels} duels, "
        f"{report.trials} trials in {duration(report.seconds)}; ended: {report.ending.value}"
    )
