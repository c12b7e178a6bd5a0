"""A :class:`~moegen.core.runner.Runner` that executes artifacts' PTX: layers for Hopper and Blackwell run on any
machine.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moegen.core.devices import PLANNING_DEVICE, DeviceFacts
from moegen.core.enums import Target
from moegen.core.errors import StoreError
from moegen.core.runner import Kernel
from moegen.ptx.capture import ATTRIBUTES, Session, runtime
from moegen.ptx.errors import CaptureError, ExecutionError
from moegen.ptx.launch import Module, Result
from moegen.ptx.options import Options
from moegen.ptx.record import Recording

_PTX, _OBJECT = "kernel.ptx", "kernel.so"
_CUDA_DEVICE = 2
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _OnDevice:
    """A CPU tensor that says it is a GPU's: the stand-in runtime's global memory is host memory."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA_DEVICE, 0

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.tensor.__dlpack__()
        # DLTensor: data pointer, then the device type.
        device = _pointer_of(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_int.from_address(device).value = _CUDA_DEVICE
        return capsule


class InterpreterRunner:
    """Loads artifacts (``kernel.so`` with ``kernel.ptx`` beside it) and runs their launches in the interpreter.

    Args:
        target: what the artifacts were built for.
        schedules: every call runs once under each, on the same inputs, and must write the same bytes under all of them.
        recorder: keeps the launches of every call, as the first schedule ran them, for a later replay.

    Attributes:
        results: of every run, in order; their reports are the findings.
    """

    def __init__(
        self, target: Target, schedules: Sequence[Options] = (Options(),), recorder: Recording | None = None
    ) -> None:
        if target not in (Target.SM_90A, Target.SM_100A, Target.SM_103A):
            raise CaptureError(f"target {target.value} has no PTX")
        self.target = target
        self.schedules = tuple(schedules)
        self.recorder = recorder
        self.results: list[Result] = []
        self._stream: Session | None = None

    @property
    def device_type(self) -> str:
        """``cpu``: tensors live in host memory."""
        return "cpu"

    @property
    def facts(self) -> DeviceFacts:
        """The target's planning device, with the few multiprocessors that the stand-in runtime reports."""
        device = PLANNING_DEVICE[self.target]
        return replace(device, name=f"{device.name} (interpreted)", cores=ATTRIBUTES[16])

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Launches of the block run at its end, and programmatic dependents may start before their predecessor ends.

        Entries of different artifacts must have different names.
        """
        self._stream = session = Session(self.schedules[0], self.recorder)
        try:
            yield
        finally:
            self._stream = None
        self._run(session, "stream")

    def load(self, directory: Path, symbol: str) -> Kernel:
        """Loads ``symbol`` of an artifact.

        Raises:
            StoreError: the object or its PTX cannot be loaded.
            PtxError: the PTX is not one that the interpreter can run.
        """
        import tvm_ffi

        runtime()
        path = directory / _PTX
        try:
            text = path.read_text()
            entry = tvm_ffi.load_module(str(directory / _OBJECT))[symbol]
        except (OSError, RuntimeError, AttributeError, KeyError) as error:
            raise StoreError(f"cannot load {symbol} ({error})", str(directory), "moegen build") from error
        module = Module(text, str(path))
        if self.recorder is not None:
            self.recorder.add_ptx(directory.name, text)

        def launch(*arguments: object) -> None:
            session = self._stream or Session(self.schedules[0], self.recorder)
            session.add_module(module)
            converted: list[Any] = []
            for number, argument in enumerate(arguments):
                if hasattr(argument, "__dlpack__"):
                    session.register(argument, f"argument {number} of {symbol}")
                    converted.append(tvm_ffi.from_dlpack(_OnDevice(argument)))
                else:
                    converted.append(argument)
            with session.active(flush=False):
                entry(*converted)
            if session is not self._stream:
                self._run(session, symbol)

        return launch

    def _run(self, session: Session, symbol: str) -> None:
        queue = session.queue
        if not queue:
            return
        blocks = [block for block in session.memory.blocks if block.size]
        views = [block.bytes(block.base, block.size) for block in blocks]
        before = [view.copy() for view in views] if len(self.schedules) > 1 else []
        first: list[Any] = []
        for options in self.schedules:
            if first:
                for view, saved in zip(views, before, strict=True):
                    view[:] = saved
            session.queue, session.options = list(queue), options
            result = session.flush()
            assert result is not None
            self.results.append(result)
            session.recorder = None
            if not first:
                first = [view.copy() for view in views] if len(self.schedules) > 1 else []
                continue
            for block, view, saved in zip(blocks, views, first, strict=True):
                if not np.array_equal(view, saved):
                    count = int((view != saved).sum())
                    message = f"{symbol}: {count} bytes of {block.name} depend on the schedule (seed {options.seed})"
                    raise ExecutionError(message, symbol)
