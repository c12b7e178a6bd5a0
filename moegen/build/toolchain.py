"""What a compiler looks like to the builder."""

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from moegen.store.keys import Identity

OBJECT = "kernel.so"
PTX = "kernel.ptx"
CUBIN = "kernel.cubin"
#: Variables that change what a compiler does behind its command line; compilers run without them.
_DECIDING_VARIABLES = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "NVCC_CCBIN",
)


class Status(str, Enum):
    """What became of one compile. A refusal is a result, not an exception: it is recorded with its log."""

    OK = "ok"
    COMPILE_ERROR = "compile_error"
    TIMEOUT = "timeout"
    CRASH = "crash"


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """One source to compile.

    Attributes:
        name: names the outputs; derived from content, unique in a batch.
        source: the rendered file.
        symbol: exported entry.
        options: compile options of this source, ordered.
        include: folders searched for the device library; their paths never reach the object.
    """

    name: str
    source: Path
    symbol: str
    options: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a :class:`CompileJob`.

    Attributes:
        files: name in the artifact → file in the work folder; empty unless ``status`` is ok.
        log: what the compilers said.
        seconds: wall time.
        meta: facts for people, such as registers and spills.
    """

    status: Status
    files: dict[str, Path] = field(default_factory=dict)
    log: str = ""
    seconds: float = 0.0
    meta: dict[str, Any] = field(default_factory=dict)


#: Called once for each job as it finishes, from the thread that called ``compile``.
Done = Callable[[CompileJob, Outcome], None]


class Toolchain(Protocol):
    """A compiler for one architecture. Creating one runs nothing."""

    @property
    def name(self) -> str:
        """What people call it: ``g++``, ``nvcc``, ``CuTeDSL``."""
        ...

    @property
    def arch(self) -> str:
        """Architecture tag of its artifacts."""
        ...

    @property
    def notice(self) -> str:
        """What a person should know about this choice of architecture; empty when there is nothing."""
        ...

    def discover(self) -> str:
        """Finds the compiler and returns its version.

        Raises:
            ToolchainMissing: absent, too old, or inconsistent; the message says what was found and how to get it.
        """
        ...

    def identity(self) -> Identity:
        """Everything about the compiler that can change an object's bytes. Raises ToolchainMissing as ``discover``."""
        ...

    def compile(self, jobs: Sequence[CompileJob], work: Path, parallel: int, done: Done) -> None:
        """Compiles all jobs, at most ``parallel`` at once, below the empty folder ``work``.

        Raises:
            ToolchainMissing: as ``discover``.
        """
        ...


def abi_tag() -> str:
    """How an object is called: FFI version (0.x breaks with each minor), system, machine, pointer width in bits."""
    ffi = ".".join(version("apache-tvm-ffi").split(".")[:2])
    return f"tvm-ffi-{ffi}-{sys.platform}-{platform.machine()}-{sys.maxsize.bit_length() + 1}"


def clean_environment() -> dict[str, str]:
    """This process's environment without what would silently change objects, and with messages in English."""
    environment = {name: value for name, value in os.environ.items() if name not in _DECIDING_VARIABLES}
    return environment | {"LC_ALL": "C"}
