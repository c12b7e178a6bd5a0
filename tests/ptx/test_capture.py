"""Launch capture, dependent launches, recordings, the runner, the command line."""

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ptx.snippets import aligned, ptx
from typer.testing import CliRunner

from benchmarks.ptx.sm100a import published
from moegen.build.gxx import tvm_ffi_flags
from moegen.core.enums import Target
from moegen.core.errors import StoreError
from moegen.core.runner import Runner
from moegen.ptx import (
    ADVERSARIES,
    CaptureError,
    Check,
    ExecutionError,
    Numerics,
    Options,
    RecordError,
    Severity,
    capture,
    tensormap,
)
from moegen.ptx.cli import app
from moegen.ptx.record import Recording, replay
from moegen.ptx.runner import InterpreterRunner

SCALE = ptx("    ld.global.u32 %r5, [%rd4];\n    mul.lo.u32 %r5, %r5, 3;\n    st.global.u32 [%rd5], %r5;").replace(
    "entry k(", "entry scale("
)

HOST = r"""
#include <stdint.h>
#include <string.h>
struct attribute { uint32_t id, pad, value[16]; };
struct config { uint32_t grid[3], block[3], shared; void* stream; struct attribute* attributes; uint32_t count; };
int cuLibraryGetKernel(const void**, void*, const char*);
int cuLaunchKernelEx(const struct config*, const void*, void**, void**);
int cuDeviceGetAttribute(int*, int, int);
int go(const char* name, void* in, void* out, uint32_t grid, uint32_t cluster, uint32_t dependent) {
  const void* kernel;
  struct attribute attributes[2];
  memset(attributes, 0xAB, sizeof attributes);
  struct config config = {{grid, 1, 1}, {32, 1, 1}, 0, 0, attributes, 0};
  void* arguments[] = {&in, &out};
  if (cluster > 1) {
    attributes[config.count].id = 4;
    attributes[config.count].value[0] = cluster;
    attributes[config.count].value[1] = attributes[config.count].value[2] = 1;
    ++config.count;
  }
  if (dependent) {
    attributes[config.count].id = 6;
    attributes[config.count++].value[0] = 1;
  }
  if (cuLibraryGetKernel(&kernel, 0, name)) return 1;
  return cuLaunchKernelEx(&config, kernel, arguments, 0);
}
int ask(int id) { int value = -1; return cuDeviceGetAttribute(&value, id, 0) ? -1 : value; }
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A host library that launches through the driver's interface."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "host.c").write_text(HOST)
    capture.runtime()
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "host.c", "-o", "host.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "host.so"))
    library.go.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_uint32,
        ctypes.c_uint32,
    ]
    return library


def arrays(count: int = 128) -> tuple[Any, Any]:
    return np.arange(count, dtype=np.uint32), np.zeros(count, np.uint32)


def session_for(
    *data: Any, text: str = SCALE, options: Options | None = None, recorder: Recording | None = None
) -> capture.Session:
    session = capture.Session(options, recorder)
    session.add_ptx(text, "scale.ptx")
    for number, array in enumerate(data):
        session.register(array, f"data {number}")
    return session


def test_a_launch_through_the_driver_interface(host: ctypes.CDLL) -> None:
    x, y = arrays()
    session = session_for(x, y)
    result = session.call(host.go, b"scale", x.ctypes.data, y.ctypes.data, 4, 2, 0)
    assert y.tolist() == (3 * x).tolist()
    assert result.stats.opcodes["mul.lo.u32"] == 4
    assert result.stats.bytes_moved == {"global read": 512, "global write": 512}


def test_what_the_capture_refuses(host: ctypes.CDLL) -> None:
    x, y = arrays()
    session = session_for(x, y)
    with pytest.raises(CaptureError, match="nosuch"):
        session.call(host.go, b"nosuch", x.ctypes.data, y.ctypes.data, 4, 1, 0)
    with pytest.raises(CaptureError, match="launched no kernel"):
        session.call(lambda: None)
    with session.active(), pytest.raises(CaptureError, match="another"), capture.Session().active():
        pass
    assert host.go(b"scale", x.ctypes.data, y.ctypes.data, 4, 1, 0) != 0, "a launch outside a session fails"
    with pytest.raises(ExecutionError, match="no allocation"):
        session.call(host.go, b"scale", x.ctypes.data, 4096, 4, 1, 0)


def test_device_attributes(host: ctypes.CDLL) -> None:
    session = capture.Session()
    with session.active():
        assert host.ask(97) == 232448
        assert host.ask(16) == 4
    with pytest.raises(CaptureError, match="attribute 5"), session.active():
        assert host.ask(5) == -1


# -- programmatic dependent launch -------------------------------------------------------------------------------

PRIMARY = ptx(
    """
    {early}
    ld.global.u32 %r5, [%rd4];
    mul.lo.u32 %r5, %r5, 3;
    st.global.u32 [%rd5], %r5;"""
).replace("entry k(", "entry primary(")
SECONDARY = ptx(
    """
    {wait}
    ld.global.u32 %r5, [%rd4];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%rd5], %r5;"""
).replace("entry k(", "entry secondary(")


def chain(host: ctypes.CDLL, early: str, wait: str, options: Options) -> bool:
    """Runs primary and secondary; whether the result is right."""
    x, y = arrays(256)
    z = np.zeros(256, np.uint32)
    session = session_for(x, y, z, text=PRIMARY.replace("{early}", early), options=options)
    session.add_ptx(SECONDARY.replace("{wait}", wait))
    with session.active():
        assert host.go(b"primary", x.ctypes.data, y.ctypes.data, 8, 1, 0) == 0
        assert host.go(b"secondary", y.ctypes.data, z.ctypes.data, 8, 1, 1) == 0
    return bool((z == 3 * x + 1).all())


@pytest.mark.parametrize("seed", range(4))
def test_a_dependent_launch_waits_for_its_primary(host: ctypes.CDLL, seed: int) -> None:
    options = Options(seed=seed, resident_clusters=0, slice_steps=3)
    assert chain(host, "griddepcontrol.launch_dependents;", "griddepcontrol.wait;", options)
    assert chain(host, "", "", options), "without a trigger the secondary starts after the primary"


def test_a_missing_dependency_wait_is_seen(host: ctypes.CDLL) -> None:
    early = "griddepcontrol.launch_dependents;"
    options = [Options(seed=seed, resident_clusters=0, slice_steps=3) for seed in range(6)]
    assert not all(chain(host, early, "", one) for one in options)
    late = Options(seed=0, resident_clusters=0, early_dependents=False)
    assert chain(host, early, "", late)


# -- recordings and the command line -----------------------------------------------------------------------------


@pytest.fixture
def recorded(host: ctypes.CDLL, tmp_path: Path) -> Path:
    x, y = arrays()
    pointers = np.array([x.ctypes.data + 64, 7], np.uint64)
    recorder = Recording()
    session = session_for(x, y, pointers, recorder=recorder)
    session.call(host.go, b"scale", x.ctypes.data, y.ctypes.data, 4, 1, 0)
    session.call(host.go, b"scale", y.ctypes.data, x.ctypes.data, 4, 1, 0)
    path = tmp_path / "scale.npz"
    recorder.save(path)
    return path


def test_replay_gives_equal_bytes_at_other_addresses(recorded: Path) -> None:
    outcome = replay(recorded, Options(seed=5, races=True))
    assert outcome.equal
    assert len(outcome.results) == 2
    final = outcome.memory[1]["data 0 #" + next(k for k in outcome.memory[1] if k.startswith("data 0")).split("#")[1]]
    assert final.view(np.uint32).tolist() == [9 * k for k in range(128)]


def test_a_changed_kernel_shows_in_the_replay(recorded: Path, tmp_path: Path) -> None:
    with np.load(recorded) as archive:
        data = {name: archive[name] for name in archive.files}
    text = data["p0"].tobytes().decode().replace("%r5, 3;", "%r5, 4;")
    data["p0"] = np.frombuffer(text.encode(), np.uint8)
    changed = tmp_path / "changed.npz"
    np.savez(changed, **data)
    outcome = replay(changed)
    assert not outcome.equal
    result = CliRunner().invoke(app, ["run", str(changed)])
    assert result.exit_code == 1
    assert "bytes of data" in result.output


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"{}"])
def test_damaged_recordings(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.npz"
    path.write_bytes(content)
    with pytest.raises(RecordError):
        replay(path)


def test_recordings_of_another_format(recorded: Path, tmp_path: Path) -> None:
    with np.load(recorded) as archive:
        data = {name: archive[name] for name in archive.files}
    index = json.loads(data["index"].tobytes())
    data["index"] = np.frombuffer(json.dumps(index | {"format": 99}).encode(), np.uint8)
    np.savez(tmp_path / "later.npz", **data)
    with pytest.raises(RecordError, match="99"):
        replay(tmp_path / "later.npz")


def test_command_line(recorded: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["run", str(recorded), "--seed", "3", "--policy", "lazy", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["equal"] is True
    traced = runner.invoke(app, ["trace", str(recorded), "--cta", "2", "--limit", "50"])
    assert traced.exit_code == 0
    assert "mul.lo.u32 %r5" in traced.output
    assert "32 lanes" in traced.output
    counted = json.loads(runner.invoke(app, ["stats", str(recorded), "--json"]).output)
    assert counted[0]["opcodes"]["mul.lo.u32"] == 4
    assert counted[0]["bytes"]["global write"] == 512
    assert list(counted[0]["roles"]) == ["scale/epilogue"]
    assert "mul.lo.u32" in runner.invoke(app, ["stats", str(recorded)]).output
    (tmp_path / "k.ptx").write_text(SCALE)
    checked = runner.invoke(app, ["check", str(tmp_path / "k.ptx")])
    assert "16 parameter bytes" in checked.output


# -- the runner --------------------------------------------------------------------------------------------------

ENTRY = r"""
#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <cstdint>
struct Config { uint32_t grid[3], block[3], shared; void* stream; void* attributes; uint32_t count; };
static void scale(tvm::ffi::TensorView in, tvm::ffi::TensorView out, int64_t blocks) {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  auto get = reinterpret_cast<int (*)(const void**, void*, const char*)>(dlsym(cuda, "cuLibraryGetKernel"));
  auto launch = reinterpret_cast<int (*)(const Config*, const void*, void**, void**)>(dlsym(cuda, "cuLaunchKernelEx"));
  const void* kernel = nullptr;
  get(&kernel, nullptr, "scale");
  void* a = in.data_ptr();
  void* b = out.data_ptr();
  if (in.device().device_type != kDLCUDA) b = nullptr;
  void* arguments[] = {&a, &b};
  Config config = {{uint32_t(blocks), 1, 1}, {32, 1, 1}, 0, nullptr, nullptr, 0};
  if (blocks) launch(&config, kernel, arguments, nullptr);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale)
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    (folder / "kernel.cc").write_text(ENTRY)
    (folder / "kernel.ptx").write_text(SCALE)
    include, link = tvm_ffi_flags()
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", *include, "kernel.cc", "-o", "kernel.so", *link, "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return folder


