"""Races between lanes of one warp: one lane's access and another's later one, of which one writes, without a
synchronisation of the warp in between.

The interpreter runs the lanes of a warp in lockstep, hardware need not. What orders lanes is ``bar.warp.sync``, a
barrier of the CTA or cluster, a wait for an mbarrier, an atomic, or an acquire; a shuffle or a vote orders no memory.
Several lanes that store to one address in one instruction are not reported: one of them wins, which programs use.
"""

from typing import Any

import numpy as np

#: Stands for several lanes.
MANY = 32
_LANE_BITS = 6
_LANES = np.uint64((1 << _LANE_BITS) - 1)
_ONE = np.uint64(1)
_WRITE, _READ = 0, 1


class LaneShadow:
    """Phase and lane of the last write and of the reads since, per granule, each as phase << 6 | lane.

    All begins as zeros, which cost memory only where an access falls: allocations may have gigabytes.
    """

    def __init__(self, size: int) -> None:
        self.pairs = np.zeros((size, 2), np.uint64)
        self._whole = self.pairs.view(np.complex128)[:, 0]  # moves both at once

    def access(self, at: Any, lanes: Any, phase: int, write: bool) -> int | None:
        """Checks and records an access.

        Args:
            at: granule indices.
            lanes: lane of each.
            phase: number of a warp and of its synchronisations so far; no two share one.
            write: the access writes.

        Returns:
            Position of a granule that another lane accessed since the last synchronisation, or None.
        """
        mine = np.asarray(lanes, np.uint64) | np.uint64(phase + 1 << _LANE_BITS)  # zero is no phase
        held = self._whole.take(at).view(np.uint64).reshape(-1, 2)
        # One phase and different lanes: the difference lies in the lane's bits and is not zero.
        other = (held ^ mine[:, None]) - _ONE < _LANES
        if write:
            self.pairs[at, _WRITE] = mine
            place = other.tobytes().find(1)
            return None if place < 0 else place // 2
        self.pairs[at, _READ] = mine
        # Several lanes read it, in this instruction or before it.
        several = other[:, _READ] | (self.pairs[at, _READ] != mine)
        if 1 in several.tobytes():
            self.pairs[at[several], _READ] = np.uint64(phase + 1 << _LANE_BITS | MANY)
        place = other[:, _WRITE].tobytes().find(1)
        return None if place < 0 else place
