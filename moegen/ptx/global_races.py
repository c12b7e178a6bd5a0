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
        owner: number of (cluster, thread).
    """

    cluster: int
    thread: int
    clock: int
    w: "Warp"
    pc: int
    reach: int
    owner: int


class _Shadow:
    """Numbers of the last accesses to the granules of one allocation: a write, and two reads since."""

    def __init__(self, size: int) -> None:
        self.writes = np.zeros(size, np.int32)
        self.reads = np.zeros(size, np.int32)
        self.earlier_reads = np.zeros(size, np.int32)
        self.written = False
        self.lanes = LaneShadow(size)


class GlobalRaces:
    """Global memory's part of the race detector."""

    def __init__(self, detector: "RaceDetector", granule: int) -> None:
        self.detector = detector
        self.shift = granule.bit_length() - 1
        self.shadows: dict[Block, _Shadow] = {}
        self.clusters: list[Cluster] = []
        self.numbers: dict[Cluster, int] = {}
        self.accesses: list[Access | None] = [None]
        self.owner_of = np.zeros(1024, np.int32)
        self.owners: dict[tuple[int, int], int] = {}
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

    def _number(self, access: Access) -> int:
        number = len(self.accesses)
        self.accesses.append(access)
        if number >= self.owner_of.size:
            self.owner_of = np.concatenate([self.owner_of, np.zeros_like(self.owner_of)])
        self.owner_of[number] = access.owner
        return number

    def record(
        self, w: "Warp", pc: int, thread: int, value: int, clock: Any, block: Block, at: Any, reach: int, write: bool
    ) -> None:
        """Checks and records an access to granules ``at`` of an allocation."""
        clocks = self.detector.of(w.cta)
        shadow = self.shadows.get(block)
        if shadow is None:
            shadow = self.shadows[block] = _Shadow((block.data.size >> self.shift) + 1)
        me = self.numbers[w.cta.cluster]
        owner = self.owners.setdefault((me, thread), len(self.owners) + 1)
        number = self._number(Access(me, thread, value, w, pc, reach, owner))
        checked = [shadow.writes] if shadow.written else []
        if write:
            checked += [shadow.reads, shadow.earlier_reads]
        for numbers in checked:
            self._check(clocks, clock, me, numbers[at], w, pc, reach, write, block, at)
        if write:
            shadow.written = True
            shadow.writes[at] = number
            shadow.reads[at] = shadow.earlier_reads[at] = 0
        else:
            before = shadow.reads[at]
            other = self.owner_of[before] != owner
            if other.any():
                shadow.earlier_reads[at] = np.where(other, before, shadow.earlier_reads[at])
            shadow.reads[at] = number

    def _check(
        self,
        clocks: ClusterClocks,
        clock: Any,
        me: int,
        numbers: Any,
        w: "Warp",
        pc: int,
        reach: int,
        write: bool,
        block: Block,
        at: Any,
    ) -> None:
        first = int(numbers.flat[0])
        found = [first] if (numbers == first).all() else np.unique(numbers).tolist()
        for number in found:
            earlier = self.accesses[number]
            if earlier is None or self._ordered(clocks, clock, me, earlier, reach):
                continue
            place = int(np.asarray(at)[numbers == number].flat[0]) if not isinstance(at, slice) else at.start
            address = block.origin + (place << self.shift)
            verb = "written" if write else "read"
            other = earlier.w
            message = (
                f"{block.name} is {verb} without being ordered after the access by warp {other.index} of CTA "
                f"{other.cta.index}{self.detector.place(other, earlier.pc)}"
            )
            self.detector.report(Check.RACE_GLOBAL, message, w, pc, address)
            return

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
            self.record(w, w.pc, thread, int(clock[thread]), clock, block, at, reach, write)
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


def _merge(into: Knowledge, more: Knowledge) -> None:
    for number, vector in more.items():
        known = into.get(number)
        into[number] = vector if known is None else np.maximum(known, vector)
