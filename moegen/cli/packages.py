"""From what a user types, a spec file or a package folder, to a generated package."""

from pathlib import Path
from typing import TYPE_CHECKING

from moegen.core.errors import MoegenError, StaleGenerated

if TYPE_CHECKING:
    from moegen.core.package import Package


def load_package(where: Path, generated: Path) -> "tuple[Path, Package]":
    """Folder and manifest of a generated package.

    Args:
        where: a spec file, or a package's own folder.
        generated: folder of generated packages, searched by the spec's name.

    Raises:
        SpecError: the spec is wrong.
        StoreError: it was never generated.
        StaleGenerated: it was generated from another state of the spec.
        MoegenError: ``where`` is neither a file nor a folder.
    """
    from moegen.core.package import read_manifest

    if where.is_dir():
        return where, read_manifest(where)
    if not where.exists():
        raise MoegenError("no such spec file or package folder", str(where), "moegen new -o SPEC writes a spec")
    from moegen.spec import load_spec

    spec = load_spec(where)
    directory = generated / spec.name
    package = read_manifest(directory)
    if package.spec_digest != spec.digest:
        what = f"generated from another state of {where}"
        raise StaleGenerated(what, str(directory), f"moegen generate {where} --out {directory}")
    return directory, package
