"""An asynchronous operation as the race detector sees it, from its issue to its completion."""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.clocks import COPY, INIT, STORE
from moegen.ptx.emit import REACH
from moegen.ptx.global_races import WEAK
from moegen.ptx.report import Check
from moegen.ptx.tmem import TMEM_COLUMNS

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
        shift = self.detector.of(cta).shift
        self._read(cta, slice(offset >> shift, (offset + count - 1 >> shift) + 1), check, offset)

    def read_chunks(self, cta: "Cta", addresses: Any, check: Check) -> None:
        """Reads 16-byte chunks of shared memory."""
        clocks = self.detector.of(cta)
        per = 16 // clocks.granule
        at = ((addresses.reshape(-1) >> clocks.shift)[:, None] + np.arange(per)).reshape(-1)
        self._read(cta, at, check, int(addresses.min()))

    def _read(self, cta: "Cta", at: Any, check: Check, address: int) -> None:
        detector, clocks = self.detector, self.detector.of(cta)
        shadow = clocks.shared[cta.rank]
        writer = shadow.writer[at]
        generic = clocks.generic[writer]
        if generic.any():
            unfenced = generic & (clocks.fenced[writer] < shadow.write_clock[at])
            if unfenced.any():
                who, pc = int(writer[unfenced][0]), int(shadow.write_pc[at][unfenced][0])
                message = (
                    f"shared memory written by {clocks.names[who]}{detector.place(self.w, pc)} is read asynchronously "
                    "without fence.proxy.async in between"
                )
                detector.report(check, message, self.w, self.pc, address)
        for finding in shadow.read(at, self.thread, self.clock_value, self.clock, self.pc):
            detector.explain(finding, self.w, self.pc, clocks, "shared memory", "read", address, self.clock)

    def write_range(self, cta: "Cta", offset: int, count: int) -> None:
        """Writes bytes of shared memory."""
        shift = self.detector.of(cta).shift
        self._write(cta, slice(offset >> shift, (offset + count - 1 >> shift) + 1), offset)

    def write_lanes(self, cta: "Cta", offsets: Any, size: int) -> None:
        """Writes ``size`` bytes at each of several offsets."""
        clocks = self.detector.of(cta)
        per = max(size // clocks.granule, 1)
        at = ((offsets >> clocks.shift)[:, None] + np.arange(per)).reshape(-1)
        self._write(cta, at, int(offsets[0]))

    def _write(self, cta: "Cta", at: Any, address: int) -> None:
        clocks = self.detector.of(cta)
        for finding in clocks.shared[cta.rank].write(at, self.thread, self.clock_value, self.clock, self.pc):
            self.detector.explain(finding, self.w, self.pc, clocks, "shared memory", "written", address, self.clock)

    def global_rows(self, block: "Block", starts: Any, length: int, write: bool, reduce: bool = False) -> None:
        """Accesses ``length`` bytes of global memory at each of several offsets in an allocation's data."""
        memory = self.detector.memory
        at = (starts >> memory.shift).reshape(-1, 1) + np.arange((length - 1 >> memory.shift) + 1)
        thread = self.thread
        if write:
            thread = self.detector.of(self.w.cta).thread(STORE, self.w)
        reach = REACH["gpu"] if reduce else WEAK
        value = self.clock_value
        memory.record(self.w, self.pc, thread, value, self.clock, block, at.reshape(-1), reach, write)

    def tmem_read(self, cta: "Cta", rows: int, column: int, count: int) -> None:
        """Reads tensor memory lanes 0 to ``rows`` - 1."""
        clocks = self.detector.of(cta)
        for finding in clocks.tensor[cta.rank].read(
            _tensor_index(rows, column, count), self.thread, self.clock_value, self.clock, self.pc
        ):
            self.detector.explain(finding, self.w, self.pc, clocks, "tensor memory", "read", column, self.clock)

    def tmem_write(self, cta: "Cta", rows: int, column: int, count: int) -> None:
        """Writes tensor memory lanes 0 to ``rows`` - 1."""
        clocks = self.detector.of(cta)
        for finding in clocks.tensor[cta.rank].write(
            _tensor_index(rows, column, count), self.thread, self.clock_value, self.clock, self.pc
        ):
            self.detector.explain(finding, self.w, self.pc, clocks, "tensor memory", "written", column, self.clock)

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


def _tensor_index(rows: int, column: int, count: int) -> Any:
    groups = (rows + 31) // 32
    if groups == 1:
        return slice(column, column + count)
    return (np.arange(groups)[:, None] * TMEM_COLUMNS + np.arange(column, column + count)).reshape(-1)
