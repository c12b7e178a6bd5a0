"""g++: C++20 sources of the CPU target."""

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from moegen.build.ninja import Step, StepResult, run_steps
from moegen.build.toolchain import OBJECT, CompileJob, Done, Outcome, Status, clean_environment
from moegen.core.cpu import host_cpu_arch
from moegen.core.errors import ToolchainMissing
from moegen.store.keys import Identity

MINIMUM = (11, 0)
#: Contraction and value-changing optimisations stay off: bytes of the exact domain depend on it.
FLAGS = (
    "-std=c++20",
    "-O3",
    "-ffp-contract=off",
    "-fno-fast-math",
    # Changes no value; without it gcc keeps selects between floats as branches and vectorises no loop over them.
    "-fno-trapping-math",
    "-fopenmp",
    "-fPIC",
    "-fvisibility=hidden",
)
_GET_IT = "install a C++20 compiler, for example: apt-get install g++"


def find_gxx() -> tuple[str, str]:
    """(path, version line) of g++ on PATH.

    Raises:
        ToolchainMissing: absent, or older than :data:`MINIMUM`.
    """
    path = shutil.which("g++")
    if path is None:
        raise ToolchainMissing("g++ not found on PATH", "", _GET_IT)
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, env=clean_environment(), check=False)
    line = answer.stdout.splitlines()[0] if answer.stdout else ""
    found = re.search(r"(\d+)\.(\d+)\.\d+", line)
    if answer.returncode != 0 or found is None:
        raise ToolchainMissing(f"g++ --version said {line or answer.stderr.strip()!r}", path, _GET_IT)
    if (int(found[1]), int(found[2])) < MINIMUM:
        needed = ".".join(map(str, MINIMUM))
        raise ToolchainMissing(f"g++ {found[0]} is too old, {needed} is needed", path, _GET_IT)
    return path, line


def tvm_ffi_flags() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(include flags, link flags) of the FFI; no run path: the library is already loaded when a kernel is."""
    from tvm_ffi import libinfo

    library = Path(libinfo.find_libtvm_ffi())
    includes = tuple(dict.fromkeys((libinfo.find_include_path(), libinfo.find_dlpack_include_path())))
    hide = tuple(f"-ffile-prefix-map={folder}=tvm_ffi" for folder in includes)
    return (*(word for folder in includes for word in ("-isystem", folder)), *hide), (
        f"-L{library.parent}",
        "-ltvm_ffi",
    )


def linker_version() -> str:
    """First line of ``ld --version``; empty when there is none (g++ then fails by itself)."""
    answer = subprocess.run(["ld", "--version"], capture_output=True, text=True, env=clean_environment(), check=False)
    return answer.stdout.splitlines()[0] if answer.stdout else ""


def hide_paths(job: CompileJob) -> tuple[str, ...]:
    """Include flags of a job's device library, and maps that keep folder names out of the object."""
    flags = [f"-ffile-prefix-map={job.source.parent}=."]
    for folder in job.include:
        flags += ["-I", str(folder), f"-ffile-prefix-map={folder}=moegen"]
    return tuple(flags)


class Gxx:
    """g++ through ninja, one shared object a source.

    Args:
        arch: ``-march`` and artifact tag, such as ``x86-64-v3`` or ``armv8-a``; default: the baseline of this machine.

    ``notice`` says why kernels are not built for the usual baseline, if they are not.
    """

    name = "g++"

    def __init__(self, arch: str | None = None) -> None:
        host = host_cpu_arch()
        self.arch = arch or host.name
        self.notice = "" if arch else host.notice

    def discover(self) -> str:
        """Version line of g++; raises ToolchainMissing."""
        return find_gxx()[1]

    def identity(self) -> Identity:
        """Compiler, linker, C library, FFI headers and fixed flags; raises ToolchainMissing."""
        return (
            ("g++", find_gxx()[1]),
            ("ld", linker_version()),
            ("libc", " ".join(platform.libc_ver())),
            ("tvm_ffi", version("apache-tvm-ffi")),
            ("flags", " ".join(FLAGS)),
        )

    def compile(self, jobs: Sequence[CompileJob], work: Path, parallel: int, done: Done) -> None:
        """See :meth:`Toolchain.compile`."""
        compiler, _ = find_gxx()
        include, link = tvm_ffi_flags()
        by_step = {job.name: job for job in jobs}
        steps = [
            Step(
                name=job.name,
                program=compiler,
                arguments=(
                    *FLAGS,
                    f"-march={self.arch}",
                    *include,
                    *hide_paths(job),
                    *job.options,
                    *("-shared", "-x", "c++", str(job.source.resolve()), "-o", f"{job.name}.so"),
                    *link,
                ),
                output=f"{job.name}.so",
            )
            for job in jobs
        ]

        def finished(step: Step, result: StepResult) -> None:
            files = {OBJECT: work / step.output} if result.status is Status.OK else {}
            outcome = Outcome(status=result.status, files=files, log=result.log, seconds=result.seconds)
            done(by_step[step.name], outcome)

        run_steps(steps, work, parallel, finished)
