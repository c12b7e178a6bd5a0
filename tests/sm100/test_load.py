"""A CuTeDSL object loads beside the DSL's host runtime alone: serving imports no compiler."""

import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from moegen.build.cutedsl import CuTeDSL
from moegen.build.toolchain import OBJECT, Status
from moegen.core.errors import MoegenError, StoreError
from moegen.runtime.runners import dsl_runtime
from moegen.runtime.runners.cpu import load_entry, load_object
from tests.build.helpers import compile_all
from tests.build.test_cutedsl import DOUBLE, job

ROOT = Path(__file__).parents[2]
LOAD = """\
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from moegen.runtime.runners.cpu import load_object
from moegen.runtime.runners.dsl_runtime import load_runtime
load_runtime()
assert load_object(Path(sys.argv[1]), "double").implements_function("double")
assert "cutlass" not in sys.modules
"""


def test_object_loads_with_the_runtime_and_without_the_compiler(tmp_path: Path) -> None:
    outcome = compile_all(CuTeDSL("sm_100a"), [job(tmp_path, DOUBLE, "double")], tmp_path / "work")["double"]
    assert outcome.status is Status.OK, outcome.log
    folder = outcome.files[OBJECT].parent
    said = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), str(ROOT)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr


def test_missing_runtime_is_named() -> None:
    with (
        mock.patch.object(dsl_runtime, "DISTRIBUTION", "not-a-distribution"),
        pytest.raises(MoegenError, match='pip install "moegen'),
    ):
        dsl_runtime.runtime_library()


def test_unloadable_object_and_missing_symbol_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="moegen build"):
        load_object(tmp_path, "double")
    (tmp_path / OBJECT).write_bytes(b"not an object")
    with pytest.raises(StoreError, match=r"kernel\.so"):
        load_entry(tmp_path, "double")
