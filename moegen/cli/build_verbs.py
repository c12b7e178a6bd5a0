"""``moegen build``: compilers at work, with progress and a summary."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from moegen.cli.console import Lane, duration, progress, show_json, show_line, show_note, show_table
from moegen.cli.options import GENERATED, AsJson, Generated, ManyTargets, PackageOrSpec
from moegen.core.enums import Target
from moegen.core.errors import ToolchainMissing

if TYPE_CHECKING:
    from moegen.build.builder import BuildReport, Progress


def build(
    package: PackageOrSpec,
    target: ManyTargets = None,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", help="Compilers at once. Default: one a core.")] = None,
    generated: Generated = GENERATED,
    as_json: AsJson = False,
) -> None:
    """Compile what has no artifact yet. Needs no GPU; what is built already is found by content."""
    import time

    from moegen.build.builder import build as run
    from moegen.cli.packages import load_package

    directory, manifest = load_package(package, generated)
    began = time.monotonic()
    with ExitStack() as stack:
        report = run(directory, target or None, jobs=jobs, progress=_Bars(stack))
    if as_json:
        show_json(_summary(report))
    else:
        _show(report, manifest.name, time.monotonic() - began)
    if target and report.disabled:
        name, reason = next(iter(report.disabled.items()))
        raise ToolchainMissing(reason, name.value, "moegen doctor")
    if report.failed:
        raise typer.Exit(1)


class _Bars:
    """One lane a target, opened when its first variant is done."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._lanes: dict[Target, Lane] = {}

    def __call__(self, step: "Progress") -> None:
        """Moves the lane of the step's target on."""
        if step.target not in self._lanes:
            self._lanes[step.target] = self._stack.enter_context(progress(f"build {step.target.value}", step.total))
        self._lanes[step.target].advance(step.result)


def _show(report: "BuildReport", name: str, seconds: float) -> None:
    counts = [(target.value, arch, *_counts(report, target)) for target, arch in report.archs.items()]
    show_table(("target", "arch", "built", "already there", "failed"), counts, f"{name}: {duration(seconds)}")
    for notice in report.notices:
        show_note(notice)
    for target, reason in report.disabled.items():
        show_note(f"{target.value} is disabled: {reason}")
    for failure in report.failed:
        show_line(f"{failure.result}: {failure.variant}\n{failure.log}")


def _counts(report: "BuildReport", target: Target) -> tuple[int, int, int]:
    mine = [variant for variant in report.variants if variant.target is target]
    built, hits = (sum(variant.result == result for variant in mine) for result in ("built", "hit"))
    return built, hits, len(mine) - built - hits


def _summary(report: "BuildReport") -> dict[str, object]:
    return {
        "package": report.package,
        "archs": {target.value: arch for target, arch in report.archs.items()},
        "disabled": {target.value: reason for target, reason in report.disabled.items()},
        "counts": report.counts(),
        "variants": [
            {
                "target": v.target.value,
                "variant": v.variant,
                "result": v.result,
                "artifact": v.key,
                "seconds": v.seconds,
            }
            for v in report.variants
        ],
    }
