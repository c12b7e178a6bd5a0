"""Subjects for the tuning worker: candidates that are well, slow, fast but wrong, deadly, or never come back."""

import os
import signal
import sys
import time
from typing import Any


class FakeSubject:
    """Answers like a real subject, from behaviours given by candidate name."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def echo(self, value: Any) -> Any:
        return value

    def noisy(self) -> str:
        """Writes where the protocol must not live."""
        print("to stdout", flush=True)
        os.write(1, b'{"result": "forged"}\n')
        sys.stderr.write("to stderr\n")
        return sys.stdin.read()

    def die(self) -> None:
        sys.stderr.write("about to trap\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self) -> None:
        os._exit(3)

    def hang(self) -> None:
        time.sleep(3600)

    def refuse(self) -> None:
        raise ValueError("no such schedule")

    def hoard(self) -> int:
        return len(bytearray(1 << 60))

    def pid(self) -> int:
        return os.getpid()


def make_fake(**options: Any) -> FakeSubject:
    if options.get("broken"):
        raise RuntimeError("no device here")
    return FakeSubject(options)
