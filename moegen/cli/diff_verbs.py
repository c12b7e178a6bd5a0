"""``moegen diff``: what sets two kernels of a package apart, in source, PTX and machine code."""

import difflib
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moegen.cli.console import show_json, show_line, show_note
from moegen.cli.options import GENERATED, AsJson, Generated, OneTarget, PackageOrSpec
from moegen.core.enums import Target
from moegen.core.errors import MoegenError, NotBuilt

if TYPE_CHECKING:
    from moegen.core.package import Package
    from moegen.store.artifacts import Artifact


class Listing(str, Enum):
    """What is compared."""

    SOURCE = "source"
    PTX = "ptx"
    SASS = "sass"


def diff(
    package: PackageOrSpec,
    first: Annotated[str, typer.Argument(metavar="A", help="Variant, or a part of its name that no other has.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other variant.")],
    target: OneTarget = Target.CPU,
    listing: Annotated[
        list[Listing] | None,
        typer.Option("--listing", help="May be repeated. Default: source, and what is built.", show_default=False),
    ] = None,
    context: Annotated[int, typer.Option(help="Equal lines round each difference.")] = 3,
    generated: Generated = GENERATED,
    as_json: AsJson = False,
) -> None:
    """Compare two variants: rendered source, PTX and SASS, as unified differences.

    PTX and SASS come from the store, so the variants must have been built; SASS needs nvdisasm.
    """
    from moegen.cli.packages import load_package

    directory, manifest = load_package(package, generated)
    names = [_variant(manifest, target, part) for part in (first, second)]
    found: dict[str, list[str]] = {}
    for wanted in listing or list(Listing):
        try:
            before, after = (_read(directory, manifest, target, name, wanted) for name in names)
        except MoegenError as error:
            if listing:
                raise
            show_note(f"{wanted.value}: {error.what}")
            continue
        titles = [f"{name}.{wanted.value}" for name in names]
        found[wanted.value] = list(difflib.unified_diff(before, after, *titles, n=context, lineterm=""))
    if as_json:
        show_json({"a": names[0], "b": names[1], "listings": found})
        return
    for name, lines in found.items():
        show_line("\n".join(lines) if lines else f"{name}: equal")


def _variant(package: "Package", target: Target, part: str) -> str:
    """The variant of that name, or the only one with that part in its name."""
    every = [source.variant for source in package.offer(target).sources]
    found = [name for name in every if name == part] or [name for name in every if part in name]
    if len(found) != 1:
        what = f"{len(found)} variants have {part!r} in their name" if found else f"no variant has {part!r} in its name"
        raise MoegenError(what, f"{package.name}, {target.value}", "name one of:\n  " + "\n  ".join(found or every))
    return found[0]


def _read(directory: Path, package: "Package", target: Target, variant: str, wanted: Listing) -> list[str]:
    """One listing of one variant; raises NotBuilt, StoreError or ToolchainMissing."""
    if wanted is Listing.SOURCE:
        source = next(item for item in package.targets[target].sources if item.variant == variant)
        return (directory / source.path).read_text().splitlines()
    return _BUILT[wanted](_artifact(directory, package, target, variant))


def _artifact(directory: Path, package: "Package", target: Target, variant: str) -> "Artifact":
    from moegen.core.cpu import host_cpu_arch
    from moegen.core.settings import read_settings
    from moegen.store.artifacts import ArtifactStore
    from moegen.store.bundles import read_bundle

    store = ArtifactStore.from_settings(read_settings())
    arch = host_cpu_arch().name if target is Target.CPU else target.value
    bundle = read_bundle(store, package.digest, arch)
    key = bundle.artifacts.get(variant) if bundle else None
    artifact = store.lookup(key) if key else None
    if artifact is None:
        fix = f"moegen build {directory} --target {target.value}"
        raise NotBuilt(f"not built: {variant}", f"{package.name}, {target.value}", fix)
    return artifact


def _ptx(artifact: "Artifact") -> list[str]:
    from moegen.build.toolchain import PTX

    return _file(artifact, PTX).read_text().splitlines()


def _sass(artifact: "Artifact") -> list[str]:
    from moegen.build.disassemble import sass
    from moegen.build.toolchain import CUBIN

    return sass(_file(artifact, CUBIN))


def _file(artifact: "Artifact", name: str) -> Path:
    path = artifact.directory / name
    if not path.is_file():
        raise NotBuilt(f"its artifact holds no {name}", str(artifact.directory), "compare the sources of such a target")
    return path


_BUILT: dict[Listing, Callable[["Artifact"], list[str]]] = {Listing.PTX: _ptx, Listing.SASS: _sass}
