"""Which compilers a target's sources need."""

from moegen.build.gxx import Gxx
from moegen.build.nvcc import Nvcc
from moegen.build.toolchain import Toolchain
from moegen.core.enums import Target

_CPP, _CUDA, _DSL = ".cc", ".cu", ".py"


def toolchains_for(target: Target) -> dict[str, Toolchain]:
    """Source suffix → compiler, for every language that a target's kernels are written in."""
    if target is Target.CPU:
        return {_CPP: Gxx()}
    if target is Target.SM_90A:
        return {_CUDA: Nvcc(target.value)}
    from moegen.build.cutedsl import CuTeDSL

    return {_DSL: CuTeDSL(target.value), _CUDA: Nvcc(target.value)}
