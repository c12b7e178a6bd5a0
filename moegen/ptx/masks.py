"""Masks of lanes, and values that lanes share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moegen.ptx.dtypes import ALL, LANES, Mask
from moegen.ptx.uniform import KNOWN


def first_lane(mask: Mask) -> int:
    """Lowest active lane."""
    return 0 if mask is ALL else mask.tobytes().find(1)


def lane_count(mask: Mask) -> int:
    """Number of active lanes."""
    return LANES if mask is ALL else mask.tobytes().count(1)


def active_lanes(mask: Mask) -> Sequence[int]:
    """Active lanes in ascending order."""
    if mask is ALL:
        return range(LANES)
    raw = mask.tobytes()
    return [raw.find(1)] if raw.count(1) == 1 else np.flatnonzero(mask).tolist()


def common_value(lanes: Any, mask: Mask) -> int | None:
    """The unsigned value that all active lanes of a register have; None if they differ."""
    known = KNOWN.get(id(lanes))
    if known is not None:
        return known
    if mask is not ALL:
        if mask.tobytes().count(1) == 1:
            return lanes.item(mask.tobytes().find(1))
        lanes = lanes[mask]
    raw, size = lanes.tobytes(), lanes.itemsize
    first = raw[:size]
    return int.from_bytes(first, "little") if raw == first * (len(raw) // size) else None
