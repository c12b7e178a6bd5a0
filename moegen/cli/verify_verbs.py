"""``moegen verify``: every built pipeline against the reference, in one table."""

from typing import Any

import typer

from moegen.cli.console import progress, show_json, show_table
from moegen.cli.options import GENERATED, AsJson, Generated, OneTarget, PackageOrSpec
from moegen.core.enums import Target


def verify(
    package: PackageOrSpec,
    target: OneTarget = Target.CPU,
    generated: Generated = GENERATED,
    as_json: AsJson = False,
) -> None:
    """Run every built pipeline: bit for bit on exact sums, within the float gates, and on stale memory.

    A GPU target that this machine does not have is interpreted: its PTX runs on the CPU, with the race detector.
    The exit code is 1 when any of it fails.
    """
    from moegen.cli.machines import INTERPRETED, runner_here
    from moegen.cli.packages import load_package
    from moegen.tune.rig import built_pipelines, open_book
    from moegen.tune.verify import verify_pipelines

    directory, manifest = load_package(package, generated)
    runner, interpreted = runner_here(target)
    book = open_book(directory, target, runner)
    found = []
    with progress("verify", len(built_pipelines(book))) as lane:
        for check in verify_pipelines(book):
            found.append(check)
            lane.advance(check.pipeline)
    rows = [
        {
            "pipeline": check.pipeline,
            "exact sums": _word(check.exact),
            "float error": check.gate.layer_error,
            "worst row": check.gate.row_error,
            "stale memory": _word(check.poison),
            "verdict": "pass" if check.passed else "FAIL",
            "first failure": check.reason,
        }
        for check in found
    ]
    _show(rows, f"{manifest.name} on {book.runner.facts.name}", as_json)
    if interpreted and not as_json:
        show_table(("", "what"), INTERPRETED, "compiled and interpreted, not run on hardware")
    if not all(check.passed for check in found):
        raise typer.Exit(1)


def _show(rows: list[dict[str, Any]], title: str, as_json: bool) -> None:
    if as_json:
        show_json(rows)
        return
    show_table(tuple(rows[0]), [tuple(row.values()) for row in rows], title)


def _word(passed: bool | None) -> str:
    return "not defined" if passed is None else "equal" if passed else "DIFFER"
