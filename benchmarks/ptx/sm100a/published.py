"""A block-scaled GEMM from the published package nvidia-cutlass-operators 0.3, executed by the interpreter."""

import importlib
import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.ptx.sm100a.checkout import Case, dense_problem, options_for, stream
from moegen.ptx import capture

PACKAGE = "nvidia-cutlass-operators"
VERSION = "0.3"
_SOURCE = "gemm/implementations/sm100_dense_blockscaled_static_persistent_impl.py"


@cache
def implementation() -> Any:
    """The kernel's module, loaded from the installed package's file.

    Raises:
        ImportError: the package is missing or of another version.
    """
    capture.prepare_cutedsl()
    version = importlib.metadata.version(PACKAGE)
    if not version.startswith(VERSION + "."):
        raise ImportError(f"{PACKAGE} {version} is installed, {VERSION}.* is needed")
    files = importlib.metadata.files(PACKAGE) or []
    path = next(Path(str(f.locate())) for f in files if str(f).endswith(_SOURCE))
    spec = importlib.util.spec_from_file_location("moegen_published_gemm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    importlib.import_module("sys").modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def gemm(
    mnkl: tuple[int, int, int, int],
    tile: tuple[int, int],
    cluster: tuple[int, int],
    *,
    fmt: str = "nvfp4",
    active: int = 2,
    wide: bool = False,
    seed: int = 0,
) -> Case:
    """Persistent dense block-scaled GEMM of the package, bf16 output."""
    module = implementation()
    cutlass, cute = importlib.import_module("cutlass"), importlib.import_module("cutlass.cute")
    problem = dense_problem(mnkl, fmt, wide, seed)
    layouts = (module.OperandMajorMode.K, module.OperandMajorMode.K, cutlass.tensor_utils.LayoutEnum.ROW_MAJOR)
    shape = tuple(cutlass.Int32(v) for v in mnkl)
    kernel = module.PersistentDenseBlockScaledGemmKernel(problem.block, tile, cluster)
    with options_for() as flags:
        call = cute.compile(kernel, *problem.pointers, layouts, shape, active, stream(), options=flags)
        assert call.__ptx__
    return problem.case(call, (*problem.pointers, shape, stream()))
