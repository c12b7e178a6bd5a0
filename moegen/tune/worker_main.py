"""The child's side of :mod:`moegen.tune.worker`: ``python -m moegen.tune.worker_main PARENT_PID``."""

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> int:
    """Serves requests until the parent closes the pipe; returns the exit code."""
    _die_with_parent(int(arguments[0]))
    _volunteer_for_oom()
    requests, replies = _private_pipes()
    subject: Any = None
    for line in requests:
        message = json.loads(line)
        if subject is None:
            subject, failure = _attempt(_make_subject, **message)
            result = None
        else:
            result, failure = _attempt(getattr(subject, message["method"]), **message["parameters"])
        replies.write(json.dumps(failure or {"result": result}).encode() + b"\n")
        replies.flush()
    return 0


def _make_subject(factory: str, options: dict[str, Any]) -> Any:
    module, _, function = factory.partition(":")
    return getattr(importlib.import_module(module), function)(**options)


def _attempt(work: Callable[..., Any], **parameters: Any) -> tuple[Any, dict[str, str] | None]:
    """Result of ``work``, or how it failed. A broad catch on purpose: a candidate may raise anything, and the parent
    records it and replaces this process."""
    try:
        return work(**parameters), None
    except MemoryError as error:
        return None, {"status": "oom", "error": f"MemoryError: {error}"}
    except Exception as error:
        # torch raises its own class on a GPU and a plain RuntimeError on a CPU.
        out_of_memory = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
        status = "oom" if out_of_memory else "error"
        return None, {"status": status, "error": f"{type(error).__name__}: {error}"}


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Moves the protocol off descriptors 0 and 1, so that a candidate that prints or reads cannot break it."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb")


def _die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends (Linux; elsewhere a closed pipe ends it)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl took effect
        os._exit(1)


def _volunteer_for_oom() -> None:
    """Makes this process the first to go when the machine runs out of memory, instead of the tuner."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # not Linux, or not permitted: only the order of victims changes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
