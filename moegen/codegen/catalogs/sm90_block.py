"""The whole layer as one sm_90a kernel, for few tokens; and the catalog that offers it beside the separate ops.

A block on every multiprocessor routes the slots for itself and claims (token tile, m64 weight tile) items, the first
product's before the second's; warpgroups share an item's K. ``templates/sm_90a/device/block_plan.h`` has the same
numbers for the kernel, ``block_work.cuh`` says why no block can wait for ever.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from moegen.codegen.catalog import LEGAL, Choice, Predicate, Scratch, Verdict, illegal, judge
from moegen.codegen.catalogs.sm90 import MAX_TOP_K, ROW_TILE, ROWS_LAYOUT, Sm90Catalog, packs_of
from moegen.codegen.catalogs.sm90_forms import UNIT_BYTES, UNIT_K, weight_tiles
from moegen.codegen.load import Load
from moegen.codegen.schedule import Schedule, ScheduleFamily, ScheduleField, Value, expand
from moegen.core.devices import DeviceFacts
from moegen.core.enums import (
    ActFormat,
    ActivationKind,
    ActivationMath,
    CombineMode,
    Epilogue,
    OpKind,
    RouterWeight,
    Target,
)
from moegen.core.ops import OpSpec

BLOCK = ScheduleFamily(
    target=Target.SM_90A,
    name="whole",
    kinds=(OpKind.BLOCK,),
    fields=(
        ScheduleField(name="width", tag="w", doc="rows of a token tile"),
        ScheduleField(name="warpgroups", tag="g", doc="consumer warpgroups, which share an item's K"),
        ScheduleField(name="tiles", tag="m", doc="m64 weight tiles of an item"),
        ScheduleField(name="slots", tag="s", doc="most slots (T·k) of a call"),
    ),
)
AUTO: Mapping[str, tuple[Value, ...]] = {"width": (8,), "warpgroups": (4, 5), "tiles": (1, 2), "slots": (256,)}

MAX_SLOTS = 1024
MOST_SUMS = 15
"""Accumulators of a thread beyond which ptxas keeps more than 64 other registers."""
WEIGHTED_SITU = 12
"""What exact SiTU keeps alive beside two weight tiles where router weights multiply its rows."""
MOST_STAGES, ITEMS, ITEM_BYTES, PARTIAL_SLOTS = 32, 16, 32, 2
HELPER_WARPS = 8
"""Two that stream weights, four that bring tokens, two publishers."""

# Rates of one H200 (benchmarks/hopper/NOTES_BLOCK.md); they rank candidates, no report shows them.
# By weight tiles of an item, least squares over the table of measured layers there.
WAITS_US = {1: 5.7, 2: 6.6}
"""Launch, routing, the first weights; from the first product's last rows to the second's first; the last rows to y."""
UNIT_US = {1: 0.147, 2: 0.143}
"""One K unit of an m64 tile on one multiprocessor."""
ITEM_US = {1: 0.49, 2: 0.67}
"""Claiming an item, adding its partial sums and storing its rows, as far as no other item hides it."""


def most_tokens(op: OpSpec, schedule: Schedule) -> int:
    """Most tokens of a call."""
    return schedule.number("slots") // op.top_k


def side(op: OpSpec, kind: OpKind) -> OpSpec:
    """The gemm inside a block."""
    return replace(op, kind=kind)


def most_tiles(op: OpSpec, schedule: Schedule) -> int:
    """Most token tiles of a call; mirrors ``BlockPlan::kTokenTiles``."""
    slots = schedule.number("slots")
    return min(slots, min(op.experts, slots) + slots // schedule.number("width"))


def stages(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> tuple[int, int, int]:
    """(stages of the ring, bytes of one, bytes beside them); mirrors ``BlockPlan``."""
    width, groups, tiles, slots = (schedule.number(name) for name in ("width", "warpgroups", "tiles", "slots"))
    rows = slots + 7 * min(op.experts, slots)
    partials = PARTIAL_SLOTS * groups * tiles * (width // 8 * 2048)
    barriers = 2 * MOST_STAGES + 3 * ITEMS + 6
    records = ITEMS * ITEM_BYTES + 16 * most_tiles(op, schedule) + 8 * barriers
    fixed = partials + records + 4 * (rows + slots + op.experts + 4)
    stage = width * UNIT_K * 2 + tiles * UNIT_BYTES
    return min(MOST_STAGES, (device.smem_bytes - fixed) // stage), stage, fixed


def serves_layer(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Formats, order of the sum, rows and packs must be the kernel's."""
    if op.act_format is not ActFormat.BF16 or op.epilogue is not Epilogue.COMPACT:
        return illegal("form", "one kernel computes W4A16 layers with compact rows only")
    if op.combine is not CombineMode.ORDERED:
        return illegal("combine", "rows of a token are summed in order")
    if op.rows_layout != ROWS_LAYOUT:
        return illegal("rows_layout", f"rows lie in the order {ROWS_LAYOUT}, not {op.rows_layout or 'plain'}")
    if op.row_tile != ROW_TILE:
        return illegal("row_tile", "rows are padded to groups of 8", row_tile=op.row_tile, needed=ROW_TILE)
    pack = block_pack(op)
    if op.weight_pack != pack:
        return illegal("weight_pack", f"reads {pack}, not {op.weight_pack or 'an unnamed pack'}")
    return LEGAL


def block_pack(op: OpSpec) -> str:
    """The packs of w1 and w2, as ``OpSpec.weight_pack`` names them."""
    first, second = (packs_of(side(op, kind))[0] for kind in (OpKind.GEMM1, OpKind.GEMM2))
    return first if first == second else f"{first}+{second}"


