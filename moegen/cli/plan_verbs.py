"""``moegen plan`` and ``generate``: what a spec can become, and the package that it does become."""

from pathlib import Path
from typing import Annotated, Any

import typer

from moegen.cli.console import show_json, show_line, show_table, size
from moegen.cli.options import GENERATED, AsJson, ManyTargets, SpecFile

MOST_SHOWN = 12
"""Rows of one list of ``plan --why``; thousands of schedules would bury the reasons."""


def plan(
    spec: SpecFile,
    target: ManyTargets = None,
    why: Annotated[
        bool, typer.Option("--why", help="Also what was rejected: modes, packs, pipelines and schedules, with reasons.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which pipelines a spec gets on each target. Times are modelled; they rank candidates and are no
    measurement."""
    from moegen.codegen.explain import explain_plan
    from moegen.codegen.packaging import layer_only
    from moegen.codegen.planning import plan as make_plan
    from moegen.spec import load_spec, located
    from moegen.tune.tables import shipped_winners

    loaded = load_spec(spec)
    winners = {wanted: shipped_winners(layer_only(loaded), wanted) for wanted in target or loaded.targets}
    with located(spec):
        explained = [explain_plan(make_plan(loaded, wanted, incumbents=won)) for wanted, won in winners.items()]
    if as_json:
        show_json(explained)
        return
    for item in explained:
        _show_plan(item)
        if why:
            _show_why(item)


def generate(
    spec: SpecFile,
    out: Annotated[
        Path | None, typer.Option("--out", help="The package's folder. Default: generated/<name>.", show_default=False)
    ] = None,
    target: ManyTargets = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail when the folder is not what the spec renders to.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the importable package of a spec: manifest, kernels as readable source, and the spec itself."""
    from moegen.codegen.packaging import check_generated
    from moegen.codegen.packaging import generate as write
    from moegen.spec import load_spec
    from moegen.tune.tables import shipped_winners

    place = out or GENERATED / load_spec(spec).name
    package = (check_generated if check else write)(spec, place, target or None, incumbents=shipped_winners)
    if as_json:
        show_json({"package": str(place), "digest": package.digest, "checked": check})
        return
    done = "up to date" if check else "written"
    for offered, offer in package.targets.items():
        show_line(f"{place}: {offered.value} {done}, {len(offer.pipelines)} pipelines, {len(offer.sources)} kernels")
    if not check:
        show_line(f"next: moegen build {place}")


def _show_plan(item: dict[str, Any]) -> None:
    title = f"{item['target']}, planned for {item['device']}"
    rows = [
        ("*" if p["name"] == item["default"] else "", p["name"], p["mean_us"], p["kept"], len(p["variants"]))
        for p in item["pipelines"]
    ]
    if rows:
        show_table(("", "pipeline (* default)", "model µs", "kept because", "kernels"), rows, title)
    else:
        show_line(f"{title}: no whole pipeline")
    for note in item["notes"]:
        show_line(f"note: {note}")
    for rejected in item["rejected"]:
        show_line(f"not offered: {rejected['mode']}: {rejected['reason']}")
    show_line()


def _show_why(item: dict[str, Any]) -> None:
    rows = [
        (
            pack["op"],
            option["pack"],
            size(option["bytes"]),
            option["mean_us"],
            "chosen" * (option["pack"] == pack["pack"]),
        )
        for pack in item["packs"]
        for option in pack["considered"]
    ]
    show_table(("op", "weight pack", "bytes a layer", "model µs", ""), rows, "weight packs: one serves all pipelines")
    show_line()
    dropped = [(one["name"], one["slower"]) for one in item["dropped"]]
    title = f"{len(dropped)} pipelines that the time model ranked out, nearest first"
    show_table(("pipeline", "times the best"), dropped[:MOST_SHOWN], title)
    _show_rest(len(dropped) - MOST_SHOWN)
    show_line()
    for op in item["ops"]:
        legal = [s for s in op["schedules"] if s["legal"]]
        rows = [(s["schedule"], s["mean_us"], "used" * s["used"]) for s in legal]
        title = f"{op['op']}: {op['legal']} of {len(op['schedules'])} schedules legal, best first"
        show_table(("schedule", "model µs", ""), rows[:MOST_SHOWN], title)
        _show_rest(len(rows) - MOST_SHOWN)
        refused = _by_reason(op["schedules"])
        if refused:
            show_table(("refused", "reason", "for example"), refused[:MOST_SHOWN])
            _show_rest(len(refused) - MOST_SHOWN)
        show_line()


def _by_reason(schedules: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """(how many, reason, one of them) of the illegal schedules, most frequent first."""
    examples: dict[str, list[str]] = {}
    for schedule in schedules:
        if not schedule["legal"]:
            examples.setdefault(schedule["verdict"], []).append(schedule["schedule"])
    rows = [(len(names), reason, names[0]) for reason, names in examples.items()]
    return sorted(rows, key=lambda row: (-row[0], row[1]))


def _show_rest(count: int) -> None:
    if count > 0:
        show_line(f"... and {count} more; --json has all of them")
