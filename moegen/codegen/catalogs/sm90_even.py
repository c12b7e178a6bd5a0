"""Ladders whose last items are cut into parts, so that all blocks of a kernel end at about the same time.

With fixed shares a kernel of 5.07 rounds of items takes as long as one of 6. Here the items of the last round, too few
for all blocks, are cut by weight rows: each warpgroup's m64 tiles are a part, or two neighbours' are, as far as there
are blocks. No sum is split, so the results are those of whole items, bit for bit (``Cursor`` in
``templates/sm_90a/device/work.cuh``).
"""

import math

from moegen.codegen.catalog import LEGAL, Verdict, illegal
from moegen.codegen.catalogs.sm90_forms import GEMMS, LADDER, NARROW_WIDTH, warpgroups_of, weight_tiles, widths
from moegen.codegen.schedule import Schedule, ScheduleFamily, ScheduleField
from moegen.core.devices import DeviceFacts
from moegen.core.enums import Epilogue, Target
from moegen.core.ops import OpSpec

EVEN = ScheduleFamily(
    target=Target.SM_90A,
    name="even",
    kinds=GEMMS,
    fields=(*LADDER.fields, ScheduleField(name="parts", tag="p", doc="most parts of a row tile at the end")),
)
"""The same ladders, fixed shares, with the last items in parts."""


def cuts_whole_parts(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """A part is some warpgroups' share of a row tile, and none may be without weights."""
    if schedule.family is not EVEN:
        return LEGAL
    parts, kernels = schedule.number("parts"), [warpgroups_of(op, schedule, width) for width in widths(schedule)]
    most = max(groups for groups, _ in kernels)
    if not 2 <= parts <= most:
        return illegal("parts", "two parts at least, and no more than warpgroups", parts=parts, warpgroups=most)
    if op.epilogue is Epilogue.FUSED_FP4:
        return illegal("parts", "warpgroups of an epilogue that quantises meet in shared memory")
    if any(weight_tiles(op) % (groups * tiles) for groups, tiles in kernels):
        return illegal("parts", "an expert's last row tile would have empty parts", tiles=weight_tiles(op))
    return LEGAL


def even_form(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Schedule:
    """A narrow ladder with a part for each warpgroup, where such parts are legal; any other as it is.

    Wide tiles decode and multiply longer than memory takes, and gain less from an even end than a second copy of their
    tokens costs.
    """
    if widths(schedule)[-1] > NARROW_WIDTH:
        return schedule
    cut = EVEN.make(**schedule.as_dict(), parts=schedule.number("warpgroups"))
    return cut if cuts_whole_parts(op, cut, device).legal else schedule


def rounds(schedule: Schedule, items: float, blocks: int) -> float:
    """Rounds of items that the slowest of a kernel's blocks computes; mirrors ``Cursor``."""
    whole, left = divmod(items, blocks)
    if left == 0 or schedule.family is not EVEN:
        return math.ceil(items / blocks)
    parts = next((parts for parts in range(schedule.number("parts"), 1, -1) if left * parts <= blocks), 1)
    return whole + 1 / parts
