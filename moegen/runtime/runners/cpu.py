"""Runs CPU kernels in this process."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import tvm_ffi

from moegen.core.cpu import host_cpu_arch
from moegen.core.devices import CPU_GENERIC, DeviceFacts
from moegen.core.errors import StoreError
from moegen.core.runner import Kernel
from moegen.core.settings import cpu_threads, read_settings

OBJECT = "kernel.so"
_CPUINFO = Path("/proc/cpuinfo")


class CpuRunner:
    """Loads shared objects through tvm-ffi; kernels get the number of threads as one more integer.

    Args:
        threads: threads per kernel; default: MOEGEN_THREADS, or every core this process may use.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or cpu_threads(read_settings())

    @property
    def device_type(self) -> str:
        """``cpu``."""
        return "cpu"

    @property
    def facts(self) -> DeviceFacts:
        """This machine; the rates stay those of a generic CPU, since nothing here measures them."""
        return replace(CPU_GENERIC, name=cpu_name(), arch=_host_arch(), cores=self.threads)

    def load(self, directory: Path, symbol: str) -> Kernel:
        """Loads ``kernel.so`` and returns its entry.

        Raises:
            StoreError: the object cannot be loaded, or does not export ``symbol``.
        """
        entry, threads = load_entry(directory, symbol), self.threads

        def launch(*arguments: object) -> None:
            entry(*arguments, threads)

        return launch


@cache
def _host_arch() -> str:
    return host_cpu_arch().name


def load_object(directory: Path, symbol: str) -> tvm_ffi.Module:
    """An artifact's ``kernel.so``, which exports ``symbol``; raises StoreError."""
    path = directory / OBJECT
    try:
        module = tvm_ffi.load_module(str(path))
        module.get_function(symbol)
    except (OSError, RuntimeError, AttributeError, KeyError) as error:
        raise StoreError(
            f"cannot load {symbol} ({error})", str(path), "moegen cache verify, then moegen build"
        ) from error
    return module


def load_entry(directory: Path, symbol: str) -> Kernel:
    """The exported function ``symbol`` of an artifact's ``kernel.so``; raises StoreError."""
    return load_object(directory, symbol)[symbol]


@cache
def cpu_name() -> str:
    """The CPU's model as tables name it; ``cpu`` where the system does not say."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return CPU_GENERIC.name
