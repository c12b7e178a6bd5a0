"""Runners for the machines that PyTorch knows; an interpreter's runner is injected from outside."""

import torch

from moegen.core.enums import Target
from moegen.core.errors import MoegenError
from moegen.core.runner import Runner
from moegen.runtime.runners.cpu import CpuRunner
from moegen.runtime.runners.cuda import CudaRunner, cuda_target


def default_target(targets: tuple[Target, ...]) -> Target:
    """The target of this machine among a package's targets: its GPU's when it has one of them, else the CPU.

    Raises:
        MoegenError: the package offers nothing that this machine runs.
    """
    found = cuda_target() if torch.cuda.is_available() else None
    for target in (found, Target.CPU):
        if target is not None and target in targets:
            return target
    names = ", ".join(target.value for target in targets)
    raise MoegenError(f"no target of this package runs here (it has {names})", "", "add cpu to the spec's targets")


def default_runner(target: Target) -> Runner:
    """The runner for a target on this machine.

    Raises:
        MoegenError: this machine has no such device.
    """
    return CpuRunner() if target is Target.CPU else CudaRunner(target)


__all__ = ["CpuRunner", "CudaRunner", "default_runner", "default_target"]
