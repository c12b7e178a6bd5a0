"""An artifact's key sees every field that changes its bytes, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moegen.core.canonical import plain
from moegen.store.keys import ArtifactKey, differences, key_from_json
from tests.faults import forgotten, guards
from tests.store.helpers import make_key

CHANGED = {
    "source": "6" * 64,
    "closure": "d" * 64,
    "toolchain": (("g++", "12.3.0"), ("tvm_ffi", "0.1.15")),
    "arch": "x86-64-v2",
    "options": ("-DB=2", "-DA=1"),
    "symbol": "combine",
    "abi": "tvm-ffi-0.2-linux-x86_64-64",
    "schema": 2,
}
text = st.text(max_size=8)
keys = st.builds(
    ArtifactKey,
    source=text,
    closure=text,
    toolchain=st.lists(st.tuples(text, text), max_size=3).map(tuple),
    arch=text,
    options=st.lists(text, max_size=3).map(tuple),
    symbol=text,
    abi=text,
)


@pytest.mark.parametrize("field", CHANGED)
def test_each_field_changes_the_digest(field: str, tmp_path: Path) -> None:
    @guards(forgotten(ArtifactKey, field))
    def changed(*, tmp_path: Path) -> None:
        assert make_key(**{field: CHANGED[field]}).digest != make_key().digest

    changed(tmp_path=tmp_path)


def test_every_field_is_covered() -> None:
    assert set(CHANGED) == set(ArtifactKey.__dataclass_fields__)


@given(left=keys, right=keys)
def test_digest_is_injective_and_differences_are_complete(left: ArtifactKey, right: ArtifactKey) -> None:
    assert (left.digest == right.digest) == (left == right)
    assert bool(differences(left, right)) == (left != right)


@given(key=keys)
def test_json_round_trip(key: ArtifactKey) -> None:
    assert key_from_json(plain(key)) == key  # type: ignore[arg-type]


def test_digest_does_not_depend_on_the_process(tmp_path: Path) -> None:
    code = "from tests.store.helpers import make_key; print(make_key().digest)"
    root = Path(__file__).parents[2]
    for seed, home in (("1", "/nonexistent"), ("2", str(tmp_path))):
        environment = os.environ | {"PYTHONHASHSEED": seed, "HOME": home, "PYTHONPATH": str(root), "USER": home}
        said = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == make_key().digest


def test_differences_name_toolchain_facts() -> None:
    found = differences(make_key(), make_key(toolchain=(("g++", "13.1"), ("ld", "2.40"))))
    assert {(item.field, item.wanted, item.found) for item in found} == {
        ("toolchain.g++", "12.2.0", "13.1"),
        ("toolchain.ld", "None", "2.40"),
        ("toolchain.tvm_ffi", "0.1.15", "None"),
    }
