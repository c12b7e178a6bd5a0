"""Shadow memory of the race detector: who wrote and read each granule last, as epochs of logical threads."""

from typing import Any, NamedTuple

import numpy as np

from moegen.ptx.report import Check

#: Logical thread 0 is nobody: memory that was never written.
NOBODY = 0
_SLOTS = 64


class Finding(NamedTuple):
    """A conflict.

    Attributes:
        check: kind.
        mask: which of the accessed granules.
        thread: logical thread of the earlier access.
        pc: its instruction index.
        value: its clock, for reads.
    """

    check: Check
    mask: Any
    thread: int
    pc: int
    value: int


class Shadow:
    """Last accesses to the granules of one memory.

    Attributes:
        writer, write_clock, write_pc: per granule, the last write: logical thread, its clock, instruction index.
        readers: per granule, bit set of reader slots since that write.
    """

    def __init__(self, granules: int) -> None:
        self.writer = np.zeros(granules, np.int32)
        self.write_clock = np.zeros(granules, np.int32)
        self.write_pc = np.zeros(granules, np.int32)
        self.atomic = np.zeros(granules, np.bool_)
        self.readers = np.zeros(granules, np.uint64)
        self.slots: list[int] = []
        self.slot_of: dict[int, int] = {}
        self.read_clock: list[Any] = []
        self.read_pc: list[Any] = []
        self.any_atomic = False

    def _slot(self, thread: int) -> int:
        slot = self.slot_of.get(thread)
        if slot is None:
            slot = len(self.slots)
            if slot >= _SLOTS:
                # More readers than bits: the oldest slot is given up, with what it knew.
                slot = thread % _SLOTS
                del self.slot_of[self.slots[slot]]
                self.slots[slot] = thread
                self.readers &= ~np.uint64(1 << slot)
            else:
                self.slots.append(thread)
                self.read_clock.append(np.zeros(self.writer.size, np.int32))
                self.read_pc.append(np.zeros(self.writer.size, np.int32))
            self.slot_of[thread] = slot
        return slot

    def read(self, at: Any, thread: int, value: int, clock: Any, pc: int) -> list[Finding]:
        """Checks and records a read.

        Args:
            at: granule indices (array or slice).
            thread, value: epoch of the reader.
            clock: what the reader knows of each logical thread.
            pc: its instruction.

        Returns:
            Findings, at most one per check and other thread.
        """
        writer = self.writer[at]
        bad = clock[writer] < self.write_clock[at]
        found: list[Finding] = []
        if bad.any():
            found.append(self._first(Check.RACE, bad, writer, self.write_pc[at]))
        if (writer == NOBODY).any():
            mask = writer == NOBODY
            found.append(Finding(Check.UNINITIALISED, mask, NOBODY, 0, 0))
        slot = self._slot(thread)
        self.read_clock[slot][at] = value
        self.read_pc[slot][at] = pc
        self.readers[at] |= np.uint64(1 << slot)
        return found

    def write(self, at: Any, thread: int, value: int, clock: Any, pc: int, atomic: bool = False) -> list[Finding]:
        """Checks and records a write; see :meth:`read`."""
        writer = self.writer[at]
        bad = clock[writer] < self.write_clock[at]
        if atomic and self.any_atomic:
            bad &= ~self.atomic[at]
        found = []
        if bad.any():
            found.append(self._first(Check.RACE, bad, writer, self.write_pc[at]))
        readers = self.readers[at]
        union = int(np.bitwise_or.reduce(readers, axis=None)) if readers.size else 0
        while union:
            slot = (union & -union).bit_length() - 1
            union &= union - 1
            other = self.slots[slot]
            if other == thread:
                continue
            behind = (self.read_clock[slot][at] > clock[other]) & ((readers >> np.uint64(slot)) & np.uint64(1)).astype(
                bool
            )
            if behind.any():
                newest = int(self.read_clock[slot][at][behind].max())
                found.append(Finding(Check.RACE, behind, other, int(self.read_pc[slot][at][behind][0]), newest))
        self.writer[at] = thread
        self.write_clock[at] = value
        self.write_pc[at] = pc
        self.readers[at] = 0
        if atomic or self.any_atomic:
            self.atomic[at] = atomic
            self.any_atomic = True
        return found

    @staticmethod
    def _first(check: Check, bad: Any, threads: Any, pcs: Any) -> "Finding":
        return Finding(check, bad, int(threads[bad][0]), int(pcs[bad][0]), 0)

    def forget(self, at: Any) -> None:
        """Marks granules as never written."""
        self.writer[at] = NOBODY
        self.write_clock[at] = 0
        self.readers[at] = 0
