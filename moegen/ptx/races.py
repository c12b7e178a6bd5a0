"""Happens-before race detector for shared, tensor and global memory, with the proxy-fence rule.

Every logical thread knows, as a vector of clocks, what happened before its next action (``clocks``). An access races
when an earlier one to the same granule, one of both a write, is not in that vector.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.clocks import (
    BULK,
    CP_ASYNC,
    INIT,
    PIPE,
    STORE,
    TMEM_LOAD,
    TMEM_STORE,
    WARP,
    WGMMA,
    ClusterClocks,
    PhaseClock,
)
from moegen.ptx.dtypes import ALL, LANE_IDS, Mask
from moegen.ptx.global_races import GlobalRaces
from moegen.ptx.report import Check
from moegen.ptx.shadow import Finding, granules, rows_of
from moegen.ptx.states import PER_CHUNK
from moegen.ptx.ticket import Ticket

if TYPE_CHECKING:
    from moegen.ptx.mbarrier import Mbarrier
    from moegen.ptx.state import Cluster, Cta, Machine, NamedBarrier
    from moegen.ptx.warp import Warp


#: Lane of each granule where every lane accesses several.
_REPEATED = {per: LANE_IDS.astype(np.uint64).repeat(per) for per in (2, 4, 8, 16, 32)}


class RaceDetector:
    """Hooks that instructions call; one per run.

    Attributes:
        memory: global memory's part.
    """

    def __init__(self, machine: "Machine", granule: int) -> None:
        self.machine = machine
        self.memory = GlobalRaces(self, granule)
        self.clocks: dict[Cluster, ClusterClocks] = {}
        self.lane_phases: dict[Warp, int] = {}

    def start(self, cluster: "Cluster") -> None:
        """A cluster begins."""
        if cluster not in self.clocks:
            self.clocks[cluster] = ClusterClocks(cluster, cluster.grid.kernel.granule("shared"))
            self.memory.start(cluster)

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

    def shared_access(self, w: "Warp", cta: "Cta", offsets: Any, width: int, mask: Mask, write: bool) -> None:
        """A warp reads or writes shared memory."""
        clocks = self.of(cta)
        chosen, lanes = (offsets, LANE_IDS) if mask is ALL else (offsets[mask], LANE_IDS[mask])
        places = (chosen >> np.uint64(clocks.shift)).view(np.int64)
        per = width // clocks.granule
        at = rows_of(places, per)
        me, clock = clocks.thread(WARP, w), clocks.warps[w]
        shadow = clocks.shared[cta.rank]
        touched = shadow.chunks(places >> 2) if per == PER_CHUNK else shadow.at(at)
        found = (shadow.write if write else shadow.read)(touched, me, int(clock[me]), clock, w.pc)
        for finding in found:
            address = int(at[finding.mask][0]) * clocks.granule
            self.explain(finding, w, w.pc, clocks, "shared memory", "written" if write else "read", address, clock)
        lanes = (_REPEATED[per] if mask is ALL else lanes.repeat(per)) if per > 1 else lanes
        clash = clocks.lanes[cta.rank].access(at, lanes, self.phase(w), write)
        if clash is not None:
            self.report_lanes(w, int(lanes[clash]), int(at[clash]) * clocks.granule, "shared memory")

    def phase(self, w: "Warp") -> int:
        """Number of a warp and of its synchronisations so far."""
        number = self.lane_phases.get(w)
        if number is None:
            number = self.lane_phases[w] = len(self.lane_phases) << 32
        return number

    def lanes_synchronise(self, w: "Warp") -> None:
        """The lanes of a warp have synchronised."""
        self.lane_phases[w] = self.phase(w) + 1

    def report_lanes(self, w: "Warp", lane: int, address: int, memory: str) -> None:
        """Reports an access that another lane's precedes without a synchronisation of the warp."""
        message = f"{memory} that another lane accessed is accessed, and one of both writes, without bar.warp.sync"
        self.machine.fault(w, Check.RACE_LANES, message, lane, address)

    def shared_atomic(self, w: "Warp", cta: "Cta", offset: int, width: int) -> None:
        """A warp's atomic: orders itself with other atomics on the address, and races with plain accesses only."""
        clocks = self.of(cta)
        me, clock = clocks.thread(WARP, w), clocks.warps[w]
        self.lanes_synchronise(w)
        key = (cta.rank, offset)
        seen = clocks.atomics.get(key)
        if seen is None:
            seen = clocks.atomics[key] = np.zeros(clocks.size, np.int32)
        np.maximum(clock, seen, out=clock)
        shadow = clocks.shared[cta.rank]
        touched = shadow.at(granules(offset, width, clocks.shift))
        for finding in shadow.write(touched, me, int(clock[me]), clock, w.pc, atomic=True):
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
        self.lanes_synchronise(w)

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

    def group_wait(self, w: "Warp", kind: str, serial: int, reads_only: bool) -> None:
        """A wait for groups of bulk copies (or for their reads only), cp.async or wgmma ended."""
        clocks = self.of(w.cta)
        if kind == "wgmma":
            thread = clocks.thread(WGMMA, (w.cta.index, w.index // 4))
        else:
            thread = clocks.thread({"bulk": BULK, "cp.async": CP_ASYNC}[kind], w)
        clocks.warps[w][thread] = max(int(clocks.warps[w][thread]), serial)
        if kind == "bulk" and not reads_only:
            store = clocks.thread(STORE, w)
            clocks.warps[w][store] = max(int(clocks.warps[w][store]), serial)

    # -- tensor memory ------------------------------------------------------------------------------------------

    def tmem_load(self, w: "Warp", group: int, column: int, count: int) -> None:
        """tcgen05.ld of one group of 32 lanes."""
        clocks = self.of(w.cta)
        thread, clock = clocks.thread(TMEM_LOAD, w), clocks.warps[w]
        clocks.serials[thread] += 1
        clocks.load_epochs.setdefault(thread, []).append(int(clock[clocks.thread(WARP, w)]))
        shadow = clocks.tensor[w.cta.rank]
        touched = shadow.at((group, slice(column, column + count)))
        for finding in shadow.read(touched, thread, int(clocks.serials[thread]), clock, w.pc):
            self.explain(finding, w, w.pc, clocks, "tensor memory", "read", column, clock)

    def tmem_store(self, w: "Warp", group: int, column: int, count: int) -> None:
        """tcgen05.st of one group of 32 lanes."""
        clocks = self.of(w.cta)
        thread, clock = clocks.thread(TMEM_STORE, w), clocks.warps[w]
        clocks.serials[thread] += 1
        shadow = clocks.tensor[w.cta.rank]
        touched = shadow.at((group, slice(column, column + count)))
        known = clock.copy()
        known[thread] = clocks.serials[thread]  # stores of one warp are ordered
        for finding in shadow.write(touched, thread, int(clocks.serials[thread]), known, w.pc):
            self.explain(finding, w, w.pc, clocks, "tensor memory", "written", column, clock)

    def tmem_wait(self, w: "Warp", kind: str) -> None:
        """tcgen05.wait::ld or ::st."""
        clocks = self.of(w.cta)
        thread = clocks.thread(TMEM_LOAD if kind == "ld" else TMEM_STORE, w)
        clocks.warps[w][thread] = clocks.serials[thread]

    def tmem_alloc(self, cta: "Cta", start: int, columns: int) -> None:
        """An allocation begins: its contents are undefined."""
        self.of(cta).tensor[cta.rank].forget((slice(None), slice(start, start + columns)))

    def tmem_free(self, w: "Warp", cta: "Cta", start: int, columns: int) -> None:
        """An allocation ends: every access to it must have happened before."""
        clocks = self.of(cta)
        me, clock = clocks.thread(WARP, w), clocks.warps[w]
        shadow = clocks.tensor[cta.rank]
        for group in range(4):
            touched = shadow.at((group, slice(start, start + columns)))
            for finding in shadow.write(touched, me, int(clock[me]), clock, w.pc):
                self.explain(finding, w, w.pc, clocks, "tensor memory", "freed", start, clock)