def test_the_runner_runs_an_artifact_under_several_schedules(artifact: Path) -> None:
    runner = InterpreterRunner(Target.SM_90A, ADVERSARIES[:3])
    assert isinstance(runner, Runner)
    assert runner.device_type == "cpu"
    assert runner.facts.cores == 4
    assert runner.facts.target is Target.SM_90A
    kernel = runner.load(artifact, "scale")
    x, y = torch.arange(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    kernel(x, y, 4)
    assert torch.equal(y, 3 * x)
    assert len(runner.results) == 3
    kernel(x, y, 0)
    assert len(runner.results) == 3
    with pytest.raises(ExecutionError, match="no allocation"):
        kernel(x, y, 8)


def test_the_runner_tells_results_that_depend_on_the_schedule(artifact: Path, tmp_path: Path) -> None:
    for name in ("kernel.so", "kernel.cc"):
        (tmp_path / name).write_bytes((artifact / name).read_bytes())
    racy = ptx("    atom.global.add.u32 %r5, [%rd1], 1;\n    st.global.u32 [%rd5], %r5;").replace(
        "entry k(", "entry scale("
    )
    (tmp_path / "kernel.ptx").write_text(racy)
    schedules = [Options(seed=seed, slice_steps=2, resident_clusters=0) for seed in range(4)]
    kernel = InterpreterRunner(Target.SM_100A, schedules).load(tmp_path, "scale")
    with pytest.raises(ExecutionError, match="depend on the schedule"):
        kernel(torch.zeros(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32), 4)


def test_the_runner_refuses_what_it_cannot_load(artifact: Path, tmp_path: Path) -> None:
    runner = InterpreterRunner(Target.SM_90A)
    with pytest.raises(StoreError):
        runner.load(tmp_path, "scale")
    with pytest.raises(StoreError):
        runner.load(artifact, "nosuch")
    with pytest.raises(CaptureError):
        InterpreterRunner(Target.CPU)


# -- a published kernel ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gemm() -> Any:
    """Three tiles for two CTAs, more K blocks than pipeline stages."""
    return published.gemm((384, 128, 1280, 1), (128, 128), (1, 1), active=2)


@pytest.mark.parametrize("options", ADVERSARIES)
def test_a_published_gemm_is_right_under_every_schedule(gemm: Any, options: Options) -> None:
    # The published kernel releases accumulators without waiting for their loads; see docs/ptx.md.
    lenient = Options(**{**options.__dict__, "severity": {Check.TMEM_LOAD_WAIT: Severity.WARNING}})
    row, result = gemm.run(lenient)
    assert row == {"values": 384 * 128, "mismatches": 0}
    assert result.errors == []
    assert {report.check for report in result.reports} <= {Check.TMEM_LOAD_WAIT}
    roles = {name.split("/")[1]: part["warps"] for name, part in result.stats.roles.items()}
    assert roles == {"epilogue": [0, 1, 2, 3], "mma": [4], "load": [5]}


def test_a_published_gemm_of_cta_pairs_has_no_findings() -> None:
    case = published.gemm((512, 128, 768, 1), (256, 128), (2, 1), active=1)
    row, result = case.run(Options(seed=4, races=True))
    assert row["mismatches"] == 0
    assert result.reports == []


def test_its_recording_replays(gemm: Any, tmp_path: Path) -> None:
    recorder = Recording()
    session = capture.Session(Options(seed=1), recorder)
    for buffer in gemm.buffers:
        session.register(buffer)
    gemm.output[:] = 0
    session.call(gemm.call, *gemm.arguments)
    recorder.save(tmp_path / "gemm.npz")
    assert (tmp_path / "gemm.npz").stat().st_size < 2_000_000
    assert replay(tmp_path / "gemm.npz", Options(seed=9)).equal
    # Its tensor maps were written by the compiler's host code: decoding and encoding them gives the same bits.
    params = recorder.steps[0].launches[0].params
    maps = [
        params[k : k + 128] for k in range(0, len(params) - 127, 64) if params[k + 8] & 0x0F == 2 and params[k + 10] & 4
    ]
    decoded = []
    for raw in maps:
        try:
            decoded.append((raw, tensormap.decode(raw)))
        except tensormap.TensorMapError:
            continue
    assert len(decoded) >= 5
    for raw, item in decoded:
        # Word 2 holds a size hint, and what follows word 14 is not used.
        assert tensormap.encode(item)[12:60] == raw[12:60]
        assert tensormap.encode(item)[:8] == raw[:8]


def test_random_data_stays_within_the_models_tolerance() -> None:
    case = published.gemm((128, 128, 1024, 1), (128, 128), (1, 1), wide=True)
    exact, _ = case.run(Options(numerics=Numerics.EXACT))
    first = case.output.copy()
    case.run(Options(numerics=Numerics.MMA_SIM))
    both = [a.view(np.uint16).astype(np.uint32) << 16 for a in (first, case.output)]
    values = [b.view(np.float32) for b in both]
    assert exact["mismatches"] <= case.want.size // 100
    # Few bf16 results differ between the models, and then by one unit.
    differing = values[0] != values[1]
    assert differing.mean() < 0.01
    assert np.abs(values[0] - values[1]).max() <= 2**-7 * np.abs(values[0]).max()


def test_aligned_memory_is_what_device_code_expects() -> None:
    assert aligned(100).ctypes.data % 512 == 0
