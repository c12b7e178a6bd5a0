"""CuTeDSL: Python kernel sources to shared objects with their cubin, PTX kept beside them; needs no GPU."""

import json
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from moegen.build.cutedsl_worker import OBJECT_FILE
from moegen.build.gxx import find_gxx, linker_version
from moegen.build.timing import TimeLimit
from moegen.build.toolchain import (
    CUBIN,
    OBJECT,
    PTX,
    CompileJob,
    Done,
    Outcome,
    Status,
    clean_environment,
)
from moegen.core.errors import ToolchainMissing
from moegen.store.keys import Identity

PACKAGE = "nvidia-cutlass-dsl"
LIBRARIES = f"{PACKAGE}-libs-cu13"
MINIMUM = (4, 8, 1)
FLAGS = ("--keep-ptx", "--keep-cubin", "--enable-tvm-ffi")
_GET_IT = 'pip install "moegen[cutedsl]"'


class CuTeDSL:
    """CuTeDSL for one architecture, such as ``sm_100a``, in worker processes that see no GPU."""

    name = "CuTeDSL"
    notice = ""  # the architecture is the target's own

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def discover(self) -> str:
        """Version of nvidia-cutlass-dsl; raises ToolchainMissing."""
        find_gxx()
        try:
            found = version(PACKAGE)
            libraries = version(LIBRARIES)
        except PackageNotFoundError as error:
            raise ToolchainMissing(f"{error.name} is not installed", "", _GET_IT) from error
        if tuple(map(int, found.split(".")[:3])) < MINIMUM:
            needed = ".".join(map(str, MINIMUM))
            raise ToolchainMissing(f"{PACKAGE} {found} is too old, {needed} is needed", "", _GET_IT)
        if libraries != found:
            raise ToolchainMissing(f"{PACKAGE} {found} with {LIBRARIES} {libraries}: mixed versions", "", _GET_IT)
        return found

    def identity(self) -> Identity:
        """Every distribution of the DSL, Python, the linker and fixed flags; raises ToolchainMissing."""
        self.discover()
        parts = {str(item.metadata["Name"]): item.version for item in distributions()}
        return (
            *((name, parts[name]) for name in sorted(parts) if name.startswith(PACKAGE)),
            ("python", ".".join(map(str, sys.version_info[:2]))),
            ("tvm_ffi", version("apache-tvm-ffi")),
            ("g++", find_gxx()[1]),
            ("ld", linker_version()),
            ("flags", " ".join(FLAGS)),
        )

    def compile(self, jobs: Sequence[CompileJob], work: Path, parallel: int, done: Done) -> None:
        """See :meth:`Toolchain.compile`."""
        self.discover()
        pool = _Pool(self.arch, find_gxx()[0], work)
        with ThreadPoolExecutor(max_workers=min(parallel, max(len(jobs), 1))) as threads:
            futures = {threads.submit(pool.compile, job): job for job in jobs}
            try:
                for future in as_completed(futures):
                    done(futures[future], future.result())
            finally:  # before the executor waits for its threads: on an interrupt, nobody waits for a compiler
                threads.shutdown(wait=False, cancel_futures=True)
                pool.close()


class _Pool:
    """One worker process for each thread that compiles; a dead one is replaced."""

    def __init__(self, arch: str, linker: str, work: Path) -> None:
        self._arch = arch
        self._linker = linker
        self._work = work
        self._limit = TimeLimit()
        self._local = threading.local()
        self._workers: list[_Worker] = []
        self._closed = False
        self._lock = threading.Lock()

    def compile(self, job: CompileJob) -> Outcome:
        """Compiles and links one source."""
        begin = time.monotonic()
        out = self._work / job.name
        request = {
            "source": str(job.source.resolve()),
            "symbol": job.symbol,
            "arch": self._arch,
            "options": list(job.options),
            "include": [str(folder) for folder in job.include],
            "out": str(out),
        }
        status, log = self._worker().ask(request, self._limit.seconds)
        if status is Status.OK:
            status, log = self._link(out)
        seconds = time.monotonic() - begin
        self._limit.add(seconds)
        names = (OBJECT, OBJECT_FILE, PTX, CUBIN)
        files = {name: out / name for name in names} if status is Status.OK else {}
        return Outcome(status=status, files=files, log=log, seconds=seconds)

    def close(self) -> None:
        """Ends every worker; what it was compiling ends as a crash."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.close()

    def _worker(self) -> "_Worker":
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None or not worker.alive:
            with self._lock:
                if self._closed:
                    raise RuntimeError("the build has ended")
                worker = _Worker(self._work)
                self._workers.append(worker)
            self._local.worker = worker
        return worker

    def _link(self, out: Path) -> tuple[Status, str]:
        """Leaves the DSL's runtime unresolved: a GPU's or an interpreter's is loaded, globally, before the object."""
        answer = subprocess.run(
            [self._linker, "-shared", "-Wl,-z,lazy", "-o", OBJECT, OBJECT_FILE],
            cwd=out,
            capture_output=True,
            text=True,
            env=clean_environment(),
            check=False,
        )
        return (Status.OK if answer.returncode == 0 else Status.COMPILE_ERROR), answer.stderr


class _Worker:
    """A process that runs ``moegen.build.cutedsl_worker``."""

    def __init__(self, work: Path) -> None:
        self._log = tempfile.TemporaryFile(dir=work)  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moegen.build.cutedsl_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_worker_environment(),
        )

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], limit_s: float) -> tuple[Status, str]:
        """Sends a request and waits for its answer, at most ``limit_s`` seconds; then the process is ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return Status.CRASH, self._said()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit_s):
                self.close()
                return Status.TIMEOUT, f"no answer in {limit_s:.0f} s\n{self._said()}"
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            return Status.CRASH, f"the compiler ended with {self._process.returncode}\n{self._said()}"
        answer = json.loads(line)
        return (Status.OK, "") if answer["ok"] else (Status.COMPILE_ERROR, answer["log"])

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]


def _worker_environment() -> dict[str, str]:
    """No GPU, no settings of the DSL from outside, no byte code written beside templates or generated files."""
    kept = {name: value for name, value in clean_environment().items() if not name.startswith("CUTE_DSL_")}
    return kept | {"CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
