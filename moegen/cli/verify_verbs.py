"""``moegen verify``: built pipelines against the reference, and what that does and does not prove."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moegen.cli.console import Lane, duration, progress, show_json, show_note, show_table
from moegen.cli.options import GENERATED, AsJson, Generated, OneTarget, PackageOrSpec
from moegen.core.enums import Target
from moegen.core.errors import MoegenError

if TYPE_CHECKING:
    from moegen.core.runner import Runner
    from moegen.runtime.kernels import KernelBook
    from moegen.tune.verify import PipelineCheck

INTERPRETED_TOKENS = (1, 3)
"""Batches of an interpreted run, which takes seconds to minutes for each: one token, and a multiple of no tile."""
LONG_S = 120.0
"""Interpreted runs that will take longer say so, and how to ask for less."""


def verify(
    package: PackageOrSpec,
    target: OneTarget = Target.CPU,
    tokens: Annotated[
        list[int] | None,
        typer.Option("--tokens", help="Batch; may be repeated. Default: 1 and 33; interpreted: 1 and 3."),
    ] = None,
    pipeline: Annotated[
        list[str] | None, typer.Option("--pipeline", help="Pipeline; may be repeated. Default: all that are built.")
    ] = None,
    generated: Generated = GENERATED,
    as_json: AsJson = False,
) -> None:
    """Run built pipelines: bit for bit on exact sums, within the float gates, and on stale memory.

    A GPU target that this machine does not have is interpreted: its PTX runs on the CPU, with the race detector. The
    last table says what that proves and what only hardware can. The exit code is 1 when any of it fails.
    """
    from moegen.cli.machines import runner_here
    from moegen.cli.packages import load_package
    from moegen.tune.rig import open_book
    from moegen.tune.verify import TOKENS, batches_of_pipeline, verify_pipelines

    directory, manifest = load_package(package, generated)
    runner, interpreted = runner_here(target)
    book = open_book(directory, target, runner)
    names = _chosen(book, pipeline)
    counts = tuple(tokens or (INTERPRETED_TOKENS if interpreted else TOKENS))
    if min(counts) < 1:
        raise MoegenError(f"--tokens {min(counts)}", "", "give batches of at least one token")
    total = len(names) * batches_of_pipeline(counts)
    with progress("verify", total) as lane:
        step = _Steps(lane, total if interpreted else 0)
        found = list(verify_pipelines(book, tokens=counts, pipelines=names, batch_done=step))
    title = f"{manifest.name} on {book.runner.facts.name}, T = {', '.join(map(str, counts))}"
    rows, summary = [_row(check) for check in found], proven(found, runner if interpreted else None)
    if as_json:
        show_json(
            {"pipelines": rows, "proven": [dict(zip(("what", "by", "result"), row, strict=True)) for row in summary]}
        )
    else:
        show_table(tuple(rows[0]), [tuple(row.values()) for row in rows], title)
        label = "compiled and interpreted, not run on hardware" if interpreted else f"run on {book.runner.facts.name}"
        show_table(("what", "shown by", "result"), summary, label)
    if not all(check.passed for check in found):
        raise typer.Exit(1)


def proven(found: "Sequence[PipelineCheck]", interpreter: "Runner | None") -> list[tuple[str, str, str]]:
    """(what, shown by, result) of everything that a run can and cannot show; ``interpreter`` is None on hardware."""
    from moegen.cli.machines import ONLY_HARDWARE

    ordered = [check for check in found if check.exact is not None]
    by = "interpreter" if interpreter else "this machine"
    rows = [
        ("bytes equal the reference on exact sums", by, _count(bool(check.exact) for check in ordered)),
        ("float gates on realistic data", by, _count(check.gate.passed for check in found)),
        ("stale memory does not show", by, _count(check.poison for check in found)),
    ]
    if interpreter is not None:
        results = getattr(interpreter, "results", [])
        reports = [str(report) for result in results for report in result.reports]
        instructions = sum(result.stats.instructions for result in results)
        what = "no races, missing fences, wrong barriers, bad accesses, deadlocks"
        shown = f"{len(reports)} findings in {len(results)} launches, {instructions:,} warp-instructions, one schedule"
        rows.append((what, by, shown + "".join(f"; {text}" for text in reports[:3])))
        rows += [(what, "only hardware", "not shown") for what in ONLY_HARDWARE]
    return rows


class _Steps:
    """Progress of batches; after the first one of a long interpreted run, what the rest will take."""

    def __init__(self, lane: Lane, interpreted: int) -> None:
        self._lane = lane
        self._interpreted = interpreted
        self._began = time.monotonic()
        self._done = 0

    def __call__(self, place: str) -> None:
        self._lane.advance(place)
        self._done += 1
        taken = time.monotonic() - self._began
        if self._done == 1 and taken * self._interpreted > LONG_S:
            show_note(
                f"the first of {self._interpreted} batches took {duration(taken)}; larger ones take longer. "
                "For less: --tokens 1, --pipeline NAME, or a spec with a smaller geometry"
            )


def _chosen(book: "KernelBook", wanted: list[str] | None) -> list[str]:
    """Names of built pipelines; raises NotBuilt, or MoegenError for a name that is none of them."""
    from moegen.tune.rig import built_pipelines

    book.built()
    names = list(built_pipelines(book))
    for name in wanted or ():
        if name not in names:
            raise MoegenError(f"no built pipeline {name}", str(book.directory), f"use one of: {', '.join(names)}")
    return wanted or names


def _row(check: "PipelineCheck") -> dict[str, Any]:
    return {
        "pipeline": check.pipeline,
        "exact sums": _word(check.exact),
        "float error": check.gate.layer_error,
        "worst row": check.gate.row_error,
        "stale memory": _word(check.poison),
        "verdict": "pass" if check.passed else "FAIL",
        "first failure": check.reason,
    }


def _count(passed: Any) -> str:
    verdicts = list(passed)
    return f"{sum(verdicts)} of {len(verdicts)} pipelines"


def _word(passed: bool | None) -> str:
    return "not defined" if passed is None else "equal" if passed else "DIFFER"
