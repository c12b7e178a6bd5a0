"""Compiled kernels by content: published whole or not at all, checked before first use, never overwritten.

Layout below a root (``MOEGEN_HOME``, or a read-only root of ``MOEGEN_PACKS``)::

    artifacts/v1/<key[:2]>/<key>/     object, rendered source, manifest.json
    staging/<token>/, <token>.lock    entries being written; the lock is held by the writing process
    quarantine/<key>-<token>/         entries that failed their check
"""

import atexit
import errno
import os
import secrets
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moegen.core.errors import StoreError, StoreFull
from moegen.core.settings import Settings
from moegen.store.entries import (
    MANIFEST,
    Damaged,
    EntryManifest,
    describe,
    manifest_bytes,
    parse_manifest,
    verify_files,
)
from moegen.store.files import copy_synced, fsync_directory, storage_errors, write_synced
from moegen.store.keys import ArtifactKey, Difference, differences
from moegen.store.locks import mark_alive, work_lock

ARTIFACTS = Path("artifacts") / "v1"
STAGING = Path("staging")
QUARANTINE = Path("quarantine")
_LOST_RACE = {errno.ENOTEMPTY, errno.EEXIST}
_NOT_YET_VISIBLE_S = 60.0
"""A folder without a manifest may be a winner that a network file system has not shown yet; older ones are damaged."""


class StoreWarning(UserWarning):
    """Something in a store needs attention, but work goes on."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A checked entry. ``private`` is True for a build that only this process can see."""

    key: str
    directory: Path
    manifest: EntryManifest
    private: bool = False

    def path(self, name: str) -> Path:
        """Path of one file, such as ``kernel.so``; KeyError when the artifact has no such file."""
        if name not in self.manifest.files:
            raise KeyError(name)
        return self.directory / name


