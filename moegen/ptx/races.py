"""Happens-before race detector for shared and tensor memory, with the proxy-fence rule.

Logical threads are the warps and, beside them, the asynchronous units: one per mbarrier for copies that complete on it
(clock = phase + 1), one per tensor pipe, and per warp one each for bulk groups, cp.async, tensor-memory loads and
stores, and barrier initialisations. Every logical thread knows, as a vector of clocks, what happened before its next
action. An access races when an earlier one to the same granule, one of both a write, is not in that vector.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.dtypes import ALL, Mask
from moegen.ptx.report import Check
from moegen.ptx.shadow import Finding, Shadow
from moegen.ptx.tmem import TMEM_COLUMNS

if TYPE_CHECKING:
    from moegen.ptx.mbarrier import Mbarrier
    from moegen.ptx.state import Cluster, Cta, Machine, NamedBarrier
    from moegen.ptx.warp import Warp

#: Kinds of logical threads.
WARP, COPY, PIPE, TMEM_LOAD, TMEM_STORE, CP_ASYNC, BULK, INIT, WGMMA = range(1, 10)
#: Kinds whose writes go through the generic proxy: asynchronous readers need a proxy fence after them.
_GENERIC = (WARP, CP_ASYNC)
#: Kinds whose progress a tensor-core commit passes on: what the issuer had waited for of other asynchronous units.
_FORWARDED = (COPY, PIPE, CP_ASYNC, WGMMA, BULK, TMEM_LOAD, TMEM_STORE)


class PhaseClock:
    """What arrivals at a barrier knew, by phase: a waiter learns it only of completed phases."""

    __slots__ = ("current", "past", "phase")

    def __init__(self, size: int) -> None:
        self.past = np.zeros(size, np.int32)
        self.current = np.zeros(size, np.int32)
        self.phase = 0

    def roll(self, phase: int) -> None:
        """Moves on when the barrier has completed a phase."""
        if phase != self.phase:
            np.maximum(self.past, self.current, out=self.past)
            self.current[:] = 0
            self.phase = phase


class ClusterClocks:
    """Logical threads of one cluster."""

    def __init__(self, cluster: "Cluster", granule: int) -> None:
        warps = sum(len(cta.warps) for cta in cluster.ctas)
        self.size = 64 + 8 * warps + 160 * cluster.size
        self.kinds = np.zeros(self.size, np.int8)
        self.generic = np.zeros(self.size, np.bool_)
        self.forwarded = np.zeros(self.size, np.bool_)
        self.names = [""] * self.size
        self.count = 1
        self.ids: dict[tuple[int, Any], int] = {}
        self.serials = np.zeros(self.size, np.int32)
        self.warps: dict[Warp, Any] = {}
        self.fenced = np.zeros(self.size, np.int32)
        self.init_fenced = np.zeros(self.size, np.int32)
        self.load_epochs: dict[int, list[int]] = {}
        self.cluster_clock = PhaseClock(self.size)
        self.atomics: dict[tuple[int, int], Any] = {}
        self.inits: dict[tuple[int, int], tuple[int, int]] = {}
        self.granule = granule
        self.shift = granule.bit_length() - 1
        self.shared = [Shadow(cta.shared.size // granule + 1) for cta in cluster.ctas]
        self.tensor = [Shadow(4 * TMEM_COLUMNS) for _ in cluster.ctas]
        for cta in cluster.ctas:
            for w in cta.warps:
                clock = np.zeros(self.size, np.int32)
                clock[self.thread(WARP, w)] = 1
                self.warps[w] = clock

    def thread(self, kind: int, key: Any) -> int:
        """Number of a logical thread, made on first use."""
        number = self.ids.get((kind, key))
        if number is None:
            number = self.count
            if number >= self.size:
                raise AssertionError("more logical threads than planned")
            self.count += 1
            self.ids[kind, key] = number
            self.kinds[number] = kind
            self.generic[number] = kind in _GENERIC
            self.forwarded[number] = kind in _FORWARDED
            self.names[number] = self._name(kind, key)
        return number

    @staticmethod
    def _name(kind: int, key: Any) -> str:
        what = {
            WARP: "warp",
            PIPE: "tensor core",
            TMEM_LOAD: "tcgen05.ld of warp",
            TMEM_STORE: "tcgen05.st of warp",
            CP_ASYNC: "cp.async of warp",
            BULK: "bulk store of warp",
            INIT: "mbarrier.init of warp",
            WGMMA: "wgmma of warpgroup",
        }.get(kind)
        if kind == COPY:
            return f"copy into mbarrier {key[1]:#x} of CTA {key[0]}"
        if kind == PIPE:
            return f"tensor core of CTA {key[2]} of the cluster"
        if kind == WGMMA:
            return f"{what} {key[1]} of CTA {key[0]}"
        return f"{what} {key.index} of CTA {key.cta.index}"


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


class RaceDetector:
    """Hooks that instructions call; one per run."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.clocks: dict[Cluster, ClusterClocks] = {}

    def start(self, cluster: "Cluster") -> None:
        """A cluster begins."""
        if cluster not in self.clocks:
            self.clocks[cluster] = ClusterClocks(cluster, cluster.grid.kernel.granule)

    def stop(self, cluster: "Cluster") -> None:
        """A cluster has ended."""
        self.clocks.pop(cluster, None)

    def of(self, cta: "Cta") -> ClusterClocks:
        """Clocks of a CTA's cluster."""
        return self.clocks[cta.cluster]

    # -- reports ------------------------------------------------------------------------------------------------

    def place(self, w: "Warp", pc: int) -> str:
        """Where an earlier access was."""
        items = w.kernel.items
        return f" (line {items[pc].line})" if 0 <= pc < len(items) else ""

    def report(self, check: Check, message: str, w: "Warp", pc: int, address: int) -> None:
        """Reports at an instruction."""
        items = w.kernel.items
        item = items[pc] if pc < len(items) else None
        name = w.kernel.entry.name
        self.machine.report(check, message, kernel=name, item=item, cta=w.cta.index, warp=w.index, address=address)

    def explain(
        self,
        finding: Finding,
        w: "Warp",
        pc: int,
        clocks: ClusterClocks,
        memory: str,
        verb: str,
        address: int,
        clock: Any,
    ) -> None:
        """Turns a shadow finding into a report."""
        check, mask, other, other_pc, value = finding
        if check is Check.UNINITIALISED:
            message = f"{memory} is read before anyone wrote it ({int(mask.sum())} granules)"
            self.report(check, message, w, pc, address)
            return
        name = clocks.names[other]
        if clocks.kinds[other] == TMEM_LOAD and memory == "tensor memory":
            # The reader did synchronise, only its load was not waited for.
            loader = next(key for (kind, key), number in clocks.ids.items() if number == other and kind == TMEM_LOAD)
            known = int(clock[clocks.thread(WARP, loader)])
            if known >= clocks.load_epochs[other][value - 1]:
                if verb == "freed":
                    return  # whoever used the loaded registers has waited for them
                check = Check.TMEM_LOAD_WAIT
                who = f"{name}{self.place(w, other_pc)}"
                message = f"tensor memory is overwritten although {who} was not waited for (wait::ld)"
                self.report(check, message, w, pc, address)
                return
        message = f"{memory} is {verb} without being ordered after the access by {name}{self.place(w, other_pc)}"
        self.report(check, message, w, pc, address)

    # -- accesses of warps --------------------------------------------------------------------------------------

    def _granules(self, clocks: ClusterClocks, offsets: Any, width: int, mask: Mask) -> Any:
        at = (offsets if mask is ALL else offsets[mask]).astype(np.int64) >> clocks.shift
        if width > clocks.granule:
            at = (at[:, None] + np.arange(width // clocks.granule)).reshape(-1)
        return at

    def shared_read(self, w: "Warp", cta: "Cta", offsets: Any, width: int, mask: Mask) -> None:
        """A warp reads shared memory."""
        clocks = self.of(cta)
        at = self._granules(clocks, offsets, width, mask)
        me, clock = clocks.thread(WARP, w), clocks.warps[w]
        for finding in clocks.shared[cta.rank].read(at, me, int(clock[me]), clock, w.pc):
            address = int(at[finding.mask][0]) * clocks.granule
            self.explain(finding, w, w.pc, clocks, "shared memory", "read", address, clock)

    def shared_write(self, w: "Warp", cta: "Cta", offsets: Any, width: int, mask: Mask) -> None:
        """A warp writes shared memory."""
        clocks = self.of(cta)
        at = self._granules(clocks, offsets, width, mask)
        me, clock = clocks.thread(WARP, w), clocks.warps[w]
        for finding in clocks.shared[cta.rank].write(at, me, int(clock[me]), clock, w.pc):
            address = int(at[finding.mask][0]) * clocks.granule
            self.explain(finding, w, w.pc, clocks, "shared memory", "written", address, clock)

    def shared_atomic(self, w: "Warp", cta: "Cta", offset: int, width: int) -> None:
        """A warp's atomic: orders itself with other atomics on the address, and races with plain accesses only."""
        clocks = self.of(cta)
        me, clock = clocks.thread(WARP, w), clocks.warps[w]
        key = (cta.rank, offset)
        seen = clocks.atomics.get(key)
        if seen is None:
            seen = clocks.atomics[key] = np.zeros(clocks.size, np.int32)
        np.maximum(clock, seen, out=clock)
        at = np.arange(offset >> clocks.shift, (offset + width - 1 >> clocks.shift) + 1)
        shadow = clocks.shared[cta.rank]
        for finding in shadow.write(at, me, int(clock[me]), clock, w.pc, atomic=True):
            self.explain(finding, w, w.pc, clocks, "shared memory", "written", offset, clock)
        np.maximum(seen, clock, out=seen)
        clock[me] += 1

    # -- barriers -----------------------------------------------------------------------------------------------

    def phases(self, clocks: ClusterClocks, barrier: Any) -> PhaseClock:
        """Phase clock of an mbarrier or named barrier, up to date."""
        phase = barrier.phase if hasattr(barrier, "phase") else barrier.generation
        if barrier.clock is None:
            barrier.clock = PhaseClock(clocks.size)
            barrier.clock.phase = phase
        barrier.clock.roll(phase)
        return barrier.clock

    def _release(self, w: "Warp", phases: PhaseClock) -> None:
        clocks = self.of(w.cta)
        clock = clocks.warps[w]
        np.maximum(phases.current, clock, out=phases.current)
        clock[clocks.thread(WARP, w)] += 1

    def _acquire(self, w: "Warp", phases: PhaseClock) -> None:
        clock = self.of(w.cta).warps[w]
        np.maximum(clock, phases.past, out=clock)

    def barrier_arrive(self, w: "Warp", barrier: "NamedBarrier") -> None:
        """A warp arrives at a CTA barrier."""
        self._release(w, self.phases(self.of(w.cta), barrier))

    def barrier_wait(self, w: "Warp", barrier: "NamedBarrier") -> None:
        """A warp leaves a CTA barrier."""
        self._acquire(w, self.phases(self.of(w.cta), barrier))

    def cluster_arrive(self, w: "Warp", relaxed: bool) -> None:
        """A warp arrives at the cluster barrier; relaxed arrivals pass on fenced barrier initialisations only."""
        clocks = self.of(w.cta)
        phases = clocks.cluster_clock
        phases.roll(w.cta.cluster.generation)
        if relaxed:
            mine = np.where(clocks.kinds == INIT, np.minimum(clocks.warps[w], clocks.init_fenced), 0)
            np.maximum(phases.current, mine, out=phases.current)
        else:
            self._release(w, phases)

    def cluster_wait(self, w: "Warp") -> None:
        """A warp leaves the cluster barrier."""
        phases = self.of(w.cta).cluster_clock
        phases.roll(w.cta.cluster.generation)
        self._acquire(w, phases)

    # -- mbarriers ----------------------------------------------------------------------------------------------

    def mbarrier_init(self, w: "Warp", cta: "Cta", offset: int) -> None:
        """A warp initialises a barrier."""
        clocks = self.of(cta)
        thread = clocks.thread(INIT, w)
        clocks.serials[thread] += 1
        clocks.warps[w][thread] = clocks.serials[thread]
        clocks.inits[cta.rank, offset] = (thread, int(clocks.serials[thread]))

    def mbarrier_inval(self, w: "Warp", cta: "Cta", offset: int) -> None:
        """A warp invalidates a barrier."""
        self.of(cta).inits.pop((cta.rank, offset), None)

    def mbarrier_use(self, w: "Warp", cta: "Cta", offset: int) -> None:
        """A warp uses a barrier."""
        self.check_init(w, cta, offset, self.of(cta).warps[w], w.pc, asynchronous=False)

    def check_init(self, w: "Warp", cta: "Cta", offset: int, clock: Any, pc: int, asynchronous: bool) -> None:
        """A use of a barrier must come after its initialisation, and asynchronous or remote ones after a fence."""
        clocks = self.of(cta)
        found = clocks.inits.get((cta.rank, offset))
        if found is None:
            return
        thread, serial = found
        if clock[thread] < serial:
            message = f"an mbarrier is used without being ordered after {clocks.names[thread]}"
            self.report(Check.RACE, message, w, pc, offset)
        elif (asynchronous or w.cta is not cta) and clocks.init_fenced[thread] < serial:
            message = f"an mbarrier is used by another proxy or CTA, but {clocks.names[thread]} made no fence after it"
            self.report(Check.PROXY_FENCE, message, w, pc, offset)

    def mbarrier_arrive(self, w: "Warp", barrier: "Mbarrier") -> None:
        """A warp arrives; called before the arrival is counted."""
        self._release(w, self.phases(self.of(w.cta), barrier))

    def mbarrier_wait(self, w: "Warp", barrier: "Mbarrier") -> None:
        """A warp's wait for a phase succeeded."""
        self._acquire(w, self.phases(self.of(w.cta), barrier))

    # -- fences -------------------------------------------------------------------------------------------------

    def fence(self, w: "Warp", scope: str) -> None:
        """A thread fence. Edges come from barriers; a fence adds none of its own."""

    def fence_init(self, w: "Warp") -> None:
        """fence.mbarrier_init: this warp's initialisations become visible to other proxies and CTAs."""
        clocks = self.of(w.cta)
        thread = clocks.thread(INIT, w)
        clocks.init_fenced[thread] = clocks.serials[thread]

    def fence_proxy(self, w: "Warp") -> None:
        """fence.proxy.async: generic writes that this warp knows of become visible to the async proxy."""
        clocks = self.of(w.cta)
        np.maximum(clocks.fenced, clocks.warps[w], out=clocks.fenced)
        self.fence_init(w)

    # -- asynchronous operations --------------------------------------------------------------------------------

    def issue(self, w: "Warp", agent: str, pipe: Any = None, advance: bool = True) -> Ticket:
        """A warp starts an operation.

        Args:
            w: issuing warp.
            agent: ``tma``, ``bulk``, ``cp.async``, ``tensor`` or ``wgmma``.
            pipe: key of the tensor pipe.
            advance: False for an operation that only announces earlier ones.
        """
        clocks = self.of(w.cta)
        clock = clocks.warps[w].copy()
        if agent == "tma":
            return Ticket(self, w, agent, 0, 0, clock)
        if agent == "tensor":
            thread = clocks.thread(PIPE, pipe)
        elif agent == "wgmma":
            thread = clocks.thread(WGMMA, (w.cta.index, w.index // 4))
        else:
            thread = clocks.thread({"bulk": BULK, "cp.async": CP_ASYNC}[agent], w)
        if advance:
            clocks.serials[thread] += 1
        value = int(clocks.serials[thread])
        if agent in {"tensor", "wgmma"}:
            clock[thread] = value  # operations of one pipe run in order
        return Ticket(self, w, agent, thread, value, clock)

    def refresh(self, ticket: Ticket, w: "Warp") -> None:
        """The last warp of a warpgroup joins an operation: it is the one that the operation waits for."""
        clock = self.of(w.cta).warps[w].copy()
        clock[ticket.thread] = ticket.clock_value
        ticket.clock = clock

    def group_wait(self, w: "Warp", kind: str, serial: int) -> None:
        """A wait for groups of bulk copies, cp.async or wgmma ended."""
        clocks = self.of(w.cta)
        if kind == "wgmma":
            thread = clocks.thread(WGMMA, (w.cta.index, w.index // 4))
        else:
            thread = clocks.thread({"bulk": BULK, "cp.async": CP_ASYNC}[kind], w)
        clocks.warps[w][thread] = max(int(clocks.warps[w][thread]), serial)

    # -- tensor memory ------------------------------------------------------------------------------------------

    def tmem_load(self, w: "Warp", group: int, column: int, count: int) -> None:
        """tcgen05.ld of one group of 32 lanes."""
        clocks = self.of(w.cta)
        thread, clock = clocks.thread(TMEM_LOAD, w), clocks.warps[w]
        clocks.serials[thread] += 1
        clocks.load_epochs.setdefault(thread, []).append(int(clock[clocks.thread(WARP, w)]))
        start = group * TMEM_COLUMNS + column
        at = slice(start, start + count)
        for finding in clocks.tensor[w.cta.rank].read(at, thread, int(clocks.serials[thread]), clock, w.pc):
            self.explain(finding, w, w.pc, clocks, "tensor memory", "read", column, clock)

    def tmem_store(self, w: "Warp", group: int, column: int, count: int) -> None:
        """tcgen05.st of one group of 32 lanes."""
        clocks = self.of(w.cta)
        thread, clock = clocks.thread(TMEM_STORE, w), clocks.warps[w]
        clocks.serials[thread] += 1
        start = group * TMEM_COLUMNS + column
        at = slice(start, start + count)
        known = clock.copy()
        known[thread] = clocks.serials[thread]  # stores of one warp are ordered
        for finding in clocks.tensor[w.cta.rank].write(at, thread, int(clocks.serials[thread]), known, w.pc):
            self.explain(finding, w, w.pc, clocks, "tensor memory", "written", column, clock)

    def tmem_wait(self, w: "Warp", kind: str) -> None:
        """tcgen05.wait::ld or ::st."""
        clocks = self.of(w.cta)
        thread = clocks.thread(TMEM_LOAD if kind == "ld" else TMEM_STORE, w)
        clocks.warps[w][thread] = clocks.serials[thread]

    def tmem_alloc(self, cta: "Cta", start: int, columns: int) -> None:
        """An allocation begins: its contents are undefined."""
        for group in range(4):
            at = group * TMEM_COLUMNS + start
            self.of(cta).tensor[cta.rank].forget(slice(at, at + columns))

    def tmem_free(self, w: "Warp", cta: "Cta", start: int, columns: int) -> None:
        """An allocation ends: every access to it must have happened before."""
        clocks = self.of(cta)
        me, clock = clocks.thread(WARP, w), clocks.warps[w]
        for group in range(4):
            at = group * TMEM_COLUMNS + start
            shadow = clocks.tensor[cta.rank]
            for finding in shadow.write(slice(at, at + columns), me, int(clock[me]), clock, w.pc):
                self.explain(finding, w, w.pc, clocks, "tensor memory", "freed", start, clock)
