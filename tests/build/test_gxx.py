"""g++ through ninja: results as values, no path in an object, no work left behind."""

import ctypes
import os
import time
from pathlib import Path
from unittest import mock

import pytest

from moegen.build import gxx
from moegen.build.gxx import FLAGS, Gxx
from moegen.build.ninja import Step, StepResult, ninja_program, run_steps
from moegen.build.timing import FLOOR_S, TimeLimit
from moegen.build.toolchain import OBJECT, CompileJob, Status, abi_tag
from moegen.core.cpu import host_cpu_arch
from moegen.core.errors import ToolchainMissing
from tests import faults
from tests.build.helpers import PLAIN_C, compile_all, fake_program
from tests.faults import guards

V3_FLAGS = "flags : avx avx2 bmi1 bmi2 f16c fma abm movbe xsave cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"


def job(folder: Path, text: str, name: str = "kernel", **facts: object) -> CompileJob:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.cc"
    path.write_text(text)
    return CompileJob(name=name, source=path, symbol="f", **facts)  # type: ignore[arg-type]


def test_good_and_bad_sources_side_by_side(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path / "src", PLAIN_C.format(symbol="f", value=5), "good"),
        job(tmp_path / "src", "int f( {", "bad"),
        job(tmp_path / "src", "#if N != 3\n#error wrong options\n#endif\n", "option", options=("-DN=3",)),
    ]
    outcomes = compile_all(Gxx(), jobs, tmp_path / "work")
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "good": Status.OK,
        "bad": Status.COMPILE_ERROR,
        "option": Status.OK,
    }
    assert ctypes.CDLL(str(outcomes["good"].files[OBJECT])).f() == 5
    assert "error: expected" in outcomes["bad"].log
    assert outcomes["bad"].files == {}
    assert outcomes["good"].seconds > 0


@guards(faults.paths_in_objects)
def test_objects_hold_no_paths_and_are_reproducible(tmp_path: Path) -> None:
    text = '#include "library.h"\n#include <cstdio>\nextern "C" void f() { std::puts(__FILE__); std::puts(where()); }\n'
    objects = []
    for name in ("here", "elsewhere and deeper"):
        library = tmp_path / name / "library"
        library.mkdir(parents=True)
        (library / "library.h").write_text("inline const char* where() { return __FILE__; }\n")
        made = job(tmp_path / name / "src", text, include=(library,))
        outcome = compile_all(Gxx(), [made], tmp_path / name / "work")["kernel"]
        assert outcome.status is Status.OK, outcome.log
        objects.append(outcome.files[OBJECT].read_bytes())
    assert objects[0] == objects[1]
    assert str(tmp_path).encode() not in objects[0]


def test_flags_keep_the_exact_domain() -> None:
    assert {"-std=c++20", "-O3", "-ffp-contract=off", "-fno-fast-math", "-fopenmp"} <= set(FLAGS)
    assert not any("native" in flag for flag in FLAGS)
    assert ("flags", " ".join(FLAGS)) in Gxx().identity()


def test_variables_that_steer_compilers_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "extra.h").write_text("")
    monkeypatch.setenv("CPATH", str(tmp_path / "extra"))
    outcome = compile_all(Gxx(), [job(tmp_path, '#include "extra.h"\n')], tmp_path / "work")["kernel"]
    assert outcome.status is Status.COMPILE_ERROR
    assert "extra.h" in outcome.log


def test_identity_is_the_compilers_not_the_places() -> None:
    identity = dict(Gxx().identity())
    assert set(identity) == {"g++", "ld", "libc", "tvm_ffi", "flags"}
    assert not any("/" in value for value in identity.values())
    assert abi_tag().startswith("tvm-ffi-0.1-linux-")


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("echo 'g++ (Debian) 9.4.0'", "too old, 11.0 is needed"),
        ("echo 'no version here'", "said"),
        ("exit 3", "said"),
    ],
)
def test_unfit_compiler_is_one_clear_line(
    body: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_program(tmp_path / "g++", body)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ToolchainMissing, match=what) as caught:
        Gxx().discover()
    assert "apt-get install g++" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_compiler_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainMissing, match=r"g\+\+ not found on PATH"):
        Gxx().discover()


def test_missing_ninja_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Path(ninja_program()).name == "ninja"
    monkeypatch.setenv("PATH", str(tmp_path))
    with mock.patch.dict("sys.modules", {"ninja": None}), pytest.raises(ToolchainMissing, match="pip install ninja"):
        ninja_program()


