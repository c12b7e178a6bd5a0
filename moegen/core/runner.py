"""How a kernel is launched: the one seam between generated code and the machine that runs it."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from moegen.core.devices import DeviceFacts

#: A loaded kernel: takes the tensors and integers of ``moegen.core.abi.arguments`` in order, returns nothing.
Kernel = Callable[..., None]


@runtime_checkable
class Runner(Protocol):
    """Loads artifacts and launches kernels on one kind of machine (CPU, CUDA, interpreter)."""

    @property
    def device_type(self) -> str:
        """torch device type that tensors must live on: ``cpu`` or ``cuda``."""
        ...

    @property
    def facts(self) -> DeviceFacts:
        """The machine that kernels will run on."""
        ...

    def load(self, directory: Path, symbol: str) -> Kernel:
        """Loads ``symbol`` from an artifact's directory.

        Raises:
            moegen.core.errors.StoreError: the artifact cannot be loaded on this machine.
        """
        ...
