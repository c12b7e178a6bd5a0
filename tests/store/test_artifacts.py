"""The artifact store under faults: killed writers, damaged files, races, full and read-only disks, foreign owners."""

import errno
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from moegen.core.errors import StoreError, StoreFull
from moegen.store import artifacts, upkeep
from moegen.store.artifacts import QUARANTINE, STAGING, ArtifactStore, StoreWarning, entry_directory
from moegen.store.entries import MANIFEST
from tests import faults
from tests.faults import guards
from tests.store.helpers import FILES, as_nobody, in_child, killed_at, make_key, published

DURABLE_STEPS = 7
"""Two files, manifest, sync of the stage, rename, sync of the shelf, one to spare."""


def test_hit_and_miss_return_the_same(tmp_path: Path) -> None:
    key = make_key()
    store = ArtifactStore(tmp_path / "home")
    assert store.lookup(key.digest) is None
    made = store.publish(key, FILES, {"compile_s": 1.5})
    assert made == store.lookup(key.digest) == ArtifactStore(tmp_path / "home").lookup(key.digest)
    assert made.path("kernel.so").read_bytes() == FILES["kernel.so"]
    assert made.manifest.key == key
    with pytest.raises(KeyError):
        made.path("absent")


def test_constructing_and_missing_write_nothing(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "home", (tmp_path / "pack",))
    assert store.lookup(make_key().digest) is None
    assert list(store.entries()) == []
    assert store.why_miss(make_key()) == ()
    assert not (tmp_path / "home").exists()


def test_home_is_private_to_its_user(tmp_path: Path) -> None:
    store, _, directory = published(tmp_path / "home")
    assert store.home.stat().st_mode & 0o777 == 0o700
    assert directory.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("before", [True, False])
def test_killed_writer_leaves_nothing_half_written(before: bool, tmp_path: Path) -> None:
    @guards(faults.written_in_place)
    def check(*, tmp_path: Path) -> None:
        killed = 0
        for step in range(1, DURABLE_STEPS + 1):
            home = tmp_path / f"home{step}"

            def publish_and_die(home: Path = home, step: int = step) -> None:
                with killed_at(step, before=before):
                    ArtifactStore(home).publish(make_key(), FILES, {})

            killed += in_child(publish_and_die) < 0
            final = entry_directory(home, make_key().digest)
            store = ArtifactStore(home)
            found = store.lookup(make_key().digest)
            assert final.exists() == (found is not None), f"step {step}: a half-written entry is visible"
            if found is None:
                found = store.publish(make_key(), FILES, {})
            assert found.path("kernel.so").read_bytes() == FILES["kernel.so"]
            upkeep.collect(ArtifactStore(home))
            assert list((home / STAGING).iterdir()) == []
        assert killed >= DURABLE_STEPS - 1

    check(tmp_path=tmp_path)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def _replace_by_link(path: Path) -> None:
    twin = path.with_name("twin")
    twin.write_bytes(path.read_bytes())
    os.rename(twin, path.parents[1] / "elsewhere")
    path.unlink()
    path.symlink_to(path.parents[1] / "elsewhere")


def _add_stranger(path: Path) -> None:
    path.with_name("libextra.so").write_bytes(b"not published")


@pytest.mark.parametrize("damage", [_truncate, _flip_bit, Path.unlink, _replace_by_link, _add_stranger])
def test_damaged_entry_is_a_miss_with_one_warning(damage: Callable[[Path], None], tmp_path: Path) -> None:
    @guards(faults.unchecked_reads)
    def check(*, tmp_path: Path) -> None:
        store, digest, directory = published(tmp_path / "home")
        damage(directory / "kernel.so")
        with pytest.warns(StoreWarning, match="damaged artifact ignored"):
            assert store.lookup(digest) is None
        assert not directory.exists()
        assert len(list((store.home / QUARANTINE).iterdir())) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert store.lookup(digest) is None
            assert store.publish(make_key(), FILES, {}).directory == directory

    check(tmp_path=tmp_path)


