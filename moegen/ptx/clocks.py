"""Vector clocks of the race detector: the logical threads of a cluster and what they know of each other.

Logical threads are the warps and, beside them, the asynchronous units: one per mbarrier for copies that complete on it
(clock = phase + 1), one per tensor pipe, and per warp one each for bulk groups (reads of shared memory and writes of
global memory apart), cp.async, tensor-memory loads and stores, and barrier initialisations.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.lane_races import LaneShadow
from moegen.ptx.shadow import Shadow
from moegen.ptx.tmem import TMEM_COLUMNS

if TYPE_CHECKING:
    from moegen.ptx.state import Cluster
    from moegen.ptx.warp import Warp

#: Kinds of logical threads.
WARP, COPY, PIPE, TMEM_LOAD, TMEM_STORE, CP_ASYNC, BULK, INIT, WGMMA, STORE = range(1, 11)
#: Components that stand for no thread: what a warp acquired through global memory, and the end of earlier grids.
ACQUIRED, WAITED = 11, 12
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
        self.cluster = cluster
        self.size = 64 + 10 * warps + 160 * cluster.size
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
        self.lanes = [LaneShadow(cta.shared.size // granule + 1) for cta in cluster.ctas]
        self.tensor = [Shadow((4, TMEM_COLUMNS)) for _ in cluster.ctas]
        for cta in cluster.ctas:
            for w in cta.warps:
                clock = np.zeros(self.size, np.int32)
                clock[self.thread(WARP, w)] = 1
                clock[self.thread(WAITED, None)] = not cluster.grid.programmatic
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
        if kind == WAITED:
            return "the grids before"
        what = {
            WARP: "warp",
            PIPE: "tensor core",
            TMEM_LOAD: "tcgen05.ld of warp",
            TMEM_STORE: "tcgen05.st of warp",
            CP_ASYNC: "cp.async of warp",
            BULK: "bulk store of warp",
            STORE: "bulk store of warp",
            INIT: "mbarrier.init of warp",
            WGMMA: "wgmma of warpgroup",
            ACQUIRED: "acquisitions of warp",
        }.get(kind)
        if kind == COPY:
            return f"copy into mbarrier {key[1]:#x} of CTA {key[0]}"
        if kind == PIPE:
            return f"tensor core of CTA {key[2]} of the cluster"
        if kind == WGMMA:
            return f"{what} {key[1]} of CTA {key[0]}"
        return f"{what} {key.index} of CTA {key.cta.index}"
