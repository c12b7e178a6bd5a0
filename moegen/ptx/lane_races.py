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


class LaneShadow:
    """Lanes of the last write and of the reads since, per granule, with the warp and its count of synchronisations.

    All begins as zeros, which cost memory only where an access falls: allocations may have gigabytes.
    """

    def __init__(self, size: int) -> None:
        self.write = np.zeros(size, np.int64)
        self.read = np.zeros(size, np.int64)
        self.write_lane = np.zeros(size, np.int8)
        self.read_lane = np.zeros(size, np.int8)

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
        phase += 1  # zero is no phase
        clash = (self.write[at] == phase) & (self.write_lane[at] != lanes)
        shared = (self.read[at] == phase) & (self.read_lane[at] != lanes)
        if write:
            clash |= shared
            self.write[at] = phase
            self.write_lane[at] = lanes
        else:
            self.read[at] = phase
            self.read_lane[at] = lanes
            # Several lanes read it, in this instruction or before it.
            several = shared | (self.read_lane[at] != lanes)
            if several.any():
                self.read_lane[at[several]] = MANY
        return int(clash.argmax()) if clash.any() else None