@pytest.mark.parametrize("damage", [_truncate, _flip_bit])
def test_damaged_manifest_is_a_miss(damage: Callable[[Path], None], tmp_path: Path) -> None:
    store, digest, directory = published(tmp_path / "home")
    damage(directory / MANIFEST)
    with pytest.warns(StoreWarning, match=r"manifest\.json"):
        assert store.lookup(digest) is None


def test_entry_under_a_wrong_name_is_a_miss(tmp_path: Path) -> None:
    store, _, directory = published(tmp_path / "home")
    other = make_key(symbol="combine").digest
    entry_directory(store.home, other).parent.mkdir(parents=True, exist_ok=True)
    os.rename(directory, entry_directory(store.home, other))
    with pytest.warns(StoreWarning, match="its key is"):
        assert store.lookup(other) is None


def test_another_architecture_is_a_miss_and_says_why(tmp_path: Path) -> None:
    store, _, _ = published(tmp_path / "home", arch="sm_100a")
    wanted = make_key(arch="sm_103a")
    assert store.lookup(wanted.digest) is None
    assert [(item.field, item.wanted, item.found) for item in store.why_miss(wanted)] == [
        ("arch", "sm_103a", "sm_100a")
    ]


def test_why_miss_names_the_closest_entry(tmp_path: Path) -> None:
    home = tmp_path / "home"
    published(home, symbol="route", options=("-DA=9",), arch="x86-64-v2")
    store, _, _ = published(home, symbol="route", options=("-DA=9",))
    assert [item.field for item in store.why_miss(make_key())] == ["options"]


@guards(faults.lost_race_is_an_error)
def test_loser_of_the_rename_keeps_its_own_build(tmp_path: Path) -> None:
    key, other = make_key(), dict(FILES) | {"kernel.so": b"built by the loser"}
    winner = ArtifactStore(tmp_path / "home").publish(key, FILES, {})
    loser = ArtifactStore(tmp_path / "home")
    made = loser.publish(key, other, {})
    assert made.private
    assert made.directory != winner.directory
    assert made.path("kernel.so").read_bytes() == b"built by the loser"
    assert loser.lookup(key.digest) == made
    assert upkeep.collect(loser).litter == 0, "a living process's own build is not litter"
    assert made.directory.is_dir()
    assert ArtifactStore(tmp_path / "home").lookup(key.digest) == winner


@guards(faults.lost_race_is_an_error)
def test_enotempty_while_the_winner_is_not_visible(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "home")
    refuse = mock.Mock(side_effect=OSError(errno.ENOTEMPTY, "Directory not empty"))
    with mock.patch.object(artifacts.os, "rename", refuse):
        made = store.publish(make_key(), FILES, {})
    assert made.private
    assert store.lookup(make_key().digest) == made
    assert ArtifactStore(tmp_path / "home").lookup(make_key().digest) is None


def test_folder_without_manifest_waits_then_counts_as_damaged(tmp_path: Path) -> None:
    store, digest, directory = published(tmp_path / "home")
    (directory / MANIFEST).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.lookup(digest) is None
    assert directory.is_dir()
    os.utime(directory, (0, 0))
    with pytest.warns(StoreWarning, match=r"manifest\.json"):
        assert store.lookup(digest) is None
    assert not directory.exists()


