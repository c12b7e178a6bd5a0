"""Pins NumPy's matrix products to one thread: small products on busy cores run several times slower with more."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")


@cache
def _controls() -> tuple[Any, Any] | None:
    """Getter and setter of the thread count of the OpenBLAS that NumPy ships, or None."""
    root = Path(np.__file__).parent
    for folder in (root.parent / "numpy.libs", root / ".dylibs", root / ".libs"):
        for path in sorted(folder.glob("*openblas*")) if folder.is_dir() else []:
            library = ctypes.CDLL(str(path))
            for name in _NAMES:
                try:
                    return library[name.format("get")], library[name.format("set")]
                except AttributeError:
                    continue
    return None


@contextmanager
def single_threaded() -> Iterator[None]:
    """One BLAS thread inside the block; elsewhere as before. Another BLAS is left alone."""
    controls = _controls()
    if controls is None:
        yield
        return
    get, put = controls
    before = int(get())
    put(1)
    try:
        yield
    finally:
        put(before)
