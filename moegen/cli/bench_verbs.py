"""``moegen bench``: built pipelines timed against each other on this machine."""

from typing import TYPE_CHECKING, Annotated

import typer

from moegen.cli.console import show_json, show_table
from moegen.cli.options import GENERATED, AsJson, Generated, OneTarget, PackageOrSpec, Threads
from moegen.cli.tune_verbs import start_worker
from moegen.core.enums import Target
from moegen.core.errors import TuneError
from moegen.tune.policy import Cache, Effort

if TYPE_CHECKING:
    from pathlib import Path

    from moegen.tune.comparison import Compared


def bench(
    package: PackageOrSpec,
    tokens: Annotated[list[int], typer.Option("--tokens", help="Token count of the call; may be repeated.")],
    target: OneTarget = Target.CPU,
    pipeline: Annotated[
        list[str] | None,
        typer.Option(
            "--pipeline",
            help="Pipeline; may be repeated, the first is the base. Default: the package's default, and what serving "
            "runs.",
            show_default=False,
        ),
    ] = None,
    routing: Annotated[str, typer.Option(help="Routing profile of the input.")] = "uniform",
    effort: Annotated[Effort, typer.Option(help="Rounds of the measurement, as for tune.")] = Effort.FULL,
    cache: Annotated[Cache, typer.Option(help="State of the last-level cache before each call.")] = Cache.COLD,
    timeout: Annotated[float, typer.Option(help="Seconds after which a pipeline counts as hanging.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    threads: Threads = 0,
    generated: Generated = GENERATED,
    as_json: AsJson = False,
) -> None:
    """Time built pipelines side by side: gated, interleaved, with confidence intervals and a verdict. Records nothing;
    `moegen tune` does."""
    from moegen.cli.packages import load_package
    from moegen.tune.comparison import compare
    from moegen.tune.policy import measure_policy
    from moegen.tune.routing import parse_routing

    directory, manifest = load_package(package, generated)
    if min(tokens) < 1:
        raise TuneError(f"token count {min(tokens)}", "--tokens", "give counts of 1 and more")
    policy, profile = measure_policy(target, effort, cache), parse_routing(routing)
    rows: list[dict[str, object]] = []
    with start_worker(directory, target, policy, timeout, threads) as worker:
        for count in tokens:
            names = _chosen(directory, target, pipeline, count, profile.label)
            rows += [_row(count, found) for found in compare(worker, names, count, profile, policy, seed=seed)]
    if as_json:
        show_json(rows)
        return
    show_table(tuple(rows[0]), [tuple(row.values()) for row in rows], f"{manifest.name}, {target.value}, {routing}")


def _chosen(directory: "Path", target: Target, wanted: list[str] | None, tokens: int, routing: str) -> list[str]:
    """Built pipelines to time: those asked for, else the default and the one that a call of that size runs."""
    from moegen.runtime import load

    loaded = load(directory, target=target, routing=routing, max_tokens=tokens)
    built = {pipeline.name: pipeline for pipeline in loaded.book.built() if pipeline.serves(tokens)}
    names = wanted or [loaded.package.targets[target].default, loaded.decider.decide(tokens).pipeline]
    for name in names:
        if name not in built:
            known = ", ".join(built)
            raise TuneError(f"no built pipeline {name} for T={tokens}", str(directory), f"use some of: {known}")
    return list(dict.fromkeys(names))


def _row(tokens: int, found: "Compared") -> dict[str, object]:
    timing = found.measured.timing
    assert timing is not None
    return {
        "tokens": tokens,
        "pipeline": found.pipeline,
        "median_us": timing.median_us,
        "ci_us": timing.ci_us if timing.has_interval else None,
        "p20_us": timing.p20_us,
        "p80_us": timing.p80_us,
        "n": timing.n,
        "clock_mhz": found.clock_mhz,
        "gain": found.gain,
        "verdict": found.verdict.value,
        "note": found.measured.note,
    }