def useful_shape(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """A lane holds a row of a tile and a slot of a token; slots are few."""
    width, groups, tiles, slots = (schedule.number(name) for name in ("width", "warpgroups", "tiles", "slots"))
    if width not in (8, 16, 24, 32) or groups not in range(2, 6) or tiles not in (1, 2):
        reason = "token tiles of 8 to 32 rows, 2 to 5 warpgroups, 1 or 2 weight tiles"
        return illegal("shape", reason, width=width, warpgroups=groups, tiles=tiles)
    if groups == 5 and tiles == 2:
        return illegal("shape", "with two weight tiles, some epilogues of five warpgroups would spill")
    if op.top_k > MAX_TOP_K:
        return illegal("top_k", "a token's slots are held by the lanes of a warp", top_k=op.top_k, limit=MAX_TOP_K)
    if not op.top_k <= slots <= MAX_SLOTS or slots % 32:
        return illegal(
            "slots", "whole warps of slots, at least one token's", slots=slots, top_k=op.top_k, limit=MAX_SLOTS
        )
    return LEGAL


def fits_device(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Two stages for each warpgroup must fit into shared memory, and a consumer into its share of the registers."""
    groups = schedule.number("warpgroups")
    count, stage, fixed = stages(op, schedule, device)
    if count < 2 * groups:
        return illegal(
            "shared_memory",
            "two stages a warpgroup do not fit",
            stages=count,
            stage=stage,
            fixed=fixed,
            limit=device.smem_bytes,
        )
    warps = 4 * groups + HELPER_WARPS
    share = device.registers_sm // 4 // (-(-warps // 4) * 32) // 8 * 8
    sums = schedule.number("tiles") * schedule.number("width") // 2
    needed = (
        sums + 64 + sums // MOST_SUMS + (WEIGHTED_SITU if schedule.number("tiles") == 2 and _weighs_situ(op) else 0)
    )
    if needed > share:
        return illegal("registers", "a consumer thread needs more", needed=needed, share=share)
    return LEGAL


def _weighs_situ(op: OpSpec) -> bool:
    """True for exact SiTU, its up half unbounded, whose rows a router weight multiplies."""
    activation, numerics = op.activation, op.numerics
    if activation is None or numerics is None or activation.kind is not ActivationKind.SITU:
        return False
    exact = numerics.activation_math is ActivationMath.EXACT and activation.linear_beta is None
    return exact and numerics.router_weight is RouterWeight.PRE_QUANT


PREDICATES: tuple[Predicate, ...] = (serves_layer, useful_shape, fits_device)


def block_us(op: OpSpec, schedule: Schedule, device: DeviceFacts, load: Load) -> float:
    """Modelled time of a layer: waves of items, and the waits; infinite beyond the kernel's slots."""
    if load.tokens > most_tokens(op, schedule):
        return math.inf
    rows = load.rows / max(load.hit_experts, 1e-9)
    token_tiles = load.hit_experts * max(1.0, math.ceil(rows / schedule.number("width")))
    of_item = schedule.number("tiles")
    total = WAITS_US[of_item]
    for kind in (OpKind.GEMM1, OpKind.GEMM2):
        gemm = side(op, kind)
        items = token_tiles * -(-weight_tiles(gemm) // of_item)
        waves = max(items / device.cores, math.ceil(items / device.cores) if items < 4 * device.cores else 0)
        total += waves * (-(-gemm.k // UNIT_K) * of_item * UNIT_US[of_item] + ITEM_US[of_item])
    return total


@dataclass(frozen=True)
class Sm90WithBlocks(Sm90Catalog):
    """The sm_90a catalog with the whole layer as one more op."""

    def families(self, kind: OpKind) -> tuple[ScheduleFamily, ...]:
        """The block's family, or what serves the separate op."""
        return (BLOCK,) if kind is OpKind.BLOCK else super().families(kind)

    def schedules(self, op: OpSpec, device: DeviceFacts, choice: Choice) -> tuple[Schedule, ...]:
        """Blocks in every combination, whatever a spec says of ladders; the rest as for separate ops."""
        return expand(BLOCK, AUTO) if op.kind is OpKind.BLOCK else super().schedules(op, device, choice)

    def verdict(self, op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
        """The first predicate that refuses, or LEGAL."""
        if op.kind is OpKind.BLOCK:
            return judge(PREDICATES, op, schedule, device)
        return super().verdict(op, schedule, device)

    def time_us(self, op: OpSpec, schedule: Schedule, device: DeviceFacts, load: Load) -> float:
        """Waves of items at the rate of one multiprocessor, and the waits at both ends and between the products."""
        if op.kind is OpKind.BLOCK:
            return block_us(op, schedule, device, load)
        return super().time_us(op, schedule, device, load)

    def includes(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        """Device library files of the kernel half; a block takes gemm1's activations."""
        if op.kind is OpKind.BLOCK:
            return (*super().includes(side(op, OpKind.GEMM1), schedule), "sm_90a/device/block.cuh")
        return super().includes(op, schedule)

    def scratch(self, op: OpSpec, schedule: Schedule) -> Scratch:
        """A block's counters; mirrors ``BlockPlan::kScratchBytes``."""
        if op.kind is OpKind.BLOCK:
            done = -(-most_tiles(op, schedule) // 32) * 32
            arrivals = most_tokens(op, schedule) * -(-weight_tiles(side(op, OpKind.GEMM2)) // schedule.number("tiles"))
            return Scratch(fixed=4 * (64 + done + arrivals))
        return super().scratch(op, schedule)

    def most_tokens(self, op: OpSpec, schedule: Schedule) -> int | None:
        """A block's slots are few; separate ops take any number."""
        return most_tokens(op, schedule) if op.kind is OpKind.BLOCK else None


CATALOG = Sm90WithBlocks()
