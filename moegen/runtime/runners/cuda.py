"""Runs CUDA kernels on the caller's current stream.

A kernel asks tvm-ffi's environment for the stream of its device, which tvm-ffi sets to torch's for each call.
"""

from dataclasses import replace
from pathlib import Path

import torch

from moegen.core.devices import PLANNING_DEVICE, DeviceFacts
from moegen.core.enums import Target
from moegen.core.errors import MoegenError
from moegen.core.runner import Kernel
from moegen.runtime.runners.cpu import load_object
from moegen.runtime.runners.dsl_runtime import load_runtime

PREPARE = "prepare"
DSL_OBJECT = "kernel.o"
"""Only artifacts made by CuTeDSL hold one beside their shared object."""
_CAPABILITIES = {(9, 0): Target.SM_90A, (10, 0): Target.SM_100A, (10, 3): Target.SM_103A}


def cuda_target() -> Target | None:
    """Target of torch's current CUDA device; None for an architecture that moegen has no target for."""
    return _CAPABILITIES.get(torch.cuda.get_device_capability())


class CudaRunner:
    """Loads the same kind of object as on the CPU: its host function launches a kernel and returns at once.

    Args:
        target: what the kernels were built for.

    Raises:
        MoegenError: torch sees no GPU, or one of another architecture.
    """

    def __init__(self, target: Target) -> None:
        if not torch.cuda.is_available():
            raise MoegenError(
                f"target {target.value} needs a CUDA device, torch sees none", "", "use target=Target.CPU"
            )
        found = cuda_target()
        if found is not target:
            name = torch.cuda.get_device_name()
            raise MoegenError(f"target {target.value} does not run on {name}", "", "use the target of this GPU")
        self.target = target

    @property
    def device_type(self) -> str:
        """``cuda``."""
        return "cuda"

    @property
    def facts(self) -> DeviceFacts:
        """This GPU; rates are those of the target's planning device."""
        properties = torch.cuda.get_device_properties()
        return replace(
            PLANNING_DEVICE[self.target],
            name=properties.name,
            cores=properties.multi_processor_count,
            smem_bytes=properties.shared_memory_per_block_optin,
            smem_sm_bytes=properties.shared_memory_per_multiprocessor,
            l2_bytes=properties.L2_cache_size,
        )

    def load(self, directory: Path, symbol: str) -> Kernel:
        """Loads ``kernel.so`` and returns its entry; tvm-ffi hands torch tensors over with torch's current stream.

        An object that exports ``prepare`` loads its cubin now, on the current device, so that no graph capture has to.

        Raises:
            StoreError: the object cannot be loaded, or does not export ``symbol``.
            MoegenError: the object is CuTeDSL's, and the runtime that it needs is not installed.
        """
        if (directory / DSL_OBJECT).exists():
            load_runtime()
        module = load_object(directory, symbol)
        if module.implements_function(PREPARE):
            module[PREPARE](torch.cuda.current_device())
        return module[symbol]