@pytest.mark.parametrize("function", ["write_synced", "copy_synced", "fsync_directory"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_a_typed_error_and_leaves_nothing(
    function: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "built.so"
    source.write_bytes(b"object")
    store = ArtifactStore(tmp_path / "home")
    store.prepare_home()
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, function, mock.Mock(side_effect=OSError(code, os.strerror(code))))
        with pytest.raises(StoreFull, match="moegen cache gc"):
            store.publish(make_key(), FILES | {"kernel.so": source}, {})
    assert list((store.home / STAGING).iterdir()) == []
    assert store.lookup(make_key().digest) is None or function == "fsync_directory"
    assert store.publish(make_key(), FILES, {}).path("kernel.so").is_file()


def test_full_disk_for_real(tmp_path: Path) -> None:
    """A file-size limit stands in for a full disk: writes really come up short."""
    import resource
    import signal

    def publish() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            ArtifactStore(tmp_path / "home").publish(make_key(), {"kernel.so": b"x" * 5000}, {})
        except StoreError:
            os._exit(7)

    assert in_child(publish) == 7
    assert list((tmp_path / "home" / STAGING).iterdir()) == []
    assert ArtifactStore(tmp_path / "home").lookup(make_key().digest) is None


def test_home_of_another_user_is_refused(tmp_path: Path) -> None:
    store, digest, _ = published(tmp_path / "home")
    owner = os.stat_result((0o40700, 1, 1, 2, 4711, 4711, 4096, 0, 0, 0))
    with mock.patch.object(Path, "stat", return_value=owner), pytest.raises(StoreError, match="belongs to user 4711"):
        store.lookup(digest)


def test_home_that_others_can_write_is_refused(tmp_path: Path) -> None:
    store, digest, _ = published(tmp_path / "home")
    store.home.chmod(0o777)
    with pytest.raises(StoreError, match="chmod go-w"):
        store.lookup(digest)
    with pytest.raises(StoreError, match="chmod go-w"):
        store.publish(make_key(symbol="combine"), FILES, {})


def _open_to_all(path: Path) -> None:
    """Lets another user reach a folder below pytest's private ones."""
    for folder in path.parents:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)


def test_read_only_store_serves_and_builds_stay_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    _, digest, _ = published(home)
    for folder, _, names in os.walk(home):
        os.chmod(folder, 0o555)
        for name in names:
            os.chmod(Path(folder) / name, 0o444)
    _open_to_all(home / "x")

    def serve() -> None:
        store = ArtifactStore(home)
        assert store.lookup(digest) is not None
        with pytest.warns(StoreWarning, match="MOEGEN_HOME"):
            made = store.publish(make_key(symbol="combine"), FILES, {})
        assert made.private
        assert store.lookup(make_key(symbol="combine").digest) == made
        assert ArtifactStore(home).lookup(make_key(symbol="combine").digest) is None

    with mock.patch.object(ArtifactStore, "_check_trust", return_value=None):  # the files are root's or ours
        assert as_nobody(serve) == 0


@pytest.mark.parametrize("home", ["/nonexistent/moegen", "/proc/moegen", "/dev/null/moegen"])
def test_home_that_cannot_exist(home: str) -> None:
    def work() -> None:
        store = ArtifactStore(Path(home))
        assert store.lookup(make_key().digest) is None
        with pytest.warns(StoreWarning, match="MOEGEN_HOME"):
            assert store.publish(make_key(), FILES, {}).private
        with pytest.raises(StoreError, match="MOEGEN_HOME"):
            store.prepare_home()

    assert as_nobody(work) == 0


def test_packs_come_first_and_are_never_written(tmp_path: Path) -> None:
    _, digest, packed = published(tmp_path / "pack")
    published(tmp_path / "home")
    store = ArtifactStore(tmp_path / "home", (tmp_path / "pack",))
    found = store.lookup(digest)
    assert found is not None
    assert found.directory == packed
    _flip_bit(packed / "kernel.so")
    again = ArtifactStore(tmp_path / "home", (tmp_path / "pack",))
    with pytest.warns(StoreWarning, match="damaged"):
        found = again.lookup(digest)
    assert found is not None
    assert found.directory == entry_directory(tmp_path / "home", digest)
    assert packed.is_dir(), "a damaged entry of a pack is reported, not moved"


def test_pack_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    _, digest, _ = published(tmp_path / "pack")
    (tmp_path / "pack").chmod(0o777)
    with pytest.raises(StoreError, match="every user"):
        ArtifactStore(tmp_path / "home", (tmp_path / "pack",)).lookup(digest)


def test_private_builds_go_with_their_process(tmp_path: Path) -> None:
    made: list[Any] = []
    store = ArtifactStore(tmp_path / "home")
    with mock.patch.object(artifacts.atexit, "register", made.append):
        store.publish(make_key(), FILES, {})
        private = store.publish(make_key(), FILES, {})
    assert private.private
    child = in_child(lambda: [remove() for remove in made])
    assert child == 0
    assert private.directory.is_dir(), "a forked child must not remove its parent's build"
    for remove in made:
        remove()
    assert not private.directory.exists()
