"""``moegen cache``: the artifact store's size, health and misses."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moegen.cli.console import show_json, show_line, show_table, size
from moegen.cli.options import GENERATED, AsJson, Generated, OneTarget, PackageOrSpec
from moegen.core.enums import Target

if TYPE_CHECKING:
    from moegen.store.artifacts import ArtifactStore

app = typer.Typer(no_args_is_help=True, help="The artifact store: statistics, verification, clean-up.")
_DAY_S = 86_400


def open_store() -> "ArtifactStore":
    """The store that the environment names."""
    from moegen.core.settings import read_settings
    from moegen.store.artifacts import ArtifactStore

    return ArtifactStore.from_settings(read_settings())


@app.command("stat")
def stat(as_json: AsJson = False) -> None:
    """Count entries and bytes of each root, in search order."""
    from moegen.store.upkeep import stat as count

    roots = count(open_store())
    if as_json:
        show_json([{**vars(root), "root": str(root.root)} for root in roots])
        return
    show_table(
        ("root", "writable", "entries", "size", "unreadable", "staged", "quarantined"),
        [(r.root, r.writable, r.entries, size(r.bytes), r.unreadable, r.staged, r.quarantined) for r in roots],
    )


@app.command("verify")
def verify(as_json: AsJson = False) -> None:
    """Compare every file with its manifest; damaged entries go to quarantine and the exit code is 1."""
    from moegen.store.upkeep import verify as check

    report = check(open_store())
    if as_json:
        show_json({"sound": report.sound, "damaged": [[str(path), reason] for path, reason in report.damaged]})
    else:
        show_line(f"{report.sound} sound, {len(report.damaged)} damaged")
        for path, reason in report.damaged:
            show_line(f"{path}: {reason}")
    if report.damaged:
        raise typer.Exit(1)


@app.command("gc")
def collect(
    days: Annotated[float | None, typer.Option(help="Remove unused artifacts older than this many days.")] = None,
    max_mib: Annotated[float | None, typer.Option(help="Remove unused artifacts until this many MiB remain.")] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what no built package uses: quarantine, abandoned staging, and artifacts by age or size."""
    from moegen.store.upkeep import collect as remove

    report = remove(
        open_store(),
        max_age_s=None if days is None else days * _DAY_S,
        max_bytes=None if max_mib is None else int(max_mib * (1 << 20)),
    )
    if as_json:
        show_json(vars(report))
        return
    show_line(
        f"removed {len(report.removed)} artifacts, {len(report.bundles)} bundles and {report.litter} leftovers; "
        f"{size(report.freed_bytes)} freed; {report.protected} kept because a built package uses them"
    )


@app.command("why-miss")
def why_miss(
    package: PackageOrSpec, target: OneTarget = Target.CPU, generated: Generated = GENERATED, as_json: AsJson = False
) -> None:
    """For each kernel without an artifact: which fields of the nearest stored key differ from the wanted one."""
    from moegen.build.builder import artifact_key
    from moegen.build.toolchains import toolchains_for
    from moegen.cli.packages import load_package

    _, manifest = load_package(package, generated)
    sources = manifest.offer(target, package).sources
    store, compilers = open_store(), toolchains_for(target)
    rows: list[tuple[str, str, str, str]] = []
    for source in sources:
        key = artifact_key(source, compilers[Path(source.path).suffix])
        if store.lookup(key.digest) is not None:
            continue
        found = [(source.variant, d.field, d.wanted, d.found) for d in store.why_miss(key)]
        rows += found or [(source.variant, "-", "-", "nothing like it is stored")]
    columns = ("variant", "field", "wanted", "stored")
    if as_json:
        show_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif rows:
        show_table(columns, rows)
    else:
        show_line(f"all {len(sources)} kernels of {manifest.name} have artifacts for {target.value}")
