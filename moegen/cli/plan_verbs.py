"""``moegen plan`` and ``generate``: what a spec can become, and the package that it does become."""

from pathlib import Path
from typing import Annotated, Any

import typer

from moegen.cli.console import show_json, show_line, show_table, size
from moegen.cli.options import GENERATED, AsJson, ManyTargets, SpecFile


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
    from moegen.codegen.planning import plan as make_plan
    from moegen.spec import load_spec, located

    loaded = load_spec(spec)
    with located(spec):
        explained = [explain_plan(make_plan(loaded, wanted)) for wanted in target or loaded.targets]
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

    place = out or GENERATED / load_spec(spec).name
    package = (check_generated if check else write)(spec, place, target or None)
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
    show_table(
        ("pipeline", "times the best"),
        [(dropped["name"], dropped["slower"]) for dropped in item["dropped"]],
        "pipelines that the time model ranked out",
    )
    show_line()
    for op in item["ops"]:
        rows = [(s["schedule"], s["mean_us"], s["verdict"], "used" * s["used"]) for s in op["schedules"]]
        show_table(("schedule", "model µs", "verdict", ""), rows, f"{op['op']}: {op['legal']} of {len(rows)} legal")
        show_line()
