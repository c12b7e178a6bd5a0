"""Every kind of file that moegen reads, damaged at random: the same answer as before, or one typed error; nothing else.

Damage is a flipped bit, a cut, lost or added bytes, and for JSON also a value that is well-formed and wrong.
"""

import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.packages import SPEC, TestPackage, make_inputs, reference_package
from runtime.writers import COMPRESSED_NVFP4, MODELOPT_NVFP4, per_expert, random_weights, write_checkpoint

from moegen.core.errors import MoegenError
from moegen.store import tables
from moegen.store.artifacts import ArtifactStore, entry_directory
from moegen.store.database import TrialDatabase
from moegen.store.packs import read_pack

ROUNDS = 16
RECORDED = Path(__file__).parents[1] / "tune" / "data"
LEAVES = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
ODD: list[Any] = [None, 0, -1, 10**30, 1.5, "x", "", [], {}, [1], {"a": 1}, True, float("nan")]
Damage = Callable[[bytes, random.Random], bytes]


def bytes_damaged(data: bytes, chance: random.Random) -> bytes:
    at, length = chance.randrange(len(data)), chance.randrange(1, 20)
    kind = chance.choice(["cut", "lost", "added", "flipped", "flipped"])
    if kind == "cut":
        return data[:at]
    if kind == "lost":
        return data[:at] + data[at + length :]
    if kind == "added":
        return data[:at] + chance.randbytes(length) + data[at:]
    flipped = bytearray(data)
    flipped[at] ^= 1 << chance.randrange(8)
    return bytes(flipped)


def value_damaged(data: bytes, chance: random.Random) -> bytes:
    """One value of a JSON text replaced or removed."""
    root = json.loads(data)
    places = list(_places(root))
    holder, key = chance.choice(places)
    if isinstance(holder, dict) and chance.random() < 0.2:
        del holder[key]
    else:
        holder[key] = chance.choice(ODD)
    return json.dumps(root).encode()


def line_damaged(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines()
    at = chance.randrange(len(lines))
    lines[at] = value_damaged(lines[at], chance)
    return b"\n".join(lines)


def header_damaged(data: bytes, chance: random.Random) -> bytes:
    """The JSON header of a safetensors file; its tensors have no checksum of their own."""
    end = 8 + int.from_bytes(data[:8], "little")
    if chance.random() < 0.5:
        header = value_damaged(data[8:end], chance)
        return len(header).to_bytes(8, "little") + header + data[end:]
    return bytes_damaged(data[:end], chance) + data[end:]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 3)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def survive(path: Path, damage: Damage, read: Callable[[], object], expected: object) -> int:
    """Damages a file again and again; returns how often that was noticed."""
    sound, chance, noticed = path.read_bytes(), random.Random(path.name), 0
    for number in range(ROUNDS):
        path.write_bytes(damage(sound, chance))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = read()
        except MoegenError:
            noticed += 1
        else:
            assert found == expected, f"{path.name}, round {number}: damage changed the answer"
    path.write_bytes(sound)
    assert read() == expected
    return noticed


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    return reference_package(SPEC, tmp_path_factory.mktemp("package"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tensors = per_expert(random_weights(experts=7), "model.layers.0.mlp.experts", LEAVES)
    folder = write_checkpoint(tmp_path / "checkpoint", tensors, MODELOPT_NVFP4, experts=7, shards=2)
    quantization = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"], "group_size": 16}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    return folder


@pytest.fixture
def serve(package: TestPackage, checkpoint: Path) -> Callable[[], object]:
    """Loads everything anew and gives the bytes of one call."""

    def call() -> object:
        fresh = TestPackage(directory=package.directory, store=ArtifactStore(package.store.home))
        layer = fresh.load().from_checkpoint(checkpoint, 0)
        return layer(*make_inputs(layer, 3)).view(torch.uint8).numpy().tobytes()

    return call


@pytest.mark.parametrize("damage", [bytes_damaged, value_damaged])
def test_manifest(package: TestPackage, serve: Callable[[], object], damage: Damage) -> None:
    assert survive(package.directory / "manifest.json", damage, serve, serve()) >= ROUNDS // 2


@pytest.mark.parametrize("damage", [bytes_damaged, value_damaged])
def test_bundle(package: TestPackage, serve: Callable[[], object], damage: Damage) -> None:
    (bundle,) = (package.store.home / "bundles").rglob("*.json")
    assert survive(bundle, damage, serve, serve()) >= ROUNDS // 2


@pytest.mark.parametrize("name", ["manifest.json", "op.json"])
def test_artifact(package: TestPackage, serve: Callable[[], object], tmp_path: Path, name: str) -> None:
    """The kernel that every pipeline starts with. A damaged entry is moved aside, so it is put back for each round."""
    expected = serve()
    home, kept = package.store.home, tmp_path / "kept"
    shutil.copytree(home, kept)
    (bundle,) = (home / "bundles").rglob("*.json")
    (key,) = {
        key for variant, key in json.loads(bundle.read_text())["artifacts"].items() if variant.startswith("route")
    }
    path = entry_directory(home, key) / name

    def put_back() -> object:
        try:
            return serve()
        finally:
            shutil.rmtree(home)
            shutil.copytree(kept, home)

    assert survive(path, bytes_damaged, put_back, expected) >= ROUNDS // 2


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("damage", [bytes_damaged, value_damaged])
def test_checkpoint_json(checkpoint: Path, serve: Callable[[], object], name: str, damage: Damage) -> None:
    assert survive(checkpoint / name, damage, serve, serve()) > 0


def test_compressed_tensors_config(package: TestPackage, tmp_path: Path) -> None:
    tensors = per_expert(random_weights(experts=7), "model.layers.0.mlp.experts", LEAVES, compressed=True)
    folder = write_checkpoint(tmp_path / "checkpoint", tensors, COMPRESSED_NVFP4, experts=7)

    def excluded() -> object:
        return package.load().read(folder, 0).experts

    assert survive(folder / "config.json", value_damaged, excluded, 7) > 0


def test_safetensors_header(checkpoint: Path, serve: Callable[[], object]) -> None:
    path = checkpoint / "model-00001-of-00002.safetensors"
    assert survive(path, header_damaged, serve, serve()) >= ROUNDS // 2


@pytest.mark.parametrize("damage", [bytes_damaged, value_damaged])
def test_table(tmp_path: Path, damage: Damage) -> None:
    path = tmp_path / "quickstart-cpu.table.json"
    shutil.copy(RECORDED / path.name, path)
    assert survive(path, damage, lambda: tables.load(path).digest, tables.load(path).digest) >= ROUNDS // 2


@pytest.mark.parametrize("damage", [bytes_damaged, line_damaged])
def test_pack(tmp_path: Path, damage: Damage) -> None:
    path = tmp_path / "quickstart-cpu.jsonl"
    shutil.copy(RECORDED / path.name, path)

    def read() -> object:
        return {record.id for record in read_pack(path)}

    assert survive(path, damage, read, read()) >= ROUNDS // 2


def test_database(tmp_path: Path) -> None:
    path = tmp_path / "trials.db"
    with TrialDatabase(path) as database:
        database.add(read_pack(RECORDED / "quickstart-cpu.jsonl"))

    def read() -> object:
        for name in ("trials.db-wal", "trials.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        with TrialDatabase(path) as database:
            return {result.trial.id for result in database.results()}

    survive(path, bytes_damaged, read, read())
