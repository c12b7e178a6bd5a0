"""Locks save work, are bounded, and die with their holder."""

import os
import signal
import time
from pathlib import Path

import pytest

from moegen.store.artifacts import ArtifactStore, StoreWarning
from moegen.store.locks import try_lock, work_lock
from tests import faults
from tests.faults import guards
from tests.store.helpers import as_nobody


def _holder(path: Path) -> int:
    """A child that takes the lock and waits; returns its process id once it holds it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try_lock(path)
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return child


@guards(faults.lock_by_existence)
def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "work.lock"
    child = _holder(path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert path.exists()
    with work_lock(path, timeout_s=0.5) as held:
        assert held


def test_wait_is_bounded_and_names_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / f"moegen-locks-{os.getuid()}" / "package.lock"
    path.parent.mkdir()
    child = _holder(path)
    begin = time.monotonic()
    store = ArtifactStore(tmp_path / "home")
    with pytest.warns(StoreWarning, match=r"package\.lock"), store.lock("package", timeout_s=0.2) as held:
        assert not held
    assert 0.2 <= time.monotonic() - begin < 60.0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_waiter_goes_on_when_the_holder_is_done(tmp_path: Path) -> None:
    path = tmp_path / "work.lock"
    with work_lock(path, timeout_s=1.0) as first:
        assert first
        with work_lock(path, timeout_s=0.0) as second:
            assert not second
    with work_lock(path, timeout_s=0.0) as third:
        assert third


def test_no_lock_where_none_can_be_made() -> None:
    def work() -> None:
        with work_lock(Path("/proc/locks/work.lock"), timeout_s=0.0) as held:
            assert not held
        with work_lock(Path("/nonexistent/work.lock"), timeout_s=0.0) as held:
            assert not held

    assert as_nobody(work) == 0
