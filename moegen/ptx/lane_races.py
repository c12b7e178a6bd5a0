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


class LaneShadow:
    """Phase and lane of the last write and of the reads since, per granule, as phase << 6 | lane.

    All begins as zeros, which cost memory only where an access falls: allocations may have gigabytes.
    """

    def __init__(self, size: int) -> None:
        self.write = np.zeros(size, np.uint64)
        self.read = np.zeros(size, np.uint64)

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
        clash = _other_lane(self.write[at], mine)
        shared = _other_lane(self.read[at], mine)
        if write:
            clash |= shared
            self.write[at] = mine
        else:
            self.read[at] = mine
            # Several lanes read it, in this instruction or before it.
            several = shared | (self.read[at] != mine)
            if several.any():
                self.read[at[several]] = np.uint64(phase + 1 << _LANE_BITS | MANY)
        place = clash.tobytes().find(1)
        return None if place < 0 else place


def _other_lane(held: Any, mine: Any) -> Any:
    """Where two numbers have one phase and different lanes: the difference lies in the lane's bits and is not zero."""
    return (held ^ mine) - _ONE < _LANES
