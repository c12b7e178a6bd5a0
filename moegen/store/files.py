"""Durable file writing: what is visible under its final name is complete, whatever happens to the writer."""

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moegen.core.errors import StoreError, StoreFull

_FULL = {errno.ENOSPC, errno.EDQUOT}
_CHUNK = 1 << 20


@contextmanager
def storage_errors(doing: str, path: Path, fix: str = "set MOEGEN_HOME to a writable folder") -> Iterator[None]:
    """Turns an :class:`OSError` into a typed error that names what was being done and where.

    Raises:
        StoreFull: no space or no quota left.
        StoreError: any other failure of the file system.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise StoreFull(f"{doing}: {reason}", str(path), "free some space, or run: moegen cache gc") from error
        raise StoreError(f"{doing}: {reason}", str(path), fix) from error


def fsync_directory(directory: Path) -> None:
    """Makes the names in ``directory`` durable; without it a rename may be lost in a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Creates ``path`` with ``data`` and waits until the bytes are on the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def copy_synced(source: Path, target: Path) -> None:
    """Copies a file's bytes (no mode, no times) and waits until they are on the disk."""
    with source.open("rb") as reader, target.open("xb") as writer:
        shutil.copyfileobj(reader, writer, _CHUNK)
        writer.flush()
        os.fsync(writer.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces ``path`` by ``data``: readers see the old bytes or the new ones, never a mixture.

    Raises:
        StoreFull, StoreError: as :func:`storage_errors`; the old file is then untouched.
    """
    stage = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    with storage_errors("cannot write", path):
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_synced(stage, data)
            os.replace(stage, path)
            fsync_directory(path.parent)
        finally:
            stage.unlink(missing_ok=True)


def sha256_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()