def _run(body: str, tmp_path: Path, limit_s: float = 60.0, output: str = "out") -> StepResult:
    program = fake_program(tmp_path / "compiler", body)
    work = tmp_path / "work"
    work.mkdir()
    results: list[StepResult] = []
    step = Step(name="step", program=str(program), arguments=("-x", "a b", "$c"), output=output)
    run_steps([step], work, 1, lambda _, result: results.append(result), limit_s)
    assert len(results) == 1
    return results[0]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("touch out", Status.OK),
        ("echo nothing written", Status.CRASH),
        ("echo error; exit 1", Status.COMPILE_ERROR),
        ("echo 'internal compiler error: in f'; exit 1", Status.CRASH),
        ("kill -9 $$", Status.CRASH),
        ("kill -11 $$", Status.CRASH),
    ],
)
def test_how_a_compiler_ends_is_told_apart(body: str, status: Status, tmp_path: Path) -> None:
    assert _run(body, tmp_path).status is status


def test_hanging_compiler_is_stopped(tmp_path: Path) -> None:
    begin = time.monotonic()
    assert _run("sleep 60", tmp_path, limit_s=0.3).status is Status.TIMEOUT
    assert time.monotonic() - begin < 10.0


def test_arguments_arrive_unchanged(tmp_path: Path) -> None:
    result = _run('cat "${1#@}"; touch out', tmp_path)
    assert result.log.split() == ["-x", "'a", "b'", "'$c'"]


def test_a_step_waits_for_what_it_needs(tmp_path: Path) -> None:
    good = fake_program(tmp_path / "good", 'sleep 0.1; name=$(cat "${1#@}"); echo "$name" > "$name"')
    bad = fake_program(tmp_path / "bad", "exit 1")
    steps = [
        Step(name="second", program=str(good), arguments=("b",), output="b", needs=("a",)),
        Step(name="first", program=str(good), arguments=("a",), output="a"),
        Step(name="broken", program=str(bad), arguments=(), output="c"),
        Step(name="never", program=str(good), arguments=("d",), output="d", needs=("c",)),
    ]
    work = tmp_path / "work"
    work.mkdir()
    order: list[tuple[str, Status]] = []
    run_steps(steps, work, 2, lambda step, result: order.append((step.name, result.status)))
    assert ("first", Status.OK) in order
    assert order.index(("first", Status.OK)) < order.index(("second", Status.OK))
    assert ("broken", Status.COMPILE_ERROR) in order
    assert "never" not in dict(order)


def test_time_limit_follows_what_was_measured() -> None:
    limit = TimeLimit(600.0)
    for seconds in (1.0, 1.0, 1.0, 1.0):
        limit.add(seconds)
    assert limit.seconds == 600.0, "too few to judge"
    limit.add(1.0)
    assert limit.seconds == FLOOR_S
    for _ in range(20):
        limit.add(40.0)
    assert limit.seconds == 200.0


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "arch"),
    [
        ("x86_64", V3_FLAGS, "x86-64-v3"),
        ("x86_64", V3_FLAGS.replace(" avx2", ""), "x86-64-v2"),
        ("x86_64", "", "x86-64-v2"),
        ("aarch64", "", "armv8-a"),
    ],
)
def test_cpu_baseline(machine: str, cpuinfo: str, arch: str) -> None:
    found = host_cpu_arch(machine, cpuinfo)
    assert found.name == arch
    assert bool(found.notice) == (arch == "x86-64-v2")
    assert "avx2" in found.notice or arch != "x86-64-v2"


def test_architecture_is_passed_to_the_compiler(tmp_path: Path) -> None:
    text = "#ifndef __AVX2__\n#error no AVX2\n#endif\n"
    statuses = {
        arch: compile_all(Gxx(arch), [job(tmp_path, text)], tmp_path / arch)["kernel"].status
        for arch in ("x86-64-v2", "x86-64-v3")
    }
    assert statuses == {"x86-64-v2": Status.COMPILE_ERROR, "x86-64-v3": Status.OK}


def test_tvm_ffi_headers_and_library_are_found(tmp_path: Path) -> None:
    import tvm_ffi

    include, link = gxx.tvm_ffi_flags()
    assert any((Path(word) / "tvm" / "ffi").is_dir() for word in include)
    assert "-ltvm_ffi" in link
    text = (
        "#include <tvm/ffi/function.h>\n"
        "static int64_t add(int64_t a, int64_t b) { return a + b; }\n"
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(add, add)\n"
    )
    outcome = compile_all(Gxx(), [job(tmp_path, text)], tmp_path / "work")["kernel"]
    assert outcome.status is Status.OK, outcome.log
    assert tvm_ffi.load_module(str(outcome.files[OBJECT])).add(2, 3) == 5
    assert b"site-packages" not in outcome.files[OBJECT].read_bytes()
