"""Small values for store tests."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moegen.store.artifacts import ArtifactStore
from moegen.store.keys import ArtifactKey

FILES: dict[str, Path | bytes] = {"kernel.so": b"\x7fELF object" * 50, "source.cc": b"int kernel;\n"}


def make_key(**changes: Any) -> ArtifactKey:
    """A key, with some fields replaced."""
    values: dict[str, Any] = {
        "source": "5" * 64,
        "closure": "c" * 64,
        "toolchain": (("g++", "12.2.0"), ("tvm_ffi", "0.1.15")),
        "arch": "x86-64-v3",
        "options": ("-DA=1", "-DB=2"),
        "symbol": "route",
        "abi": "tvm-ffi-0.1-linux-x86_64-64",
    }
    return ArtifactKey(**(values | changes))


def published(home: Path, **changes: Any) -> tuple[ArtifactStore, str, Path]:
    """A store with one entry: (a store that has not opened it yet, its digest, its folder)."""
    key = make_key(**changes)
    artifact = ArtifactStore(home).publish(key, FILES, {"compile_s": 1.5})
    return ArtifactStore(home), key.digest, artifact.directory


def in_child(action: Callable[[], None]) -> int:
    """Runs ``action`` in a forked process; returns its exit status, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def killed_at(step: int, *, before: bool) -> Iterator[None]:
    """Ends the process by SIGKILL at its ``step``-th durable operation (write, copy, sync of a folder, rename)."""
    from unittest import mock

    from moegen.store import artifacts

    count = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == step and before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = operation(*arguments, **named)
            if count == step and not before:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return run

    with (
        mock.patch.object(artifacts, "write_synced", counted(artifacts.write_synced)),
        mock.patch.object(artifacts, "copy_synced", counted(artifacts.copy_synced)),
        mock.patch.object(artifacts, "fsync_directory", counted(artifacts.fsync_directory)),
        mock.patch.object(artifacts.os, "rename", counted(os.rename)),
    ):
        yield


def as_nobody(action: Callable[[], None]) -> int:
    """Runs ``action`` in a forked process without root's rights: file modes then mean something."""

    def unprivileged() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        action()

    return in_child(unprivileged)
