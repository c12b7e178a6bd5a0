"""Launch capture: host functions of CuTeDSL and tvm-ffi objects run on a machine without GPU or driver.

A small C library stands in for the CUDA driver and CuTeDSL's runtime; each launch calls back here, where it is
matched with the kernel's PTX and queued. Global memory is host memory: what a kernel may touch is registered by
address and size.
"""

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from moegen.ptx.errors import CaptureError
from moegen.ptx.launch import Launch, Module, Result, run_launches
from moegen.ptx.memory import GlobalMemory
from moegen.ptx.options import Options
from moegen.ptx.record import Recording
from moegen.ptx.state import SHARED_LIMIT

#: Device attributes that host code asks for: multiprocessors (few, so that persistent loops iterate), opt-in shared
#: memory, compute capability, cooperative launch.
ATTRIBUTES = {16: 4, 97: SHARED_LIMIT, 75: 10, 76: 0, 95: 1, 10: 32, 1: 1024, 8: 49152, 81: SHARED_LIMIT + 1024}
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_void_p)
)
_ATTRIBUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int))


def library_path() -> Path:
    """The stand-in library, built with the C compiler on first use and kept per user and content.

    Raises:
        CaptureError: no C compiler, or it failed.
    """
    source = Path(__file__).with_name("fake_cuda.c")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"moegen-ptx-{os.getuid()}"
    target = folder / f"libcuda-{digest}.so"
    if target.is_file():
        return target
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise CaptureError(f"{folder} belongs to another user", fix="remove it or set TMPDIR")
    staged = folder / f"{target.name}.{os.getpid()}"
    command = [
        os.environ.get("CC", "gcc"),
        "-O1",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        str(source),
        "-o",
        str(staged),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CaptureError(f"no C compiler: {error}", fix="install gcc, or set CC") from error
    if done.returncode:
        raise CaptureError(f"the stand-in runtime does not compile: {done.stderr[-500:]}", fix=" ".join(command))
    staged.replace(target)
    return target


class _Runtime:
    """The loaded stand-in library and the session that launches go to."""

    def __init__(self) -> None:
        maps = Path("/proc/self/maps")
        if maps.exists() and "libcuda.so" in maps.read_text():
            raise CaptureError("the real CUDA driver is loaded in this process", fix="use a process of its own")
        self.library = ctypes.CDLL(str(library_path()), mode=ctypes.RTLD_GLOBAL)
        self.session: Session | None = None
        self._keep = (_LAUNCH(self._launch), _ATTRIBUTE(self._attribute))
        self.library.moegen_ptx_connect(*self._keep)

    def _launch(self, name: bytes, shape: Any, arguments: Any) -> int:
        session = self.session
        if session is None:
            return 1
        try:
            session.enqueue(name.decode(), [int(shape[k]) for k in range(12)], arguments)
        except Exception as error:  # carried over the C frames, raised again by Session.active
            session.error = error
            return 1
        return 0

    def _attribute(self, number: int, value: Any) -> int:
        if number not in ATTRIBUTES:
            if self.session is not None:
                self.session.error = CaptureError(f"host code asks for device attribute {number}, which has no answer")
            return 1
        value[0] = ATTRIBUTES[number]
        return 0


@cache
def runtime() -> _Runtime:
    """The process's stand-in runtime, loaded once.

    Raises:
        CaptureError: the real driver is loaded, or there is no C compiler.
    """
    return _Runtime()


def prepare_cutedsl() -> None:
    """Makes CuTeDSL use the stand-in runtime; call it before ``import cutlass``.

    Raises:
        CaptureError: CuTeDSL was imported before with its own runtime.
    """
    path = str(library_path())
    if "cutlass" in sys.modules and os.environ.get("CUTE_DSL_LIBS") != path:
        raise CaptureError("cutlass is imported already", fix="call prepare_cutedsl() before importing cutlass")
    os.environ["CUTE_DSL_LIBS"] = path
    runtime()


def one_device(function: Any) -> None:
    """Tells a compiled CuTeDSL function that there is one device; it would ask the driver otherwise."""
    if hasattr(type(function), "num_devices"):
        function.__dict__.setdefault("num_devices", 1)


class Session:
    """Collects launches and runs them.

    Attributes:
        memory: global memory that kernels may touch.
        modules: by entry name.
        queue: launches not run yet, in stream order.
        options: of the runs.
        results: of every flush so far.
        recorder: keeps launches for a later replay, or None.
    """

    def __init__(self, options: Options | None = None, recorder: Recording | None = None) -> None:
        self.memory = GlobalMemory()
        self.modules: dict[str, Module] = {}
        self.queue: list[tuple[Module, Launch]] = []
        self.options = options or Options()
        self.results: list[Result] = []
        self.recorder = recorder
        self.error: Exception | None = None
        self._texts: set[str] = set()

    def add_ptx(self, text: str, name: str = "<ptx>") -> None:
        """Makes the entries of a PTX text known; an entry of the same name is replaced."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest in self._texts:
            return
        self._texts.add(digest)
        self.add_module(Module(text, name))
        if self.recorder is not None:
            self.recorder.add_ptx(name, text)

    def add_module(self, module: Module) -> None:
        """Makes the entries of a loaded module known."""
        for block in module.memory.blocks:
            self.memory.register(block.base, block.size, block.name, keep=block)
        for entry in module.entries:
            self.modules[entry] = module

    def register(self, tensor: Any, name: str = "") -> None:
        """Lets kernels touch a NumPy array or a torch CPU tensor (its whole storage)."""
        if hasattr(tensor, "untyped_storage"):
            storage = tensor.untyped_storage()
            self.memory.register(
                storage.data_ptr(), storage.nbytes(), name or f"tensor {tuple(tensor.shape)}", keep=tensor
            )
        else:
            self.memory.register(tensor.ctypes.data, tensor.nbytes, name or f"array {tensor.shape}", keep=tensor)

    def enqueue(self, name: str, shape: list[int], arguments: Any) -> None:
        """Queues a launch that the stand-in runtime saw.

        Raises:
            CaptureError: no PTX holds that entry.
        """
        module = self.modules.get(name)
        if module is None:
            raise CaptureError(f"a launch of {name}, whose PTX is not known", fix="add_ptx() the text that holds it")
        entry = module.kernel(name).entry
        block = bytearray(entry.param_bytes)
        for k, param in enumerate(entry.params):
            block[param.offset : param.offset + param.size] = ctypes.string_at(arguments[k], param.size)
        item = Launch(
            entry=name,
            grid=(shape[0], shape[1], shape[2]),
            block=(shape[3], shape[4], shape[5]),
            cluster=(shape[7] or 1, shape[8] or 1, shape[9] or 1),
            dynamic_smem=shape[6],
            params=bytes(block),
            programmatic=bool(shape[10]),
            cooperative=bool(shape[11]),
        )
        self.queue.append((module, item))

    def flush(self) -> Result | None:
        """Runs what is queued; None if nothing is."""
        queue, self.queue = self.queue, []
        if not queue:
            return None
        if self.recorder is not None:
            self.recorder.before(self.memory, [item for _, item in queue])
        result = run_launches(queue, self.options, self.memory)
        if self.recorder is not None:
            self.recorder.after(self.memory)
        self.results.append(result)
        return result

    @contextmanager
    def active(self, flush: bool = True) -> Iterator["Session"]:
        """Launches made inside go to this session and run at the end, or stay queued without ``flush``."""
        machine = runtime()
        if machine.session is not None:
            raise CaptureError("another capture session is active")
        machine.session = self
        failure: BaseException | None = None
        try:
            yield self
        except BaseException as error:
            failure = error
            raise
        finally:
            machine.session = None
            error, self.error = self.error, None
            if error is not None:
                self.queue = []
                raise error from failure
        if flush:
            self.flush()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Result:
        """Calls a host function and runs its launches.

        For a CuTeDSL function compiled with ``--keep-ptx`` its PTX is found by itself.

        Raises:
            CaptureError: it launched nothing, or something unknown.
            ExecutionError: a finding that stops the run.
        """
        text = getattr(function, "__ptx__", None)
        if isinstance(text, str):
            if not text.lstrip().startswith((".", "//")):
                raise CaptureError(
                    f"no PTX was kept: {text} cannot be read", fix="create the folder named by --dump-dir"
                )
            self.add_ptx(text, getattr(function, "function_name", "<cutedsl>")[:60])
        one_device(function)
        before = len(self.results)
        with self.active():
            function(*args, **kwargs)
        if len(self.results) == before:
            raise CaptureError("the function launched no kernel")
        return self.results[-1]
