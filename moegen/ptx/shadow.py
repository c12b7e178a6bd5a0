"""Shadow memory of the race detector: who wrote and read each granule last, as epochs of logical threads."""

from typing import Any, NamedTuple

import numpy as np

from moegen.ptx.report import Check
from moegen.ptx.states import Numbered, Touched

#: Logical thread 0 is nobody: memory that was never written.
NOBODY = 0


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


class State(NamedTuple):
    """History of a granule.

    Attributes:
        writer, clock, pc: of the last write: logical thread, its clock, instruction index.
        atomic: it was an atomic.
        readers: clock and instruction index of the last read since that write, per logical thread.
    """

    writer: int
    clock: int
    pc: int
    atomic: bool
    readers: dict[int, tuple[int, int]]


class Shadow(Numbered[State]):
    """Last accesses to the granules of one memory."""

    def __init__(self, shape: Any) -> None:
        super().__init__(shape, State(NOBODY, 0, 0, False, {}))

    def read(self, touched: Touched, thread: int, value: int, clock: Any, pc: int) -> list[Finding]:
        """Checks and records a read.

        Args:
            touched: granules.
            thread, value: epoch of the reader.
            clock: what the reader knows of each logical thread.
            pc: its instruction.

        Returns:
            Findings, at most one per check and other thread.
        """
        found = self._check_read(touched, clock)
        touched.replace([self._after_read(number, thread, value, pc) for number in touched.distinct])
        return found

    def write(
        self, touched: Touched, thread: int, value: int, clock: Any, pc: int, atomic: bool = False
    ) -> list[Finding]:
        """Checks and records a write; see :meth:`read`."""
        found = self._check_write(touched, thread, clock, atomic)
        touched.fill(self._after_write(thread, value, pc, atomic))
        return found

    def update(
        self, touched: Touched, thread: int, value: int, clock: Any, pc: int
    ) -> tuple[list[Finding], list[Finding]]:
        """A read and a write of the same granules by one operation: findings of each; see :meth:`read`."""
        found = self._check_read(touched, clock), self._check_write(touched, thread, clock, atomic=False)
        touched.fill(self._after_write(thread, value, pc, atomic=False))
        return found

    def _after_read(self, number: int, thread: int, value: int, pc: int) -> int:
        key = (number, thread, value, pc)
        new = self.made.get(key)
        if new is None:
            state = self.states[number]
            readers = state.readers | {thread: (value, pc)}
            new = self.made[key] = self.add(State(state.writer, state.clock, state.pc, state.atomic, readers))
        return new

    def _after_write(self, thread: int, value: int, pc: int, atomic: bool) -> int:
        key = (thread, value, pc, atomic)
        new = self.made.get(key)
        if new is None:
            new = self.made[key] = self.add(State(thread, value, pc, atomic, {}))
        return new

    def _check_read(self, touched: Touched, clock: Any) -> list[Finding]:
        bad, nobody = [], []
        for number in touched.distinct:
            state = self.states[number]
            if state.writer == NOBODY:
                nobody.append(number)
            elif clock[state.writer] < state.clock:
                bad.append(number)
        found = self._overwritten(touched, bad) if bad else []
        if nobody:
            found.append(Finding(Check.UNINITIALISED, touched.where(nobody), NOBODY, 0, 0))
        return found

    def _check_write(self, touched: Touched, thread: int, clock: Any, atomic: bool) -> list[Finding]:
        bad, behind = [], set()
        for number in touched.distinct:
            state = self.states[number]
            if clock[state.writer] < state.clock and not (atomic and state.atomic):
                bad.append(number)
            for other, (when, _) in state.readers.items():
                if other != thread and when > clock[other]:
                    behind.add(other)
        found = self._overwritten(touched, bad) if bad else []
        return found + [self._unfinished(touched, other, clock) for other in sorted(behind)]

    def _first(self, touched: Touched, mask: Any) -> State:
        return self.states[int(touched.numbers[mask][0])]

    def _overwritten(self, touched: Touched, bad: list[int]) -> list[Finding]:
        mask = touched.where(bad)
        state = self._first(touched, mask)
        return [Finding(Check.RACE, mask, state.writer, state.pc, 0)]

    def _unfinished(self, touched: Touched, reader: int, clock: Any) -> Finding:
        """Granules that a thread read later than the writer knows."""
        reads = {n: self.states[n].readers[reader] for n in touched.distinct if reader in self.states[n].readers}
        late = {number: read for number, read in reads.items() if read[0] > clock[reader]}
        mask = touched.where(list(late))
        _, pc = self._first(touched, mask).readers[reader]
        return Finding(Check.RACE, mask, reader, pc, max(when for when, _ in late.values()))

    def forget(self, index: Any) -> None:
        """Marks granules as never written."""
        self.numbers[index] = 0


def granules(start: int, count: int, shift: int) -> slice:
    """Granules of ``count`` bytes at ``start``."""
    return slice(start >> shift, (start + count - 1 >> shift) + 1)


def rows_of(places: Any, per: int) -> Any:
    """Granules of accesses to ``per`` granules at each place."""
    return (places[:, None] + np.arange(per)).reshape(-1) if per > 1 else places
