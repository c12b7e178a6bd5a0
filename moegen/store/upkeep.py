"""Looking after a store: how much is in it, whether it is sound, and what may go."""

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from moegen.store.artifacts import QUARANTINE, STAGING, ArtifactStore, entry_directories
from moegen.store.bundles import BUNDLES
from moegen.store.entries import MANIFEST, Damaged, parse_manifest
from moegen.store.locks import try_lock


@dataclass(frozen=True, kw_only=True)
class RootStat:
    """Counts of one root. ``bytes`` covers artifacts only; ``unreadable`` entries have no valid manifest."""

    root: Path
    writable: bool
    entries: int
    bytes: int
    unreadable: int
    staged: int
    quarantined: int


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Entries found sound, and (folder, reason) of those that are not."""

    sound: int
    damaged: tuple[tuple[Path, str], ...]


@dataclass(kw_only=True)
class CollectReport:
    """What a collection removed (artifact digests, bundle names), kept because a bundle names it, and freed (bytes)."""

    removed: list[str] = field(default_factory=list)
    bundles: list[str] = field(default_factory=list)
    protected: int = 0
    litter: int = 0
    freed_bytes: int = 0


def stat(store: ArtifactStore) -> list[RootStat]:
    """Counts per root, in search order."""
    return [_stat_root(store, root) for root in store.roots]


def verify(store: ArtifactStore) -> VerifyReport:
    """Re-reads every file of every entry; damaged entries of the home go to quarantine."""
    sound, damaged = 0, []
    for root in store.roots:
        for directory in entry_directories(root):
            try:
                store.check(directory)
                sound += 1
            except Damaged as damage:
                damaged.append((directory, str(damage)))
                store.quarantine(directory, str(damage))
    return VerifyReport(sound=sound, damaged=tuple(damaged))


def collect(
    store: ArtifactStore, *, max_age_s: float | None = None, max_bytes: int | None = None, now: float | None = None
) -> CollectReport:
    """Removes from the home what nobody needs any more.

    First litter: quarantined entries, and staging folders whose writer is gone. Then bundles older than ``max_age_s``.
    Then artifacts that no remaining bundle names: those older than ``max_age_s``, and the oldest until the rest fits in
    ``max_bytes``. An artifact that a bundle names is in use by a built package and is never removed.

    Args:
        max_age_s: seconds since publication (since the last build, for bundles); None: no limit.
        max_bytes: size that the artifacts may have afterwards; None: no limit.
        now: seconds since the epoch; for tests.
    """
    clock = time.time() if now is None else now
    report = CollectReport()
    _collect_litter(store.home, report)
    if max_age_s is not None:
        _collect_bundles(store.home, clock - max_age_s, report)
    in_use = _named_by_bundles(store.home)
    entries = sorted((directory.stat().st_mtime, directory) for directory in entry_directories(store.home))
    total = sum(_size(directory) for _, directory in entries)
    for born, directory in entries:
        too_old = max_age_s is not None and clock - born > max_age_s
        too_much = max_bytes is not None and total > max_bytes
        if not (too_old or too_much):
            continue
        if directory.name in in_use:
            report.protected += 1
            continue
        size = _size(directory)
        if _remove(store, directory):
            total -= size
            report.freed_bytes += size
            report.removed.append(directory.name)
    return report


def _stat_root(store: ArtifactStore, root: Path) -> RootStat:
    directories = entry_directories(root)
    readable = 0
    for directory in directories:
        with suppress(OSError, Damaged):
            parse_manifest((directory / MANIFEST).read_bytes())
            readable += 1
    return RootStat(
        root=root,
        writable=root == store.home and os.access(root, os.W_OK),
        entries=len(directories),
        bytes=sum(_size(directory) for directory in directories),
        unreadable=len(directories) - readable,
        staged=len(_folders(root / STAGING)),
        quarantined=len(_folders(root / QUARANTINE)),
    )


def _folders(base: Path) -> list[Path]:
    return [path for path in base.iterdir() if path.is_dir()] if base.is_dir() else []


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _collect_litter(home: Path, report: CollectReport) -> None:
    for directory in _folders(home / QUARANTINE):
        report.freed_bytes += _size(directory)
        report.litter += 1
        shutil.rmtree(directory, ignore_errors=True)
    staging = home / STAGING
    tokens = sorted({path.stem for path in staging.iterdir()}) if staging.is_dir() else []
    for directory in (staging / token for token in tokens):
        lock_path = directory.with_suffix(".lock")
        try:
            lock = try_lock(lock_path)
        except OSError:  # no locks here: nobody can tell whether its writer is alive
            continue
        if lock is None:  # its writer is alive
            continue
        report.freed_bytes += _size(directory)
        report.litter += directory.is_dir()
        shutil.rmtree(directory, ignore_errors=True)
        lock_path.unlink(missing_ok=True)
        os.close(lock)


def _collect_bundles(home: Path, before: float, report: CollectReport) -> None:
    for path in sorted((home / BUNDLES).glob("*.json")):
        if path.stat().st_mtime < before:
            path.unlink()
            report.bundles.append(path.stem)


def _named_by_bundles(home: Path) -> set[str]:
    """Every artifact digest that occurs in a bundle; a damaged bundle still protects what can be read of it."""
    text = "".join(path.read_text(errors="replace") for path in (home / BUNDLES).glob("*.json"))
    return {directory.name for directory in entry_directories(home) if directory.name in text}


def _remove(store: ArtifactStore, directory: Path) -> bool:
    """Takes the entry out of sight in one rename, so that no reader ever meets half of it."""
    aside = store.home / QUARANTINE / f"collected-{directory.name}"
    try:
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        os.rename(directory, aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True
