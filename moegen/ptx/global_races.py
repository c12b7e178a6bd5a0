"""Happens-before races in global memory: between warps, CTAs, asynchronous copies and grids of one run.

Within a cluster the clocks of ``clocks`` apply. Between clusters only global memory orders: a release (an operation
with release semantics, or a fence followed by a strong write) hands on what its warp knows to whoever reads the
location by an acquire (or by a strong read followed by a fence). A warp keeps what it acquired from other clusters as a
history; its clock has a component that counts the acquisitions, so that every barrier hands those on too. A grid comes
after the grids before it, a programmatic one once ``griddepcontrol.wait`` has returned.

Of each granule the last write and the last two reads by different logical threads are kept. Accesses are weak or strong
(volatile, relaxed and stronger, atomics): strong ones of sufficient scope do not race with each other.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moegen.ptx.clocks import ACQUIRED, WAITED, WARP, ClusterClocks
from moegen.ptx.dtypes import ALL, LANE_IDS, Mask
from moegen.ptx.emit import REACH, Order
from moegen.ptx.lane_races import LaneShadow
from moegen.ptx.memory import Block
from moegen.ptx.report import Check
from moegen.ptx.states import Numbered, Touched
from moegen.ptx.tensormap import Rows

if TYPE_CHECKING:
    from moegen.ptx.races import RaceDetector
    from moegen.ptx.state import Cluster
    from moegen.ptx.warp import Warp

#: What is known of clusters, by their number: a vector of clocks each.
Knowledge = dict[int, Any]
WEAK, _GPU = 0, REACH["gpu"]


class Access(NamedTuple):
    """One execution of an access.

    Attributes:
        cluster: number of the cluster.
        thread, clock: logical thread in it, and its epoch.
        w, pc: warp and instruction.
        reach: of a strong access (``emit.REACH``), 0 of a weak one.
    """

    cluster: int
    thread: int
    clock: int
    w: "Warp"
    pc: int
    reach: int


class Past(NamedTuple):
    """Last accesses to a granule: a write, and two reads since by different logical threads, the later one first."""

    write: Access | None
    read: Access | None
    earlier: Access | None


class _Shadow(Numbered[Past]):
    """Last accesses to the granules of one allocation."""

    def __init__(self, size: int) -> None:
        super().__init__(size, Past(None, None, None))
        self.lanes = LaneShadow(size)


class GlobalRaces:
    """Global memory's part of the race detector."""

    def __init__(self, detector: "RaceDetector", granule: int) -> None:
        self.detector = detector
        self.shift = granule.bit_length() - 1
        self.shadows: dict[Block, _Shadow] = {}
        self.clusters: list[Cluster] = []
        self.numbers: dict[Cluster, int] = {}
        self.released: dict[int, Knowledge] = {}
        self.history: dict[Warp, list[Knowledge]] = {}

    def start(self, cluster: "Cluster") -> None:
        """A cluster begins."""
        self.numbers[cluster] = len(self.clusters)
        self.clusters.append(cluster)

    # -- order --------------------------------------------------------------------------------------------------

    def _known(self, clocks: ClusterClocks, clock: Any, cluster: int) -> Any:
        """What a holder of ``clock`` knows of another cluster: a vector of clocks, or None."""
        vectors = []
        for w, history in self.history.items():
            if w.cta.cluster is clocks.cluster:
                count = int(clock[clocks.thread(ACQUIRED, w)])
                if count and cluster in history[count - 1]:
                    vectors.append(history[count - 1][cluster])
        return np.maximum.reduce(vectors) if vectors else None

    def _ordered(self, clocks: ClusterClocks, clock: Any, me: int, earlier: Access, reach: int) -> bool:
        """Whether an earlier access happened before the next action of a holder of ``clock``, or may be concurrent."""
        if earlier.cluster == me:
            both_strong = min(earlier.reach, reach) > WEAK
            return both_strong or int(clock[earlier.thread]) >= earlier.clock
        if min(earlier.reach, reach) >= _GPU:
            return True
        before, now = self.clusters[earlier.cluster].grid, clocks.cluster.grid
        if before is not now:
            return before.number < now.number and int(clock[clocks.thread(WAITED, None)]) > 0
        known = self._known(clocks, clock, earlier.cluster)
        return known is not None and int(known[earlier.thread]) >= earlier.clock

    # -- accesses -----------------------------------------------------------------------------------------------

    def _shadow(self, block: Block) -> _Shadow:
        shadow = self.shadows.get(block)
        if shadow is None:
            shadow = self.shadows[block] = _Shadow((block.data.size >> self.shift) + 1)
        return shadow

    def box(self, block: Block, start: int, rows: Rows, length: int) -> Touched:
        """Granules of ``length`` bytes of rows, the first of which begins at byte ``start`` of an allocation's data."""
        strides = tuple(stride >> self.shift for stride in rows.strides)
        per_row = (length - 1 >> self.shift) + 1
        return self._shadow(block).box(start >> self.shift, (*rows.counts, per_row), (*strides, 1))

    def record(
        self,
        w: "Warp",
        pc: int,
        thread: int,
        value: int,
        clock: Any,
        block: Block,
        touched: Touched,
        reach: int,
        write: bool,
    ) -> None:
        """Checks and records an access to granules of an allocation."""
        shadow, me = self._shadow(block), self.numbers[w.cta.cluster]
        access = Access(me, thread, value, w, pc, reach)
        pasts = [shadow.states[number] for number in touched.distinct]
        self._check(access, clock, pasts, touched, block, write)
        if write:
            touched.fill(shadow.add(Past(access, None, None)))
        else:
            touched.replace([shadow.add(_read(past, access)) for past in pasts])

    def _check(
        self, access: Access, clock: Any, pasts: list[Past], touched: Touched, block: Block, write: bool
    ) -> None:
        """Reports the first granule whose last write, and for a write whose last reads, were not before an access."""
        clocks = self.detector.of(access.w.cta)
        for which in range(3 if write else 1):
            for number, past in zip(touched.distinct, pasts, strict=True):
                earlier = past[which]
                if earlier is not None and not self._ordered(clocks, clock, access.cluster, earlier, access.reach):
                    self._report(access, earlier, write, block, touched.place(number))
                    break

    def _report(self, access: Access, earlier: Access, write: bool, block: Block, granule: int) -> None:
        verb, other = "written" if write else "read", earlier.w
        message = (
            f"{block.name} is {verb} without being ordered after the access by warp {other.index} of CTA "
            f"{other.cta.index}{self.detector.place(other, earlier.pc)}"
        )
        address = block.origin + (granule << self.shift)
        self.detector.report(Check.RACE_GLOBAL, message, access.w, access.pc, address)

    def _granules(self, block: Block, addresses: Any, width: int) -> Any:
        at = (addresses - np.uint64(block.origin)).astype(np.int64) >> self.shift
        per = width >> self.shift
        return (at[:, None] + np.arange(per)).reshape(-1) if per > 1 else at

    def lanes(self, w: "Warp", addresses: Any, width: int, mask: Mask, reach: int, write: bool) -> None:
        """A warp loads or stores global memory."""
        clocks = self.detector.of(w.cta)
        thread, clock = clocks.thread(WARP, w), clocks.warps[w]
        chosen, lanes = (addresses, LANE_IDS) if mask is ALL else (addresses[mask], LANE_IDS[mask])
        memory = w.cta.machine.memory
        while chosen.size:
            block = memory.find(int(chosen[0]), width)
            inside = (chosen >= block.base) & (chosen < block.base + block.size)
            at = self._granules(block, chosen[inside], width)
            touched = self._shadow(block).at(at)
            self.record(w, w.pc, thread, int(clock[thread]), clock, block, touched, reach, write)
            if reach == WEAK:
                active = np.repeat(lanes[inside], max(width >> self.shift, 1))
                clash = self.shadows[block].lanes.access(at, active, self.detector.phase(w), write)
                if clash is not None:
                    address = block.origin + (int(at[clash]) << self.shift)
                    self.detector.report_lanes(w, int(active[clash]), address, block.name)
            chosen, lanes = chosen[~inside], lanes[~inside]

    # -- release and acquire ------------------------------------------------------------------------------------

    def _snapshot(self, w: "Warp") -> Knowledge:
        """All that a warp knows, of its own cluster and of others."""
        clocks = self.detector.of(w.cta)
        clock = clocks.warps[w]
        knowledge: Knowledge = {}
        for other, history in self.history.items():
            if other.cta.cluster is w.cta.cluster:
                count = int(clock[clocks.thread(ACQUIRED, other)])
                if count:
                    _merge(knowledge, history[count - 1])
        _merge(knowledge, {self.numbers[w.cta.cluster]: clock.copy()})
        clock[clocks.thread(WARP, w)] += 1
        return knowledge

    def _acquire(self, w: "Warp", knowledge: Knowledge) -> None:
        clocks = self.detector.of(w.cta)
        clock = clocks.warps[w]
        self.detector.lanes_synchronise(w)
        mine = self.numbers[w.cta.cluster]
        if mine in knowledge:
            np.maximum(clock, knowledge[mine], out=clock)
        others = {number: vector for number, vector in knowledge.items() if number != mine}
        if others:
            history = self.history.setdefault(w, [])
            merged = dict(history[-1]) if history else {}
            _merge(merged, others)
            history.append(merged)
            clock[clocks.thread(ACQUIRED, w)] = len(history)

    def fence(self, w: "Warp", scope: str) -> None:
        """A fence: later strong writes release what is known now, and earlier strong reads become acquires."""
        if REACH[scope] < _GPU:
            return
        pending = w.scratch.pop("global read", None)
        if pending:
            self._acquire(w, pending)
        w.scratch["global fence"] = self._snapshot(w)

    def before(self, w: "Warp", addresses: Any, order: Order) -> None:
        """A strong read, also that of a read-modify-write, takes over what was released at its locations."""
        if order.reach < _GPU:
            return
        for address in np.unique(addresses).tolist():
            knowledge = self.released.get(address)
            if knowledge is None:
                continue
            if order.acquire:
                self._acquire(w, knowledge)
            else:
                _merge(w.scratch.setdefault("global read", {}), knowledge)

    def after(self, w: "Warp", addresses: Any, order: Order, adds: bool) -> None:
        """A strong write releases; a read-modify-write (``adds``) also carries on the releases before it."""
        if order.reach < _GPU:
            return
        knowledge = self._snapshot(w) if order.release else w.scratch.get("global fence", {})
        for address in np.unique(addresses).tolist():
            known: Knowledge = dict(self.released.get(address, {})) if adds else {}
            _merge(known, knowledge)
            self.released[address] = known

    def waited(self, w: "Warp") -> None:
        """griddepcontrol.wait returned: the grids before this one are complete."""
        clocks = self.detector.of(w.cta)
        clocks.warps[w][clocks.thread(WAITED, None)] = 1


def _read(past: Past, access: Access) -> Past:
    """What a granule's past becomes by a read."""
    last = past.read
    again = last is not None and (last.cluster, last.thread) == (access.cluster, access.thread)
    return Past(past.write, access, past.earlier if again else last)


def _merge(into: Knowledge, more: Knowledge) -> None:
    for number, vector in more.items():
        known = into.get(number)
        into[number] = vector if known is None else np.maximum(known, vector)
