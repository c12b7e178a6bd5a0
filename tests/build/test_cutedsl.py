"""CuTeDSL in worker processes: results as values, reproducible objects, a dead worker replaced."""

import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest import mock

import pytest

from moegen.build import cutedsl
from moegen.build.cutedsl import CuTeDSL, _Worker, _worker_environment
from moegen.build.cutedsl_worker import OBJECT_FILE
from moegen.build.toolchain import CUBIN, OBJECT, PTX, CompileJob, Status
from moegen.core.errors import StoreFull, ToolchainMissing
from tests.build.helpers import TEMPLATES, compile_all

DOUBLE = """\
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream


def fake_arguments():
    return make_fake_compact_tensor(cutlass.Float32, (128,)), make_fake_stream(use_tvm_ffi_env_stream=True)


@cute.kernel
def double_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = x[thread] * 2.0


double_kernel.set_name_prefix("double_kernel", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def double(x: cute.Tensor, stream):
    double_kernel(x).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)
"""


def job(folder: Path, text: str, name: str) -> CompileJob:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(text)
    return CompileJob(name=name, source=path, symbol="double", include=(TEMPLATES,))


def test_good_bad_and_crashing_sources(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path / "src", "import os\nos.kill(os.getpid(), 9)\n", "crash"),
        job(tmp_path / "src", "import sys\nprint('a last word', file=sys.stderr)\nraise SystemExit(3)\n", "exits"),
        job(tmp_path / "src", DOUBLE.replace("* 2.0", "* undefined"), "bad"),
        job(tmp_path / "src", DOUBLE, "good"),
    ]
    outcomes = compile_all(CuTeDSL("sm_100a"), jobs, tmp_path / "work", parallel=1)
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "crash": Status.CRASH,
        "exits": Status.CRASH,
        "bad": Status.COMPILE_ERROR,
        "good": Status.OK,
    }
    assert "ended with -9" in outcomes["crash"].log
    assert "a last word" in outcomes["exits"].log
    assert "undefined" in outcomes["bad"].log
    good = outcomes["good"].files
    assert set(good) == {OBJECT, OBJECT_FILE, PTX, CUBIN}
    assert ".entry double_kernel" in good[PTX].read_text()
    assert good[CUBIN].read_bytes() in good[OBJECT].read_bytes()
    assert not list((tmp_path / "src").glob("__pycache__"))
    assert not list(TEMPLATES.glob("sm_100a/**/__pycache__"))


def test_objects_do_not_depend_on_place_or_process(tmp_path: Path) -> None:
    objects = []
    for number in ("1", "22"):
        made = job(tmp_path / number / "src", DOUBLE, "double")
        outcome = compile_all(CuTeDSL("sm_100a"), [made], tmp_path / number / "work")["double"]
        assert outcome.status is Status.OK, outcome.log
        objects.append(outcome.files[OBJECT].read_bytes())
    assert objects[0] == objects[1]
    assert str(tmp_path).encode() not in objects[0]


def test_hanging_worker_is_ended(tmp_path: Path) -> None:
    source = tmp_path / "hang.py"
    source.write_text("import time\ntime.sleep(60)\n")
    worker = _Worker(tmp_path)
    request = {"source": str(source), "symbol": "f", "arch": "sm_100a", "options": [], "include": [], "out": "out"}
    status, log = worker.ask(request, limit_s=2.0)
    assert status is Status.TIMEOUT
    assert "no answer in 2 s" in log
    assert not worker.alive


def test_failure_to_publish_does_not_wait_for_compilers(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path / "src", "raise ValueError\n", "quick"),
        job(tmp_path / "src", "import time\ntime.sleep(60)\n", "slow"),
    ]

    def full(*_: object) -> None:
        raise StoreFull("no space left")

    begin = time.monotonic()
    (tmp_path / "work").mkdir()
    with pytest.raises(StoreFull):
        CuTeDSL("sm_100a").compile(jobs, tmp_path / "work", 2, full)
    assert time.monotonic() - begin < 50.0


def test_workers_see_no_gpu_and_no_foreign_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    environment = _worker_environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert not any(name.startswith("CUTE_DSL_") for name in environment)


def test_identity_holds_every_distribution_of_the_dsl() -> None:
    identity = dict(CuTeDSL("sm_100a").identity())
    assert {"nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-cu13", "python", "tvm_ffi", "ld"} <= set(identity)
    assert not any("/" in value for value in identity.values())


@pytest.mark.parametrize(
    ("versions", "what"),
    [
        ({}, "nvidia-cutlass-dsl is not installed"),
        ({"nvidia-cutlass-dsl": "4.8.1"}, "libs-cu13 is not installed"),
        ({"nvidia-cutlass-dsl": "4.6.0", "nvidia-cutlass-dsl-libs-cu13": "4.6.0"}, r"4\.6\.0 is too old, 4\.8\.1"),
        ({"nvidia-cutlass-dsl": "4.9.0", "nvidia-cutlass-dsl-libs-cu13": "4.8.1"}, "mixed versions"),
    ],
)
def test_unfit_installation_is_one_clear_line(versions: dict[str, str], what: str) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    with mock.patch.object(cutedsl, "version", version), pytest.raises(ToolchainMissing, match=what) as caught:
        CuTeDSL("sm_100a").discover()
    assert 'pip install "moegen[cutedsl]"' in str(caught.value)


def test_builder_does_not_import_the_dsl() -> None:
    code = "import sys, moegen.build.builder, moegen.build.cutedsl; assert 'cutlass' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(TEMPLATES.parent)})
