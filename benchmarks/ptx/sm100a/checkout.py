"""NVIDIA's CuTeDSL examples, from a CUTLASS checkout named by MOEGEN_CUTLASS, executed by the interpreter."""

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ptx.sm100a.operands import aligned, make, products
from moegen.ptx import Options, Result, capture

ENVIRONMENT = "MOEGEN_CUTLASS"


def checkout() -> Path:
    """The checkout's root.

    Raises:
        FileNotFoundError: the variable is not set, or names no checkout.
    """
    root = Path(os.environ.get(ENVIRONMENT, ""))
    if not os.environ.get(ENVIRONMENT) or not (root / "examples/python/CuTeDSL").is_dir():
        raise FileNotFoundError(f"{ENVIRONMENT} names no CUTLASS checkout")
    return root


def commit() -> str:
    """Commit of the checkout."""
    done = subprocess.run(
        ["git", "-C", str(checkout()), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def example(name: str) -> Any:
    """Imports an example module by its dotted path below ``cute``."""
    capture.prepare_cutedsl()
    root = checkout() / "examples/python/CuTeDSL"
    for folder in (root, root / "cute"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return importlib.import_module(name)


@contextmanager
def options_for(arch: str = "sm_100a") -> Iterator[str]:
    """Compiler options that keep the PTX in a folder that lives as long as the block."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"--gpu-arch {arch} --keep-ptx --dump-dir {folder}"


def stream() -> Any:
    """The null stream."""
    return importlib.import_module("cuda.bindings.driver").CUstream(0)


def pointer(dtype: Any, data: Any, align: int) -> Any:
    """A typed global pointer to host bytes."""
    cute = importlib.import_module("cutlass.cute")
    runtime = importlib.import_module("cutlass.cute.runtime")
    return runtime.make_ptr(dtype, data.ctypes.data, cute.AddressSpace.gmem, assumed_align=align)


def compare(got: Any, want: Any) -> dict[str, Any]:
    """Number of differing words of equal dtype."""
    differing = int((got.view(np.uint16) != want.view(np.uint16)).sum())
    return {"values": int(got.size), "mismatches": differing}


class Case:
    """A compiled example with its operands: runs under any options, any number of times."""

    def __init__(self, call: Any, arguments: tuple[Any, ...], buffers: list[Any], output: Any, want: Any) -> None:
        self.call = call
        self.arguments = arguments
        self.buffers = buffers
        self.output = output
        self.want = want

    def run(self, options: Options | None = None) -> tuple[dict[str, Any], Result]:
        """One run: comparison with the reference, and the interpreter's result."""
        self.output[:] = 0
        session = capture.Session(options)
        for buffer in self.buffers:
            session.register(buffer)
        result = session.call(self.call, *self.arguments)
        return compare(self.output.view(self.want.dtype).reshape(self.want.shape), self.want), result

    @property
    def ptx(self) -> str:
        """Text of the kernel."""
        return self.call.__ptx__


def tutorial(number: int, mnkl: tuple[int, int, int, int], seed: int = 0) -> Case:
    """``tutorial_gemm/nvfp4_gemm_<number>``: NVFP4, 128x256x256 tiles, fp16 output."""
    module = example(f"blackwell.tutorial.tutorial_gemm.nvfp4_gemm_{number}")
    cutlass, cute = importlib.import_module("cutlass"), importlib.import_module("cutlass.cute")
    m, n, k, batch = mnkl
    rng = np.random.default_rng(seed)
    a, b = make(rng, batch, m, k), make(rng, batch, n, k)
    out = aligned(batch * m * n * 2)
    f4, f8 = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN
    pointers = (
        pointer(f4, a.codes, 16),
        pointer(f4, b.codes, 16),
        pointer(f8, a.scales, 32),
        pointer(f8, b.scales, 32),
        pointer(cutlass.Float16, out, 32),
    )
    arguments = (*pointers, mnkl, stream())
    with options_for() as flags:
        call = cute.compile(module.Sm100BlockScaledDenseGemmKernel(), *arguments, options=flags)
        assert call.__ptx__
    want = products(a, b).astype(np.float16)
    return Case(call, arguments, [a.codes, b.codes, a.scales, b.scales, out], out, want)


def to_bf16(values: Any) -> Any:
    """f64 to bf16 codes, nearest even (through f32, exact for sums that fit 24 bits)."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@dataclass
class DenseProblem:
    """Operands of a dense block-scaled GEMM with bf16 output, and its result.

    Attributes:
        element, scale: CuTeDSL types of operands and scale factors.
        pointers: A, B, their scale factors, output.
        block: elements per scale factor.
    """

    element: Any
    scale: Any
    pointers: tuple[Any, ...]
    block: int
    buffers: list[Any]
    want: Any

    def case(self, call: Any, arguments: tuple[Any, ...]) -> Case:
        """The problem with a compiled kernel."""
        return Case(call, arguments, self.buffers, self.buffers[-1], self.want)


def dense_problem(mnkl: tuple[int, int, int, int], fmt: str, wide: bool, seed: int) -> DenseProblem:
    """Random operands in ``nvfp4``, ``mxfp4`` or ``mxfp8``."""
    cutlass = importlib.import_module("cutlass")
    m, n, k, batch = mnkl
    rng = np.random.default_rng(seed)
    a, b = make(rng, batch, m, k, fmt=fmt, wide=wide), make(rng, batch, n, k, fmt=fmt, wide=wide)
    out = aligned(batch * m * n * 2)
    element = cutlass.Float8E4M3FN if fmt == "mxfp8" else cutlass.Float4E2M1FN
    scale = cutlass.Float8E4M3FN if fmt == "nvfp4" else cutlass.Float8E8M0FNU
    pointers = (
        pointer(element, a.codes, 16),
        pointer(element, b.codes, 16),
        pointer(scale, a.scales, 32),
        pointer(scale, b.scales, 32),
        pointer(cutlass.BFloat16, out, 16),
    )
    buffers = [a.codes, b.codes, a.scales, b.scales, out]
    return DenseProblem(element, scale, pointers, 16 if fmt == "nvfp4" else 32, buffers, to_bf16(products(a, b)))


def dense(
    mnkl: tuple[int, int, int, int],
    tile: tuple[int, int],
    cluster: tuple[int, int],
    *,
    fmt: str = "nvfp4",
    active: int = 2,
    wide: bool = False,
    seed: int = 0,
) -> Case:
    """``dense_blockscaled_gemm_persistent``: six warps, TMA store, bf16 output."""
    module = example("blackwell.kernel.blockscaled_gemm.dense_blockscaled_gemm_persistent")
    cutlass = importlib.import_module("cutlass")
    problem = dense_problem(mnkl, fmt, wide, seed)
    kernel = module.Sm100BlockScaledPersistentDenseGemmKernel(problem.block, tile, cluster)
    types = (problem.element, problem.element, cutlass.BFloat16, problem.scale)
    with options_for() as flags:
        call = module.scaled_mm(kernel, *types, "k", "k", "n", active, stream(), options=flags)
        assert call.__ptx__
    return problem.case(call, (*problem.pointers, tuple(cutlass.Int32(v) for v in mnkl), stream()))


def dynamic(mnkl: tuple[int, int, int, int], tile: tuple[int, int], cluster: tuple[int, int], seed: int = 0) -> Case:
    """``dense_gemm_persistent_dynamic``: fp16, clusters take over work by clusterlaunchcontrol; pairs for M = 256."""
    module = example("blackwell.kernel.dense_gemm.dense_gemm_persistent_dynamic")
    cutlass, cute = importlib.import_module("cutlass"), importlib.import_module("cutlass.cute")
    m, n, k, batch = mnkl
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-4, 5, (batch, m, k)), rng.integers(-4, 5, (batch, n, k))
    buffers = [aligned(2 * batch * size) for size in (m * k, n * k, m * n)]
    for buffer, values in zip(buffers, (a, b), strict=False):
        buffer.view(np.float16)[:] = values.reshape(-1)
    kernel = module.PersistentDenseGemmKernel(cutlass.Float32, tile[0] == 256, tile, cluster, True)

    def multiply(pa: cute.Pointer, pb: cute.Pointer, pc: cute.Pointer, on: Any) -> None:
        shapes = ((m, k), (n, k), (m, n))
        tensors = [
            cute.make_tensor(p, cute.make_layout((rows, columns, batch), stride=(columns, 1, rows * columns)))
            for p, (rows, columns) in zip((pa, pb, pc), shapes, strict=True)
        ]
        kernel(*tensors, on)

    arguments = (*(pointer(cutlass.Float16, buffer, 16) for buffer in buffers), stream())
    with options_for() as flags:
        call = cute.compile(cute.jit(multiply), *arguments, options=flags)
        assert call.__ptx__
    want = np.einsum("lmk,lnk->lmn", a, b).astype(np.float16)
    return Case(call, arguments, buffers, buffers[-1], want)
