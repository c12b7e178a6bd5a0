"""nvcc: one object with its cubin inside and its PTX beside it, loadable where there is no GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from moegen.build.nvcc import ALLOW_SPILLS, Nvcc, usage
from moegen.build.toolchain import CUBIN, OBJECT, PTX, CompileJob, Outcome, Status
from tests import faults
from tests.build.helpers import TEMPLATES, compile_all
from tests.faults import guards

SCALE = """\
#include <cstdint>
struct Params { float* x; std::int64_t n; float factor; };
#ifdef __CUDACC__
extern "C" __global__ void scale_kernel(const __grid_constant__ Params p) {
  const std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x;
  if (i < p.n) p.x[i] = p.x[i] * p.factor + 1.0f;
}
#else
#include "cuda/launch.h"
static moegen::Kernel scale_kernel("scale_kernel", 0);
static void scale(tvm::ffi::TensorView x) {
  const Params params{static_cast<float*>(x.data_ptr()), x.numel(), 2.0f};
  scale_kernel.launch({.grid_x = 1, .threads = 256}, x.device(), params);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale)
MOEGEN_EXPORT_PREPARE()
#endif
"""
#: Sixteen registers a thread cannot hold forty live values.
SPILLS = """\
#ifdef __CUDACC__
extern "C" __global__ void __launch_bounds__(1024, 2) spill_kernel(float* x) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
  for (int j = 0; j < 64; ++j)
    for (int i = 0; i < 64; ++i) v[i] = __fmaf_rn(v[i], v[(i * 7 + 3) % 64], 1.0f);
  for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = v[i];
}
#endif
"""
LOG = """\
ptxas info    : Function properties for a
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
    0 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
"""


def job(folder: Path, text: str, name: str, *options: str) -> CompileJob:
    path = folder / f"{name}.cu"
    path.write_text(text)
    return CompileJob(name=name, source=path, symbol="scale", options=options, include=(TEMPLATES,))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("cuda")
    jobs = [
        job(folder, SCALE, "scale"),
        job(folder, "#ifdef __CUDACC__\n__global__ void f() { undeclared(); }\n#endif\n", "bad"),
        job(folder, SCALE.replace("moegen::Kernel scale_kernel", "moegen::Kernl scale_kernel"), "badhost"),
    ]
    return compile_all(Nvcc("sm_90a"), jobs, folder / "work")


def test_object_cubin_and_ptx(outcomes: dict[str, Outcome]) -> None:
    made = outcomes["scale"]
    assert made.status is Status.OK, made.log
    assert set(made.files) == {OBJECT, CUBIN, PTX}
    cubin, ptx = made.files[CUBIN].read_bytes(), made.files[PTX].read_text()
    assert cubin.startswith(b"\x7fELF")
    assert cubin in made.files[OBJECT].read_bytes()
    assert ".target sm_90a" in ptx
    assert ".entry scale_kernel" in ptx
    assert made.meta["registers"] > 0
    assert made.meta["spill_bytes"] == 0


def test_contraction_is_never_the_compilers_choice(outcomes: dict[str, Outcome]) -> None:
    ptx = outcomes["scale"].files[PTX].read_text()
    assert "fma" not in ptx
    assert "mul" in ptx


def test_no_path_reaches_object_or_cubin(outcomes: dict[str, Outcome]) -> None:
    for name in (OBJECT, CUBIN):
        data = outcomes["scale"].files[name].read_bytes()
        for place in (str(outcomes["scale"].files[name].parent), str(TEMPLATES), "/usr/local", "site-packages"):
            assert place.encode() not in data


def test_loads_and_fails_clearly_without_a_driver(outcomes: dict[str, Outcome]) -> None:
    """In a process of its own: another test may have loaded a stand-in driver into this one."""
    code = f"""
import torch, tvm_ffi
if torch.cuda.is_available():
    raise SystemExit("there is a driver")
module = tvm_ffi.load_module({str(outcomes["scale"].files[OBJECT])!r})
for call in (lambda: module.scale(torch.zeros(4)), lambda: module.prepare(0)):
    try:
        call()
    except RuntimeError as error:
        print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    refusals = said.stdout.count("no CUDA driver on this machine")
    assert refusals == 2 or said.stderr == "there is a driver\n", said


def test_errors_of_either_half_are_results(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["bad"].status is outcomes["badhost"].status is Status.COMPILE_ERROR
    assert "undeclared" in outcomes["bad"].log
    assert "Kernl" in outcomes["badhost"].log
    assert outcomes["bad"].files == outcomes["badhost"].files == {}


@guards(faults.spills_pass)
def test_spills_fail_unless_the_source_allows_them(tmp_path: Path) -> None:
    jobs = [job(tmp_path, SPILLS.replace("#endif", "#else\n#endif"), "strict")]
    outcome = compile_all(Nvcc("sm_90a"), jobs, tmp_path / "work")["strict"]
    assert outcome.status is Status.COMPILE_ERROR
    assert "spill to local memory; option allow-spills is not set" in outcome.log
    assert outcome.meta["spill_bytes"] > 0


def test_allowed_spills_are_reported(tmp_path: Path) -> None:
    outcome = compile_all(Nvcc("sm_90a"), [job(tmp_path, SPILLS, "loose", ALLOW_SPILLS)], tmp_path / "work")["loose"]
    assert outcome.status is Status.OK, outcome.log
    assert outcome.meta["spill_bytes"] > 0


def test_usage_is_the_worst_of_all_kernels() -> None:
    assert usage(LOG) == {"registers": 255, "stack_bytes": 16, "spill_bytes": 20}
    assert usage("") == {"registers": 0, "stack_bytes": 0, "spill_bytes": 0}


def test_identity_names_both_compilers() -> None:
    identity = dict(Nvcc("sm_90a").identity())
    assert {"nvcc", "cccl", "g++", "ld", "libc", "tvm_ffi", "flags"} == set(identity)
    assert identity["cccl"].isdigit()
    assert "--fmad=false" in identity["flags"]
    assert not any(value.startswith("/") for value in identity.values())
