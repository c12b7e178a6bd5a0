"""An asynchronous operation as the race detector sees it, from its issue to its completion."""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.clocks import COPY, INIT, STORE
from moegen.ptx.emit import REACH
from moegen.ptx.global_races import WEAK
from moegen.ptx.report import Check
from moegen.ptx.shadow import granules, rows_of
from moegen.ptx.states import PER_CHUNK, Touched
from moegen.ptx.tensormap import ONE_ROW, Rows

if TYPE_CHECKING:
    from moegen.ptx.mbarrier import Mbarrier
    from moegen.ptx.memory import Block
    from moegen.ptx.races import RaceDetector
    from moegen.ptx.state import Cta
    from moegen.ptx.warp import Warp


class Ticket:
    """An asynchronous operation between issue and completion.

    Attributes:
        clock: what happened before it.
        clock_value: its number among the operations of its logical thread.
    """

    __slots__ = ("agent", "clock", "clock_value", "detector", "pc", "thread", "w")

    def __init__(self, detector: "RaceDetector", w: "Warp", agent: str, thread: int, value: int, clock: Any) -> None:
        self.detector = detector
        self.w = w
        self.pc = w.pc
        self.agent = agent
        self.thread = thread
        self.clock_value = value
        self.clock = clock

    def at_barrier(self, cta: "Cta", offset: int) -> None:
        """The operation completes on a barrier: its writes belong to that barrier's phase."""
        clocks = self.detector.of(cta)
        self.thread = clocks.thread(COPY, (cta.index, offset))
        barrier: Mbarrier | None = cta.mbarriers.get(offset)
        self.clock_value = barrier.phase + 1 if barrier is not None else 1

    def read_range(self, cta: "Cta", offset: int, count: int, check: Check) -> None:
        """Reads bytes of shared memory; ``check`` is reported for generic writes without a proxy fence."""
        clocks = self.detector.of(cta)
        touched = clocks.shared[cta.rank].at(granules(offset, count, clocks.shift))
        self._read(cta, touched, check, offset)

    def read_chunks(self, cta: "Cta", chunks: Any, check: Check) -> None:
        """Reads 16-byte chunks of shared memory, given by their numbers."""
        clocks = self.detector.of(cta)
        per, shadow = 16 // clocks.granule, clocks.shared[cta.rank]
        touched = shadow.chunks(chunks) if per == PER_CHUNK else shadow.at(rows_of(chunks.reshape(-1) * per, per))
        self._read(cta, touched, check, 16 * chunks.item(0))

    def _read(self, cta: "Cta", touched: Touched, check: Check, address: int) -> None:
        detector, clocks = self.detector, self.detector.of(cta)
        shadow = clocks.shared[cta.rank]
        for number in touched.distinct:
            state = shadow.states[number]
            if clocks.generic[state.writer] and clocks.fenced[state.writer] < state.clock:
                message = (
                    f"shared memory written by {clocks.names[state.writer]}{detector.place(self.w, state.pc)} is read "
                    "asynchronously without fence.proxy.async in between"
                )
                detector.report(check, message, self.w, self.pc, address)
                break
        for finding in shadow.read(touched, self.thread, self.clock_value, self.clock, self.pc):
            detector.explain(finding, self.w, self.pc, clocks, "shared memory", "read", address, self.clock)

    def write_range(self, cta: "Cta", offset: int, count: int) -> None:
        """Writes bytes of shared memory."""
        clocks = self.detector.of(cta)
        self._write(cta, clocks.shared[cta.rank].at(granules(offset, count, clocks.shift)), offset)

    def write_lanes(self, cta: "Cta", offsets: Any, size: int) -> None:
        """Writes ``size`` bytes at each of several offsets."""
        clocks = self.detector.of(cta)
        at = rows_of(offsets >> clocks.shift, max(size // clocks.granule, 1))
        self._write(cta, clocks.shared[cta.rank].at(at), int(offsets[0]))

    def _write(self, cta: "Cta", touched: Touched, address: int) -> None:
        clocks = self.detector.of(cta)
        for finding in clocks.shared[cta.rank].write(touched, self.thread, self.clock_value, self.clock, self.pc):
            self.detector.explain(finding, self.w, self.pc, clocks, "shared memory", "written", address, self.clock)

    def global_box(
        self, block: "Block", start: int, rows: Rows, length: int, write: bool, reduce: bool = False
    ) -> None:
        """Accesses ``length`` bytes of each of several rows of global memory.

        Args:
            block: the allocation.
            start: index of the first row's first byte in its data.
            rows: number of rows and bytes between them.
            length: bytes per row.
            write: the access writes.
            reduce: it is a reduction, an atomic.
        """
        memory = self.detector.memory
        thread = self.thread
        if write:
            thread = self.detector.of(self.w.cta).thread(STORE, self.w)
        reach = REACH["gpu"] if reduce else WEAK
        touched = memory.box(block, start, rows, length)
        memory.record(self.w, self.pc, thread, self.clock_value, self.clock, block, touched, reach, write)

    def global_range(self, block: "Block", start: int, length: int, write: bool, reduce: bool = False) -> None:
        """Accesses ``length`` bytes of global memory; see :meth:`global_box`."""
        self.global_box(block, start, ONE_ROW, length, write, reduce)

    def tmem_read(self, cta: "Cta", rows: int, column: int, count: int) -> None:
        """Reads tensor memory lanes 0 to ``rows`` - 1."""
        clocks = self.detector.of(cta)
        shadow = clocks.tensor[cta.rank]
        touched = shadow.at(_words(rows, column, count))
        for finding in shadow.read(touched, self.thread, self.clock_value, self.clock, self.pc):
            self.detector.explain(finding, self.w, self.pc, clocks, "tensor memory", "read", column, self.clock)

    def tmem_write(self, cta: "Cta", rows: int, column: int, count: int) -> None:
        """Writes tensor memory lanes 0 to ``rows`` - 1."""
        clocks = self.detector.of(cta)
        shadow = clocks.tensor[cta.rank]
        touched = shadow.at(_words(rows, column, count))
        for finding in shadow.write(touched, self.thread, self.clock_value, self.clock, self.pc):
            self.detector.explain(finding, self.w, self.pc, clocks, "tensor memory", "written", column, self.clock)

    def tmem_update(self, cta: "Cta", rows: int, column: int, count: int) -> None:
        """Reads and writes tensor memory lanes 0 to ``rows`` - 1."""
        clocks = self.detector.of(cta)
        shadow = clocks.tensor[cta.rank]
        touched = shadow.at(_words(rows, column, count))
        found = shadow.update(touched, self.thread, self.clock_value, self.clock, self.pc)
        for findings, verb in zip(found, ("read", "written"), strict=True):
            for finding in findings:
                self.detector.explain(finding, self.w, self.pc, clocks, "tensor memory", verb, column, self.clock)

    def arrive(self, cta: "Cta", offset: int, barrier: "Mbarrier") -> None:
        """Arrives at (or delivers to) a barrier: a waiter of this phase learns of the operation."""
        detector, clocks = self.detector, self.detector.of(cta)
        detector.check_init(self.w, cta, offset, self.clock, self.pc, asynchronous=self.agent in {"tma", "tensor"})
        phases = detector.phases(clocks, barrier)
        if self.agent == "tensor":
            forwarded = np.where(clocks.forwarded, self.clock, 0)
            # Fenced barrier initialisations count as released to the cluster: whoever follows the commit follows them.
            init = np.where(clocks.kinds == INIT, np.minimum(self.clock, clocks.init_fenced), 0)
            np.maximum(forwarded, init, out=forwarded)
            np.maximum(phases.current, forwarded, out=phases.current)
        phases.current[self.thread] = max(int(phases.current[self.thread]), self.clock_value)


def _words(rows: int, column: int, count: int) -> tuple[slice, slice]:
    """Granules of tensor memory: groups of 32 lanes, and columns."""
    return slice(0, (rows + 31) // 32), slice(column, column + count)
