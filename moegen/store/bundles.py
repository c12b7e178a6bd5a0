"""Which artifact serves which variant of a package on one architecture.

Serving knows the package and the machine, not the toolchain that built its kernels, so it cannot compute artifact
keys: a build writes them down here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moegen.core.canonical import canonical_json
from moegen.core.errors import StoreError
from moegen.store.artifacts import ArtifactStore
from moegen.store.files import write_atomic

BUNDLES = Path("bundles") / "v1"
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Variant → artifact digest, for one package digest and one architecture."""

    package: str
    arch: str
    artifacts: dict[str, str]
    schema: int = _SCHEMA


def bundle_path(root: Path, package: str, arch: str) -> Path:
    """Where a root holds the bundle of (package digest, architecture)."""
    return root / BUNDLES / f"{package}-{arch}.json"


def read_bundle(store: ArtifactStore, package: str, arch: str) -> Bundle | None:
    """The bundle over all roots, earlier roots first; None when no root has one.

    Raises:
        StoreError: a bundle file is damaged or of another schema.
    """
    merged: dict[str, str] = {}
    found = False
    for root in reversed(store.roots):
        part = _read(bundle_path(root, package, arch), package, arch)
        if part is not None:
            found = True
            merged.update(part)
    return Bundle(package=package, arch=arch, artifacts=merged) if found else None


def write_bundle(store: ArtifactStore, package: str, arch: str, artifacts: Mapping[str, str]) -> Path:
    """Adds entries to the home's bundle, keeping those of other variants, and returns its path.

    Raises:
        StoreFull, StoreError: the home cannot be written.
    """
    path = bundle_path(store.home, package, arch)
    with store.lock(f"bundle-{package[:32]}-{arch}", timeout_s=30.0):
        known = _read(path, package, arch) or {}
        bundle = Bundle(package=package, arch=arch, artifacts={**known, **artifacts})
        write_atomic(path, canonical_json(bundle) + b"\n")
    return path


def _read(path: Path, package: str, arch: str) -> dict[str, str] | None:
    try:
        data = json.loads(path.read_bytes())
        if (data["schema"], data["package"], data["arch"]) != (_SCHEMA, package, arch):
            raise StoreError("bundle of another schema, package or architecture", str(path), "moegen build")
        return {str(variant): str(key) for variant, key in data["artifacts"].items()}
    except OSError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StoreError(f"damaged bundle ({error})", str(path), "delete it and run: moegen build") from error
