"""Registers that hold one value in all lanes.

Address arithmetic, loop counters, predicates and descriptors mostly do. Their arrays come from tables, one array per
value, so that the value of such a register is known by the identity of its array, and arithmetic on it can be done on
Python integers (``scalar_code``).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from moegen.ptx.dtypes import ALL, LANES

#: Value of every array in the tables, by its identity.
KNOWN: dict[int, int] = {}
#: Values after which the tables take no more, until the next run.
_FULL = 1 << 16


class _Table(dict[int, Any]):
    """Array of every value of one type."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = np.dtype(dtype)

    def __missing__(self, value: int) -> Any:
        array = np.full(LANES, value, self.dtype)
        array.flags.writeable = False
        if len(KNOWN) < _FULL:
            self[value] = array
            KNOWN[id(array)] = value
        return array


#: By NumPy type.
TABLES = {dtype: _Table(dtype) for dtype in ("u1", "u2", "u4", "u8")}
_NONE = np.zeros(LANES, np.bool_)
_NONE.flags.writeable = False
TRUTH: dict[int, Any] = {False: _NONE, True: ALL}


def begin() -> None:
    """A run begins: full tables are emptied. Arrays of earlier runs are no longer in use."""
    if len(KNOWN) >= _FULL:
        KNOWN.clear()
        for table in TABLES.values():
            table.clear()
        _start()


def _start() -> None:
    KNOWN.update({id(array): value for value, array in TRUTH.items()})


_start()


def lanes_of(dtype: Any) -> Callable[[int], Any] | None:
    """Gives the array of a value of a type of which there is a table."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return TRUTH.__getitem__
    table = TABLES.get(kind.str[1:])
    return None if table is None else table.__getitem__


def same(array: Any) -> Any:
    """The table's array where all lanes are equal; else the array itself."""
    raw, size = array.tobytes(), array.itemsize
    table: dict[int, Any] | None = TRUTH if array.dtype.kind == "b" else TABLES.get(array.dtype.str[1:])
    if table is None or raw != raw[:size] * LANES:
        return array
    return table[int.from_bytes(raw[:size], "little")]
