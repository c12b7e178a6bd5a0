"""One artifact on disk: its manifest, and the check that nothing in it has changed since it was published."""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moegen.core.canonical import canonical_json, digest, plain
from moegen.store.files import sha256_file
from moegen.store.keys import ArtifactKey, key_from_json

MANIFEST = "manifest.json"
_SCHEMA = 1
_DOMAIN = "moegen.artifact.manifest"


class Damaged(Exception):
    """An entry is not what was published; the text says which file and how. Stays inside the store: a damaged entry is
    a miss, not an error for callers."""


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """Size in bytes and SHA-256 (hex) of one file of an entry."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class EntryManifest:
    """What ``manifest.json`` says: the full key, each file, and free facts for people (build time, registers, …)."""

    key: ArtifactKey
    files: dict[str, FileRecord]
    meta: dict[str, Any]
    schema: int = _SCHEMA

    @property
    def bytes(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(record.size for record in self.files.values())


def describe(directory: Path, key: ArtifactKey, meta: Mapping[str, Any]) -> EntryManifest:
    """Manifest of the files that lie in ``directory`` now."""
    files = {
        path.name: FileRecord(size=path.stat().st_size, sha256=sha256_file(path))
        for path in sorted(directory.iterdir())
    }
    return EntryManifest(key=key, files=files, meta=dict(meta))


def manifest_bytes(manifest: EntryManifest) -> bytes:
    """The manifest's text; it carries a digest of itself, so that a flipped bit in it is found too."""
    return canonical_json({"digest": digest(manifest, _DOMAIN), "manifest": plain(manifest)}) + b"\n"


def parse_manifest(data: bytes) -> EntryManifest:
    """Reads a manifest's text.

    Raises:
        Damaged: not JSON, not ours, of another schema, or not matching its own digest.
    """
    try:
        outer = json.loads(data)
        inner = outer["manifest"]
        if inner["schema"] != _SCHEMA:
            raise Damaged(f"{MANIFEST}: schema {inner['schema']}, this moegen reads {_SCHEMA}")
        manifest = EntryManifest(
            key=key_from_json(inner["key"]),
            files={name: FileRecord(**record) for name, record in inner["files"].items()},
            meta=inner["meta"],
        )
        found, claimed = digest(manifest, _DOMAIN), outer["digest"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"{MANIFEST}: unreadable ({error})") from error
    if found != claimed:
        raise Damaged(f"{MANIFEST}: does not match its own digest")
    return manifest


def verify_files(directory: Path, manifest: EntryManifest) -> None:
    """Compares every file with the manifest.

    Raises:
        Damaged: a file is missing, too short, too long, changed, not a plain file, or not in the manifest.
    """
    present = {path.name for path in directory.iterdir()} - {MANIFEST}
    strangers = sorted(present - manifest.files.keys())
    if strangers:
        raise Damaged(f"{strangers[0]}: not in the manifest")
    for name, record in manifest.files.items():
        path = directory / name
        try:
            status = path.lstat()
        except FileNotFoundError as error:
            raise Damaged(f"{name}: missing") from error
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(f"{name}: not a plain file")
        if status.st_size != record.size:
            raise Damaged(f"{name}: {status.st_size} bytes, published with {record.size}")
        if sha256_file(path) != record.sha256:
            raise Damaged(f"{name}: sha256 differs from the published one")
