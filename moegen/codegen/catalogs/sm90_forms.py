"""What the kernels of an sm_90a gemm ladder are: widths, warpgroups, weight tiles, packed and shared bytes.

``templates/sm_90a/device/gemm_plan.h`` has the same numbers for the kernels.
"""

from collections.abc import Mapping

from moegen.codegen.schedule import Schedule, ScheduleFamily, ScheduleField
from moegen.core.abi import round_up
from moegen.core.enums import Epilogue, OpKind, RouterWeight, Target
from moegen.core.errors import SpecError
from moegen.core.ops import OpSpec

UNIT_ROWS, UNIT_K = 64, 128
UNIT_BYTES, HALF_UNIT_BYTES = 4608, 2560
MAX_STAGES, ITEM_RING, RECORD_BYTES = 12, 16, 16
GEMMS = (OpKind.GEMM1, OpKind.GEMM2)
LADDER = ScheduleFamily(
    target=Target.SM_90A,
    name="ladder",
    kinds=GEMMS,
    fields=(
        ScheduleField(name="ladder", tag="w", doc="token-tile widths, rising: n8_16_64", type="str"),
        ScheduleField(name="warpgroups", tag="g", doc="consumer warpgroups of the kernels up to 64 wide"),
        ScheduleField(name="tiles", tag="m", doc="2: more m64 weight tiles a warpgroup in the kernels up to 88 wide"),
        ScheduleField(name="blocks", tag="b", doc="blocks that share a multiprocessor in those kernels"),
    ),
)
CLAIMS = ScheduleFamily(target=Target.SM_90A, name="claims", kinds=GEMMS, fields=LADDER.fields)
"""The same ladders with a counter a kernel from which blocks claim their items, instead of a fixed share each: a block
that starts late, behind a wider kernel of the ladder, then computes less."""
_WIDTH_LIMITS: Mapping[Epilogue | None, tuple[int, int]] = {
    None: (64, 80),
    Epilogue.COMPACT: (64, 80),
    Epilogue.INTERLEAVED: (64, 64),
    Epilogue.FUSED_FP4: (16, 16),
}
"""Widest tile of the plain form and of four warpgroups with setmaxnreg, by what the epilogue keeps alive."""
STAGED_PLAIN_WIDTH = 32
"""The plain form's limit where a producer decodes tokens: wider tiles need two warpgroups of producers."""
NARROW_WIDTH, MANY_TILES_WIDTH, TWO_TILES_WIDTH = 32, 88, 152
"""Widest tiles of four warpgroups with two m64 tiles each; of two with three or four; and of two with two."""


def widths(schedule: Schedule) -> tuple[int, ...]:
    """Token-tile widths of a ladder; raises SpecError unless the text is ``n`` and rising multiples of 8 up to 256."""
    text = str(schedule["ladder"])
    parts = text.removeprefix("n").split("_")
    found = tuple(int(part) for part in parts) if text.startswith("n") and all(map(str.isdigit, parts)) else ()
    known = range(8, 257, 8)
    if not found or list(found) != sorted(set(found)) or any(width not in known for width in found):
        raise SpecError(f"ladder {text!r}", "schedules.sm_90a.ladder", "write n and rising multiples of 8 up to 256")
    return found


def weighted_gather(op: OpSpec) -> bool:
    """True when gemm1 gathers its rows and multiplies them by the router weight."""
    return op.gather and op.numerics is not None and op.numerics.router_weight is RouterWeight.INPUT


def staged(op: OpSpec) -> bool:
    """True when token rows pass through a producer warpgroup's registers, instead of being copied."""
    return op.reads_codes or weighted_gather(op)


def producer_warps(op: OpSpec) -> int:
    """Warps beside the consumers of a kernel in the plain form; one where rows come by bulk copies."""
    return 4 if op.reads_codes or op.gather else 1


def plain_form(op: OpSpec, schedule: Schedule, width: int) -> bool:
    """True for a kernel that takes its warpgroups and blocks from the schedule, with registers as launched."""
    limit = _WIDTH_LIMITS.get(op.epilogue, _WIDTH_LIMITS[None])[0]
    return width <= (min(limit, STAGED_PLAIN_WIDTH) if staged(op) else limit) and schedule.number("tiles") == 1


def warpgroups_of(op: OpSpec, schedule: Schedule, width: int) -> tuple[int, int]:
    """(consumer warpgroups, m64 tiles of each) of one kernel; mirrors ``GemmShape``."""
    many = schedule.number("tiles") == 2
    if plain_form(op, schedule, width):
        return schedule.number("warpgroups"), 1
    limit = _WIDTH_LIMITS.get(op.epilogue, _WIDTH_LIMITS[None])[1]
    if width <= (min(limit, NARROW_WIDTH) if many else limit) and not staged(op):
        return 4, 2 if width <= NARROW_WIDTH else 1
    if many and width <= MANY_TILES_WIDTH:
        return 2, 4 if width <= 64 else 3
    return 2, 2 if width <= TWO_TILES_WIDTH else 1


def weight_tiles(op: OpSpec) -> int:
    """m64 tiles of one expert's weights: whole 64-channel chunks of each half."""
    half = op.intermediate if op.kind is OpKind.GEMM1 else op.hidden
    halves = 2 if op.kind is OpKind.GEMM1 and op.gated else 1
    return halves * -(-half // UNIT_ROWS)


def expert_bytes(op: OpSpec) -> int:
    """Packed bytes of one expert."""
    full, tail = divmod(op.k, UNIT_K)
    units = full + (tail > UNIT_K // 2)
    return weight_tiles(op) * (units * UNIT_BYTES + (HALF_UNIT_BYTES if 0 < tail <= UNIT_K // 2 else 0))


def shared_bytes(op: OpSpec, schedule: Schedule, width: int) -> tuple[int, int]:
    """(bytes of one stage, bytes beside the stages) of one kernel's shared memory; mirrors ``Plan``."""
    groups, tiles = warpgroups_of(op, schedule, width)
    stage = round_up(width * UNIT_K * 2 + groups * tiles * UNIT_BYTES, 1024)
    halves = 2 if op.gated else 1
    epilogue = width * groups * tiles // halves * 48 if op.epilogue is Epilogue.FUSED_FP4 else 0
    return stage, 16 * MAX_STAGES + (ITEM_RING + op.experts + 1) * RECORD_BYTES + epilogue
