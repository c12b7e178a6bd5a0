"""nvcc and g++: CUDA sources to one shared object that carries its cubin, with the PTX kept beside it.

A ``.cu`` file holds two halves (``templates/cuda/launch.h`` shows the form). nvcc compiles the device half to a cubin
for exactly one architecture; g++ compiles the host half and embeds that cubin.
"""

import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from moegen.build.cuda_toolkit import Toolkit, find_toolkit
from moegen.build.gxx import find_gxx, hide_paths, linker_version, tvm_ffi_flags
from moegen.build.ninja import Step, StepResult, run_steps
from moegen.build.toolchain import CUBIN, OBJECT, PTX, CompileJob, Done, Outcome, Status
from moegen.store.keys import Identity

#: Contraction is explicit (``__fmaf_rn``), never the compiler's choice.
DEVICE_FLAGS = ("-std=c++20", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "-Xptxas", "-v")
HOST_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden")
ALLOW_SPILLS = "allow-spills"
"""An option of a source, not of nvcc: registers may spill to local memory; otherwise that fails the build."""
_USAGE = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


class Nvcc:
    """nvcc for one architecture, such as ``sm_90a``."""

    name = "nvcc"
    notice = ""  # the architecture is the target's own

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def discover(self) -> str:
        """nvcc's build string and where it was found; raises ToolchainMissing."""
        find_gxx()
        toolkit = find_toolkit(self.arch)
        return f"{toolkit.build} ({toolkit.source})"

    def identity(self) -> Identity:
        """Both compilers, linker, C library, FFI headers and fixed flags; raises ToolchainMissing."""
        toolkit = find_toolkit(self.arch)
        return (
            ("nvcc", toolkit.build),
            ("cccl", toolkit.cccl),
            ("g++", find_gxx()[1]),
            ("ld", linker_version()),
            ("libc", " ".join(platform.libc_ver())),
            ("tvm_ffi", version("apache-tvm-ffi")),
            ("flags", " ".join((*DEVICE_FLAGS, *HOST_FLAGS))),
        )

    def compile(self, jobs: Sequence[CompileJob], work: Path, parallel: int, done: Done) -> None:
        """See :meth:`Toolchain.compile`. Two steps a source; the second runs only when the first succeeds."""
        toolkit, host = find_toolkit(self.arch), find_gxx()[0]
        include, link = tvm_ffi_flags()
        by_step: dict[str, CompileJob] = {}
        steps: list[Step] = []
        for job in jobs:
            device, embed = self._device_step(job, toolkit, host), self._host_step(job, toolkit, host, include, link)
            by_step[device.name] = by_step[embed.name] = job
            steps += [device, embed]
        first: dict[str, StepResult] = {}

        def finished(step: Step, result: StepResult) -> None:
            job = by_step[step.name]
            if step.output.endswith(CUBIN):
                first[job.name] = result
                if result.status is not Status.OK:
                    done(job, Outcome(status=result.status, log=result.log, seconds=result.seconds))
            else:
                done(job, _outcome(job, work, first[job.name], result))

        run_steps(steps, work, parallel, finished)

    def _device_step(self, job: CompileJob, toolkit: Toolkit, host: str) -> Step:
        number = self.arch.removeprefix("sm_")
        includes = [word for folder in job.include for word in ("-I", str(folder))]
        options = [option for option in job.options if option != ALLOW_SPILLS]
        return Step(
            name=f"{job.name}-device",
            program=str(toolkit.nvcc),
            response="--options-file ",
            arguments=(
                *DEVICE_FLAGS,
                *("-gencode", f"arch=compute_{number},code=sm_{number}", "-ccbin", host),
                *("--keep", "--keep-dir", job.name),
                *includes,
                *options,
                *("-cubin", "-x", "cu", str(job.source.resolve()), "-o", f"{job.name}/{CUBIN}"),
            ),
            output=f"{job.name}/{CUBIN}",
        )

    @staticmethod
    def _host_step(
        job: CompileJob, toolkit: Toolkit, host: str, include: tuple[str, ...], link: tuple[str, ...]
    ) -> Step:
        headers = [word for folder in toolkit.include for word in ("-isystem", str(folder))]
        hide = [f"-ffile-prefix-map={folder}=cuda" for folder in toolkit.include]
        return Step(
            name=f"{job.name}-host",
            program=host,
            arguments=(
                *HOST_FLAGS,
                *include,
                *headers,
                *hide,
                *hide_paths(job),
                *(f"-Wa,-I,{job.name}", "-shared", "-x", "c++", str(job.source.resolve())),
                *("-o", f"{job.name}/{OBJECT}", *link, "-ldl"),
            ),
            output=f"{job.name}/{OBJECT}",
            needs=(f"{job.name}/{CUBIN}",),
        )


def usage(log: str) -> dict[str, Any]:
    """Registers, stack and spill bytes that ptxas reports, the worst over all kernels of a source."""
    frames = [tuple(map(int, found)) for found in _USAGE.findall(log)]
    registers = [int(found) for found in _REGISTERS.findall(log)]
    return {
        "registers": max(registers, default=0),
        "stack_bytes": max((frame[0] for frame in frames), default=0),
        "spill_bytes": max((frame[1] + frame[2] for frame in frames), default=0),
    }


def _outcome(job: CompileJob, work: Path, device: StepResult, host: StepResult) -> Outcome:
    seconds, log = device.seconds + host.seconds, device.log + host.log
    if host.status is not Status.OK:
        return Outcome(status=host.status, log=log, seconds=seconds)
    meta = usage(device.log)
    if meta["spill_bytes"] and ALLOW_SPILLS not in job.options:
        refusal = f"{meta['spill_bytes']} bytes of registers spill to local memory; option {ALLOW_SPILLS} is not set\n"
        return Outcome(status=Status.COMPILE_ERROR, log=refusal + log, seconds=seconds, meta=meta)
    folder = work / job.name
    files = {OBJECT: folder / OBJECT, CUBIN: folder / CUBIN, PTX: folder / f"{job.source.stem}.ptx"}
    return Outcome(status=Status.OK, files=files, log=log, seconds=seconds, meta=meta)
