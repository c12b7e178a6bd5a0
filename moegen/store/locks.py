"""Advisory locks that save work and are never needed for correctness.

The kernel releases a ``flock`` when its holder dies: a lock file left on disk blocks nobody. A lock that several
processes wait for is never unlinked: that would let two of them hold "the same" lock on two inodes.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.02
_UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
"""What ``flock`` says on a file system that has no locks."""


def try_lock(path: Path) -> int | None:
    """Takes the lock at once and returns its descriptor (close it to release), or None when somebody else holds it.

    Raises:
        OSError: the lock file cannot be created, or the file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def mark_alive(path: Path) -> int | None:
    """Takes a lock that nobody else can want, to show that this process lives; None where there are no locks.

    Raises:
        OSError: the lock file cannot be created.
    """
    try:
        return try_lock(path)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise


@contextmanager
def work_lock(path: Path, timeout_s: float) -> Iterator[bool]:
    """Waits at most ``timeout_s`` seconds for the lock; yields whether it is held.

    False means: do the work anyway, somebody may be doing it too. It is also the answer where locks cannot be had at
    all (read-only or missing folder, a file system without ``flock``).
    """
    descriptor = _wait(path, timeout_s)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _wait(path: Path, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = try_lock(path)
        except OSError:
            return None
        if descriptor is not None or time.monotonic() >= deadline:
            return descriptor
        time.sleep(_POLL_S)
