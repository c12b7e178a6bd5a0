"""A child process in which candidates run, because a candidate may crash, hang or leave the device unusable.

One worker serves one device. It is a fresh interpreter (never a fork of this one), speaks JSON lines over a pipe, dies
with its parent, and is replaced after a crash, a timeout or an unexpected error; the parent records what happened
and goes on. The work itself is a *subject*: an object that the child makes from ``module:function`` and JSON options.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from moegen.core.canonical import Json
from moegen.core.errors import TuneError

_LOG_TAIL = 2000


class WorkerFailed(Exception):
    """A request was not answered.

    Args:
        status: ``crash`` (the process died), ``timeout`` (it was killed), ``oom`` (memory ran out) or ``error`` (the
            subject raised; the process was replaced since a device error may stick to it).
        note: signal, exit code or message, with the end of the child's stderr.
    """

    def __init__(self, status: str, note: str) -> None:
        self.status = status
        self.note = note
        super().__init__(status, note)


class Worker:
    """Parent's side of the worker process; starts it on the first request and again after each failure.

    Args:
        factory: ``module:function`` that the child calls with ``options`` to make the subject.
        options: JSON values for the factory.
        timeout_s: seconds one request may take.
        start_timeout_s: seconds that starting the interpreter and making the subject may take.
        environment: variables added to this process's environment in the child.
    """

    def __init__(
        self,
        factory: str,
        options: Mapping[str, Json],
        *,
        timeout_s: float = 60.0,
        start_timeout_s: float = 300.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._hello = {"factory": factory, "options": dict(options)}
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log: _Log | None = None
        self.starts = 0

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the running child, None when there is none."""
        return self._process.pid if self._process else None

    def call(self, method: str, *, timeout_s: float | None = None, **parameters: Json) -> Any:
        """Calls ``subject.method(**parameters)`` in the child and returns its JSON result.

        Raises:
            WorkerFailed: the child died, hung, ran out of memory or raised; the next call gets a new child.
            TuneError: the subject could not be made at all, so no candidate can be tried.
        """
        if self._process is None:
            self._start()
        return self._request({"method": method, "parameters": parameters}, timeout_s or self._timeout_s)

    def close(self) -> None:
        """Ends the child, if any."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()
        if self._log:
            self._log.close()

    def _start(self) -> None:
        self.starts += 1
        self._log = _Log()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moegen.tune.worker_main", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.fd,
            start_new_session=True,  # Ctrl-C is the parent's to handle: a child that it killed would look like a crash
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **self._environment},
        )
        try:
            self._request(self._hello, self._start_timeout_s)
        except WorkerFailed as failure:
            raise TuneError(
                f"the tuning worker did not start: {failure.status}: {failure.note}",
                str(self._hello["factory"]),
                "run moegen doctor",
            ) from failure

    def _request(self, message: dict[str, Any], timeout_s: float) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            answer = self._read_line(timeout_s)
        except BrokenPipeError:
            answer = b""
        if answer is None:
            note = f"no answer within {timeout_s:g} s{self._tail()}"
            self.close()
            raise WorkerFailed("timeout", note)
        if not answer.endswith(b"\n"):
            note = f"{self._death()}{self._tail()}"
            self.close()
            raise WorkerFailed("crash", note)
        reply = json.loads(answer)
        if "error" in reply:
            note = f"{reply['error']}{self._tail()}"
            self.close()
            raise WorkerFailed(reply["status"], note)
        return reply["result"]

    def _read_line(self, timeout_s: float) -> bytes | None:
        """One line, b"" or a part of a line at end of file, None when time ran out."""
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        line = b""
        while not line.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([fd], [], [], remaining)[0]:
                return None
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                return line
            line += chunk
        return line

    def _death(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def _tail(self) -> str:
        text = self._log.tail() if self._log else ""
        return f"; stderr: {text}" if text else ""


class _Log:
    """The child's stderr, in an anonymous file, so that a chatty child can never block on a full pipe."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("moegen-worker") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)

    def tail(self) -> str:
        size = os.fstat(self.fd).st_size
        return os.pread(self.fd, _LOG_TAIL, max(size - _LOG_TAIL, 0)).decode(errors="replace").strip()

    def close(self) -> None:
        os.close(self.fd)