class ArtifactStore:
    """Reads packs, then the home; writes to the home only. Creating one touches nothing on disk.

    Args:
        home: writable root; need not exist, and may turn out to be read-only.
        packs: read-only roots, searched first.
    """

    def __init__(self, home: Path, packs: Sequence[Path] = ()) -> None:
        self.home = home
        self.packs = tuple(packs)
        self._private: dict[str, Path] = {}
        self._verified: dict[Path, bytes] = {}
        self._reported: set[Path] = set()

    @classmethod
    def from_settings(cls, settings: Settings) -> "ArtifactStore":
        """The store that the environment names."""
        return cls(settings.home, settings.packs)

    @property
    def roots(self) -> tuple[Path, ...]:
        """Every root in search order."""
        return (*self.packs, self.home)

    def lookup(self, key: str) -> Artifact | None:
        """Finds an artifact by its digest; None is a miss.

        The first open of an entry in a process compares all its files with the manifest. A damaged entry is moved aside
        (where the root can be written), reported by one :class:`StoreWarning`, and counts as a miss.

        Raises:
            StoreError: the home belongs to another user or can be written by others.
        """
        if key in self._private:
            return self._open(self._private[key], key, private=True)
        for root in self.roots:
            directory = entry_directory(root, key)
            if _is_folder(directory):
                self._check_trust(root)
                artifact = self._open(directory, key)
                if artifact is not None:
                    return artifact
        return None

    def publish(self, key: ArtifactKey, files: Mapping[str, Path | bytes], meta: Mapping[str, Any]) -> Artifact:
        """Adds an artifact and returns it as :meth:`lookup` would.

        The entry is staged on the home's file system, its manifest written last, everything fsynced, then renamed into
        place. Whoever loses that race keeps its own build for this process. Where the home cannot be written at all the
        build stays private too, with one warning.

        Args:
            files: name in the entry → path to copy or bytes to write.
            meta: facts for people; not part of the key.

        Raises:
            StoreFull: no space left; nothing half-written remains.
            StoreError: any other failure, or a home that belongs to another user.
        """
        token = secrets.token_hex(8)
        stage, writable = self.home / STAGING / token, True
        try:
            self.prepare_home()
        except StoreFull:
            raise
        except StoreError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            self._warn(self.home, f"{error.what}; builds are kept for this process only; {error.fix}")
            stage, writable = Path(tempfile.gettempdir()) / f"moegen-{token}", False
        lock = self._stage(stage, key, files, meta)
        final = entry_directory(self.home, key.digest)
        if not (writable and self._rename(stage, final, lock)):
            self._keep_private(key.digest, stage, lock)
        artifact = self.lookup(key.digest)
        if artifact is None:
            raise StoreError("a published artifact could not be read back", str(final), "moegen cache verify")
        return artifact

    def prepare_home(self) -> None:
        """Creates the home (mode 0700) and its staging folder.

        Raises:
            StoreFull, StoreError: it cannot be created, or is not this user's alone.
        """
        with storage_errors("cannot use the store", self.home):
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_trust(self.home)
            (self.home / STAGING).mkdir(mode=0o700, exist_ok=True)
            probe = self.home / STAGING / f".probe-{secrets.token_hex(8)}"
            probe.mkdir()
            probe.rmdir()

    @contextmanager
    def lock(self, name: str, timeout_s: float = 600.0) -> Iterator[bool]:
        """Lets one process of this machine do a piece of work while others wait for its result.

        Yields False when the lock could not be had in ``timeout_s`` seconds: then do the work anyway. The lock lives in
        the machine's temporary folder, not in the home, which may be on a network file system.
        """
        path = Path(tempfile.gettempdir()) / f"moegen-locks-{os.getuid()}" / f"{name}.lock"
        with work_lock(path, timeout_s) as held:
            if not held:
                self._warn(path, f"lock not available within {timeout_s:g} s; going on without it")
            yield held

    def why_miss(self, key: ArtifactKey) -> tuple[Difference, ...]:
        """Field-wise difference to the most similar stored entry; empty when there is none, or ``key`` is stored."""
        closest: tuple[Difference, ...] = ()
        best = len(ArtifactKey.__dataclass_fields__) + len(key.toolchain) + 1
        for _, manifest in self.entries():
            found = differences(key, manifest.key)
            if (manifest.key.symbol == key.symbol or not closest) and len(found) < best:
                closest, best = found, len(found)
        return closest

    def entries(self) -> Iterator[tuple[Path, EntryManifest]]:
        """Every entry of every root whose manifest can be read, without checking its files."""
        for root in self.roots:
            for directory in entry_directories(root):
                with suppress(OSError, Damaged):
                    yield directory, parse_manifest((directory / MANIFEST).read_bytes())

    def check(self, directory: Path) -> EntryManifest:
        """Compares one entry with its manifest, whatever was checked before.

        Raises:
            Damaged: with the first difference.
        """
        try:
            data = (directory / MANIFEST).read_bytes()
            manifest = parse_manifest(data)
            verify_files(directory, manifest)
        except OSError as error:
            raise Damaged(f"unreadable ({error.strerror})") from error
        if manifest.key.digest != directory.name and directory not in self._private.values():
            raise Damaged(f"{MANIFEST}: its key is {manifest.key.digest[:16]}…")
        self._verified[directory] = data
        return manifest

    def quarantine(self, directory: Path, reason: str) -> None:
        """Moves a damaged entry of the home aside and says so once; entries of packs are only reported."""
        if self.home in directory.parents:
            with suppress(OSError):
                aside = self.home / QUARANTINE
                aside.mkdir(mode=0o700, exist_ok=True)
                os.rename(directory, aside / f"{directory.name}-{secrets.token_hex(4)}")
        self._warn(directory, f"damaged artifact ignored: {reason}")

    def _open(self, directory: Path, key: str, private: bool = False) -> Artifact | None:
        try:
            data = (directory / MANIFEST).read_bytes()
        except OSError as error:
            if self._old(directory):
                self.quarantine(directory, f"{MANIFEST}: {error.strerror}")
            return None
        try:
            manifest = parse_manifest(data) if self._verified.get(directory) == data else self.check(directory)
            if manifest.key.digest != key:
                raise Damaged(f"{MANIFEST}: its key is {manifest.key.digest[:16]}…")
        except Damaged as damage:
            self.quarantine(directory, str(damage))
            return None
        return Artifact(key=key, directory=directory, manifest=manifest, private=private)

    @staticmethod
    def _old(directory: Path) -> bool:
        try:
            return time.time() - directory.stat().st_mtime > _NOT_YET_VISIBLE_S
        except OSError:
            return False

    @staticmethod
    def _stage(stage: Path, key: ArtifactKey, files: Mapping[str, Path | bytes], meta: Mapping[str, Any]) -> int | None:
        """Writes a complete entry to ``stage``; returns the held lock that tells the collector to leave it alone."""
        lock: int | None = None
        try:
            with storage_errors("cannot stage an artifact", stage):
                lock = mark_alive(stage.with_suffix(".lock"))
                stage.mkdir(mode=0o700)
                for name, content in files.items():
                    if isinstance(content, bytes):
                        write_synced(stage / name, content)
                    else:
                        copy_synced(content, stage / name)
                write_synced(stage / MANIFEST, manifest_bytes(describe(stage, key, meta)))
                fsync_directory(stage)
        except BaseException:
            _discard(stage, lock)
            raise
        return lock

    @staticmethod
    def _rename(stage: Path, final: Path, lock: int | None) -> bool:
        """Makes a staged entry visible; False when another process was first."""
        try:
            with storage_errors("cannot publish an artifact", final):
                final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    os.rename(stage, final)
                except OSError as error:
                    if error.errno in _LOST_RACE:
                        return False
                    raise
                fsync_directory(final.parent)
        except BaseException:
            _discard(stage, lock)
            raise
        _discard(stage, lock)
        return True

    def _keep_private(self, key: str, directory: Path, lock: int | None) -> None:
        self._private[key] = directory
        owner = os.getpid()

        def remove() -> None:
            if os.getpid() == owner:  # a forked child runs its parent's exit handlers
                _discard(directory, lock)

        atexit.register(remove)

    def _check_trust(self, root: Path) -> None:
        """Code is loaded from here, so nobody else may be able to put any there."""
        status = root.stat()
        if root in self.packs:
            if status.st_mode & 0o002:
                raise StoreError("a pack that every user can write is not trusted", str(root), f"chmod o-w {root}")
            return
        if status.st_uid not in (os.geteuid(), 0):
            raise StoreError(
                f"the store belongs to user {status.st_uid}, this process runs as {os.geteuid()}",
                str(root),
                "set MOEGEN_HOME to a folder of your own, or name this one in MOEGEN_PACKS",
            )
        if status.st_mode & 0o022:
            raise StoreError("others can write to the store", str(root), f"chmod go-w {root}")

    def _warn(self, place: Path, text: str) -> None:
        if place not in self._reported:
            self._reported.add(place)
            warnings.warn(f"{place}: {text}", StoreWarning, stacklevel=3)


def entry_directory(root: Path, key: str) -> Path:
    """Where a root holds the artifact with digest ``key``."""
    return root / ARTIFACTS / key[:2] / key


def entry_directories(root: Path) -> list[Path]:
    """Every entry folder of a root, sorted; empty when the root is missing."""
    base = root / ARTIFACTS
    return sorted(path for path in base.glob("??/*") if _is_folder(path)) if _is_folder(base) else []


def _is_folder(path: Path) -> bool:
    """Like :meth:`Path.is_dir`, but False for what this user may not even look at."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _discard(stage: Path, lock: int | None) -> None:
    shutil.rmtree(stage, ignore_errors=True)
    with suppress(OSError):
        stage.with_suffix(".lock").unlink(missing_ok=True)
    if lock is not None:
        os.close(lock)
