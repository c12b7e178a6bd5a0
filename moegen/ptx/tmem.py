"""Tensor memory of a CTA: 128 lanes by 512 columns of 32 bits, and who allocated what."""

from typing import TYPE_CHECKING

import numpy as np

from moegen.ptx.memory import MemoryFault

if TYPE_CHECKING:
    from moegen.ptx.state import Cta

TMEM_LANES = 128
TMEM_COLUMNS = 512
_POISON = 0x7FFFDEAD


class TensorMemory:
    """Contents and allocation state.

    Attributes:
        owner: per column, start of the allocation it belongs to, or -1.
        permit: whether this CTA may still allocate.
        requested: columns of an allocation for a CTA pair that waits for the other CTA, 0 if none.
        granted: start of such an allocation, until its warp picks it up.
    """

    def __init__(self, cta: "Cta") -> None:
        self.cta = cta
        self._data: np.ndarray | None = None
        self.owner = np.full(TMEM_COLUMNS, -1, np.int16)
        self.sizes: dict[int, int] = {}
        self.permit = True
        self.requested = 0
        self.granted: int | None = None

    @property
    def data(self) -> np.ndarray:
        """u32 words [lane, column]; NaN patterns until written."""
        if self._data is None:
            self._data = np.full((TMEM_LANES, TMEM_COLUMNS), _POISON, np.uint32)
        return self._data

    def allocate(self, columns: int) -> int | None:
        """Reserves columns; the start, or None when there is no room (the hardware would block).

        Raises:
            MemoryFault: not a power of two from 32 to 512, or the permit was given up.
        """
        if columns not in (32, 64, 128, 256, 512):
            raise MemoryFault("tmem-access", f"an allocation of {columns} columns", columns)
        if not self.permit:
            raise MemoryFault("tmem-access", "an allocation after relinquish_alloc_permit", columns)
        for start in range(0, TMEM_COLUMNS, columns):
            if (self.owner[start : start + columns] < 0).all():
                self.owner[start : start + columns] = start
                self.sizes[start] = columns
                self.data[:, start : start + columns] = _POISON
                return start
        return None

    def free(self, start: int, columns: int) -> None:
        """Releases an allocation.

        Raises:
            MemoryFault: not the start and size of an allocation.
        """
        if self.sizes.get(start) != columns:
            raise MemoryFault("tmem-access", f"dealloc of {columns} columns at {start}, which is no allocation", start)
        del self.sizes[start]
        self.owner[start : start + columns] = -1

    def check(self, column: int, count: int) -> None:
        """Checks that columns belong to one allocation.

        Raises:
            MemoryFault: outside tensor memory, or not allocated (or freed).
        """
        if column < 0 or column + count > TMEM_COLUMNS:
            raise MemoryFault("tmem-access", f"columns {column}..{column + count - 1} leave tensor memory", column)
        start = int(self.owner[column])
        if start < 0 or column + count > start + self.sizes[start]:
            raise MemoryFault("tmem-access", f"columns {column}..{column + count - 1} are not one allocation", column)
