"""``moegen report``: computes one HTML file from the database it is given."""

from pathlib import Path
from typing import Annotated

import typer

from moegen.cli.cache import open_store
from moegen.cli.console import show_json, show_line
from moegen.cli.db import open_database
from moegen.cli.options import GENERATED, AsJson, Database, Generated, OneTarget, PackageOrSpec
from moegen.core.enums import Target
from moegen.core.errors import MoegenError


def report(
    package: PackageOrSpec,
    target: OneTarget = Target.CPU,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file. Default: report-<name>-<target>.html.")
    ] = None,
    database: Database = None,
    generated: Generated = GENERATED,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML report: latency, winners, accuracy, builds, decisions, environment."""
    from moegen.cli.packages import load_package
    from moegen.cli.report.data import gather
    from moegen.tune.policy import SelectPolicy

    try:
        from moegen.cli.report.page import render
    except ModuleNotFoundError as error:
        raise MoegenError(f"plots need {error.name}", "report", "pip install 'moegen[report]'") from error
    _, manifest = load_package(package, generated)
    with open_database(database) as db:
        offer = manifest.offer_digest(target)
        results = db.results(package=offer, target=target.value)
        pins = db.pins(offer, target.value)
    data = gather(results, manifest, target, open_store(), SelectPolicy(), pins)
    path = output or Path(f"report-{manifest.name}-{target.value}.html")
    path.write_text(render(data))
    if as_json:
        show_json({"report": str(path), "trials": data.trials, "points": sum(len(c.choices) for c in data.classes)})
    else:
        show_line(f"{path}: {data.trials} trials, {sum(len(c.choices) for c in data.classes)} points")
