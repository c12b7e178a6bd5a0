"""Bundles and housekeeping: what serves what, and what may be removed."""

import os
import threading
from pathlib import Path

import pytest

from moegen.core.errors import StoreError
from moegen.store import upkeep
from moegen.store.artifacts import ArtifactStore, StoreWarning
from moegen.store.bundles import bundle_path, read_bundle, write_bundle
from tests import faults
from tests.faults import guards
from tests.store.helpers import FILES, make_key, published

PACKAGE = "a" * 64
DAY_S = 86_400.0


def test_bundle_round_trip_and_layers(tmp_path: Path) -> None:
    pack, home = ArtifactStore(tmp_path / "pack"), ArtifactStore(tmp_path / "home", (tmp_path / "pack",))
    assert read_bundle(home, PACKAGE, "sm_90a") is None
    write_bundle(pack, PACKAGE, "sm_90a", {"gemm1": "p1", "gemm2": "p2"})
    write_bundle(home, PACKAGE, "sm_90a", {"gemm2": "h2", "combine": "h3"})
    bundle = read_bundle(home, PACKAGE, "sm_90a")
    assert bundle is not None
    assert bundle.artifacts == {"gemm1": "p1", "gemm2": "p2", "combine": "h3"}
    assert read_bundle(home, PACKAGE, "sm_100a") is None


def test_bundle_writers_do_not_lose_each_others_entries(tmp_path: Path) -> None:
    names = [f"variant{number}" for number in range(12)]

    def write(name: str) -> None:
        write_bundle(ArtifactStore(tmp_path / "home"), PACKAGE, "cpu", {name: name})

    threads = [threading.Thread(target=write, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bundle = read_bundle(ArtifactStore(tmp_path / "home"), PACKAGE, "cpu")
    assert bundle is not None
    assert sorted(bundle.artifacts) == sorted(names)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 9, "package": "", "arch": ""}', '{"schema": 1}'])
def test_damaged_bundle_is_named(text: str, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "home")
    path = bundle_path(store.home, PACKAGE, "cpu")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(StoreError, match="moegen build") as caught:
        read_bundle(store, PACKAGE, "cpu")
    assert str(path) in str(caught.value)


def _populate(home: Path) -> tuple[ArtifactStore, dict[str, str]]:
    """Three entries, born on days 1, 2 and 3; a bundle names the oldest."""
    digests = {}
    for day, symbol in enumerate(("route", "gemm1", "gemm2"), 1):
        _, digests[symbol], directory = published(home, symbol=symbol)
        os.utime(directory, (day * DAY_S, day * DAY_S))
    store = ArtifactStore(home)
    write_bundle(store, PACKAGE, "cpu", {"route": digests["route"]})
    return store, digests


@guards(faults.collector_ignores_bundles)
def test_collection_by_size_spares_what_bundles_name(tmp_path: Path) -> None:
    store, digests = _populate(tmp_path / "home")
    report = upkeep.collect(store, max_bytes=0, now=10 * DAY_S)
    assert report.removed == [digests["gemm1"], digests["gemm2"]]
    assert report.protected == 1
    assert report.freed_bytes > 0
    assert store.lookup(digests["route"]) is not None
    assert store.lookup(digests["gemm1"]) is None


def test_collection_by_age(tmp_path: Path) -> None:
    store, digests = _populate(tmp_path / "home")
    fresh = bundle_path(store.home, PACKAGE, "cpu").stat().st_mtime
    report = upkeep.collect(store, max_age_s=fresh - 2.5 * DAY_S, now=fresh)
    assert report.removed == [digests["gemm1"]]
    assert report.bundles == []
    report = upkeep.collect(store, max_age_s=DAY_S, now=fresh + 2 * DAY_S)
    assert report.bundles == [f"{PACKAGE}-cpu"]
    assert set(report.removed) == {digests["route"], digests["gemm2"]}
    assert upkeep.stat(store)[0].entries == 0


def test_collection_without_limits_removes_only_litter(tmp_path: Path) -> None:
    store, _ = _populate(tmp_path / "home")
    report = upkeep.collect(store)
    assert (report.removed, report.bundles, report.freed_bytes) == ([], [], 0)
    assert upkeep.stat(store)[0].entries == 3


def test_stat_and_verify(tmp_path: Path) -> None:
    store, digests = _populate(tmp_path / "home")
    _, packed, _ = published(tmp_path / "pack")
    both = ArtifactStore(tmp_path / "home", (tmp_path / "pack",))
    pack, home = upkeep.stat(both)
    assert (pack.entries, home.entries, pack.writable, home.writable) == (1, 3, False, True)
    assert home.bytes > 3 * len(FILES["kernel.so"])  # type: ignore[arg-type]
    assert upkeep.verify(both).sound == 4
    for store_root, digest in ((tmp_path / "pack", packed), (tmp_path / "home", digests["gemm1"])):
        (store_root / "artifacts" / "v1" / digest[:2] / digest / "source.cc").write_text("other")
    with pytest.warns(StoreWarning):
        report = upkeep.verify(both)
    assert report.sound == 2
    assert sorted(folder.name for folder, _ in report.damaged) == sorted([packed, digests["gemm1"]])
    assert upkeep.stat(store)[0].quarantined == 1
    assert upkeep.collect(store).litter == 1


def test_missing_home_has_nothing_to_keep(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "absent")
    assert upkeep.collect(store, max_bytes=0).removed == []
    assert upkeep.stat(store)[0].entries == 0
    assert upkeep.verify(store).sound == 0
    assert not (tmp_path / "absent").exists()


def test_same_entry_can_be_published_again_after_collection(tmp_path: Path) -> None:
    store, digest, directory = published(tmp_path / "home")
    upkeep.collect(store, max_bytes=0)
    assert store.lookup(digest) is None
    assert store.publish(make_key(), FILES, {}).directory == directory
