"""Rings of stages in shared memory: what makes one legal, whatever its stages hold."""

from collections.abc import Callable

from moegen.codegen.catalog import LEGAL, Predicate, Verdict, illegal
from moegen.codegen.schedule import Schedule
from moegen.core.devices import DeviceFacts
from moegen.core.ops import OpSpec


def fits_shared_memory(size_of: Callable[[Schedule], int]) -> Predicate:
    """A predicate: a ring of at least two stages within what one block may use.

    Args:
        size_of: bytes of shared memory that a block of a schedule takes, ring and all else.
    """

    def fits(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
        stages, size = schedule.number("stages"), size_of(schedule)
        if stages < 2:
            return illegal("stages", "copies and MMAs overlap from two stages up", stages=stages)
        if size > device.smem_bytes:
            return illegal("shared_memory", "the ring exceeds shared memory", bytes=size, limit=device.smem_bytes)
        return LEGAL

    return fits
