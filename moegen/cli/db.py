"""``moegen db``: looking into the tuning database, and moving its records between machines."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moegen.cli.console import show_json, show_line, show_note, show_table
from moegen.cli.options import GENERATED, AsJson, Database, Generated, OneTarget, PackageOrSpec
from moegen.core.enums import Target
from moegen.core.errors import StoreError

if TYPE_CHECKING:
    from moegen.store.database import Result, TrialDatabase
    from moegen.store.trials import Record

app = typer.Typer(no_args_is_help=True, help="The tuning database: list, show, merge, export, import, freeze, pin.")


def open_database(path: Path | None) -> "TrialDatabase":
    """The database that ``--db`` or MOEGEN_HOME names."""
    from moegen.core.settings import read_settings
    from moegen.store.database import DATABASE, TrialDatabase

    return TrialDatabase(path or read_settings().home / DATABASE)


@app.command("ls")
def list_trials(
    database: Database = None,
    package: Annotated[str | None, typer.Option(help="Only packages of this name.")] = None,
    target: Annotated[Target | None, typer.Option(help="Only this target.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Only this token count.")] = None,
    as_json: AsJson = False,
) -> None:
    """List trials, one a line."""
    with open_database(database) as db:
        found = db.results(target=target.value if target else None, tokens=tokens)
    found = [result for result in found if package in (None, result.problem.name)]
    found.sort(key=lambda r: (r.problem.name, r.problem.target, r.problem.tokens, r.routing.label, r.trial.variant))
    if as_json:
        show_json([_brief(result) for result in found])
        return
    columns = ("trial", "package", "target", "tokens", "routing", "stage", "variant", "status", "median µs", "n")
    show_table(columns, [tuple(_brief(result).values()) for result in found])


@app.command("show")
def show_record(
    identity: Annotated[str, typer.Argument(metavar="ID", help="Id of a record, or a unique beginning of it.")],
    database: Database = None,
) -> None:
    """Print one record with everything it refers to, as JSON."""
    from moegen.store.trials import REFERENCES, Trial, record_to_json

    with open_database(database) as db:
        record = _find(db, identity)
        shown = record_to_json(record)
        if isinstance(record, Trial):
            for field in REFERENCES:
                shown[field] = record_to_json(_find(db, getattr(record, field)))
    show_json(shown)


@app.command("merge")
def merge(
    sources: Annotated[list[Path], typer.Argument(help="Other trials.db files.")], database: Database = None
) -> None:
    """Add every record of other databases; records merge as a set."""
    with open_database(database) as db:
        for source in sources:
            if not source.is_file():
                raise StoreError("no such database", str(source), "give the path of a trials.db")
            show_line(f"{source}: {db.merge(source)} new records")


@app.command("export")
def export_pack(
    output: Annotated[Path, typer.Argument(help="Pack to write (.jsonl).")],
    database: Database = None,
    package: Annotated[str | None, typer.Option(help="Only packages of this name.")] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Only trials of whole pipelines: those of single ops select nothing.")
    ] = False,
) -> None:
    """Write records as a pack: sorted JSON lines that merge in git."""
    from moegen.store.packs import write_pack
    from moegen.store.trials import Problem, Subject

    subject = Subject.PIPELINE if whole else None
    with open_database(database) as db:
        if package is None and not whole:
            show_line(f"{output}: {db.export_pack(output)} records")
            return
        digests = {problem.package for problem in db.all(Problem) if package in (None, problem.name)}
        if not digests:
            raise StoreError(f"no trials of a package named {package}", str(db.path), "moegen db ls")
        records = [record for digest in sorted(digests) for record in db.closure(digest, subject)]
    write_pack(output, records)
    show_line(f"{output}: {len({record.id for record in records})} records")


@app.command("import")
def import_pack(
    packs: Annotated[list[Path], typer.Argument(help="Packs to read (.jsonl).")], database: Database = None
) -> None:
    """Add the records of packs."""
    with open_database(database) as db:
        for pack in packs:
            show_line(f"{pack}: {db.import_pack(pack)} new records")


@app.command("freeze")
def freeze(
    package: PackageOrSpec,
    target: OneTarget = Target.CPU,
    database: Database = None,
    generated: Generated = GENERATED,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the tables. Default: tables of MOEGEN_HOME.")
    ] = None,
    tie_band: Annotated[float, typer.Option(help="Candidates this close to the fastest count as equal.")] = 0.02,
    margin: Annotated[float, typer.Option(help="Share by which the default must lose.")] = 0.03,
) -> None:
    """Choose winners from recorded trials and write the tables that serving loads. Needs no device."""
    from moegen.cli.packages import load_package
    from moegen.tune.freeze import freeze_tables
    from moegen.tune.policy import SelectPolicy
    from moegen.tune.tables import write_tables

    _, manifest = load_package(package, generated)
    with open_database(database) as db:
        offer = manifest.offer_digest(target)
        results = db.results(package=offer, target=target.value)
        pins = db.pins(offer, target.value)
    policy = SelectPolicy(tie_band=tie_band, switch_margin=margin)
    for path in write_tables(freeze_tables(results, manifest, target, policy, pins), output):
        show_line(str(path))


@app.command("pin")
def pin(
    package: PackageOrSpec,
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline to serve.")],
    reason: Annotated[str, typer.Option(help="Why; shown by explain.")],
    target: OneTarget = Target.CPU,
    tokens: Annotated[int, typer.Option(help="Only at this token count; 0: at all.")] = 0,
    routing: Annotated[str, typer.Option(help="Only under this routing class; empty: all.")] = "",
    database: Database = None,
    generated: Generated = GENERATED,
) -> None:
    """Put a person's choice above the tuner's; takes effect with the next freeze."""
    from moegen.cli.packages import load_package
    from moegen.store.trials import Pin

    directory, manifest = load_package(package, generated)
    names = [offered.name for offered in manifest.targets[target].pipelines] if target in manifest.targets else []
    if pipeline not in names:
        raise StoreError(f"no pipeline {pipeline!r} on {target.value}", str(directory), "moegen plan lists them")
    record = Pin(
        package=manifest.offer_digest(target),
        target=target.value,
        tokens=tokens,
        routing=routing,
        pipeline=pipeline,
        reason=reason,
    )
    with open_database(database) as db:
        db.add([record])
    show_note(f"pinned; next: moegen db freeze {package} --target {target.value}")


def _brief(result: "Result") -> dict[str, object]:
    return {
        "trial": result.trial.id[:12],
        "package": result.problem.name,
        "target": result.problem.target,
        "tokens": result.problem.tokens,
        "routing": result.routing.label,
        "stage": result.policy.parameters.get("stage", ""),
        "variant": result.trial.variant,
        "status": result.trial.status.value,
        "median_us": result.trial.median_us,
        "n": result.trial.n,
    }


def _find(db: "TrialDatabase", identity: str) -> "Record":
    from moegen.store.trials import KINDS

    found = [record for cls in KINDS.values() for record in db.all(cls) if record.id.startswith(identity)]
    if len(found) != 1:
        what = f"{len(found)} records begin with {identity!r}" if found else f"no record {identity!r}"
        raise StoreError(what, str(db.path), "moegen db ls")
    return found[0]
