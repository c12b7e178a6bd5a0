"""Schedules of the sm_90a target: NVFP4 weights decoded into the registers of RS wgmma, tokens in shared memory.

A gemm is a ladder of kernels, one per token-tile width, chained by dependent launches (two wgmma widths in one kernel
serialise). An expert's rows take the narrowest kernel that holds an even share of them, so weights are decoded once as
long as the widest kernel holds all rows of an expert. ``sm90_forms`` says what those kernels are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from moegen.codegen.catalog import LEGAL, Choice, Predicate, Scratch, Verdict, chosen_values, illegal, judge
from moegen.codegen.catalogs.sm90_even import EVEN, cuts_whole_parts, even_form
from moegen.codegen.catalogs.sm90_forms import (
    CLAIMS,
    GEMMS,
    LADDER,
    MANY_TILES_WIDTH,
    NARROW_WIDTH,
    TWO_TILES_WIDTH,
    UNIT_K,
    expert_bytes,
    plain_form,
    producer_warps,
    shared_bytes,
    staged,
    warpgroups_of,
    weighted_gather,
    widths,
)
from moegen.codegen.catalogs.sm90_time import CHAINED_US, arrange_us, gemm_us, route_us
from moegen.codegen.cost import stream_bytes
from moegen.codegen.load import Load
from moegen.codegen.schedule import Schedule, ScheduleFamily, ScheduleField, Value, expand
from moegen.core.devices import DeviceFacts
from moegen.core.enums import ActFormat, ActScale, Epilogue, OpKind, ScaleLayout, Target, TokenDtype
from moegen.core.ops import OpSpec

PACK = "sm90_m64k128"
"""Private pack of gated W1 and of W2 (``moegen.numerics.layouts.sm90``)."""
PIECES_PACK = "sm90_m64k128_pieces"
"""The same for an ungated W1, whose weight rows follow the private row order."""
FP16_SUFFIX = "_fp16"
"""Of packs that decode to fp16 operands, whose bits lie elsewhere."""
ROWS_LAYOUT = "k64r8"
"""Private order of token rows (``templates/sm_90a/device/rows.cuh``)."""
ROW_TILE = 8
"""Rows of an expert are padded to wgmma's smallest token tile; wider tiles take several groups of 8."""

RESERVED_BYTES = 1024
"""Shared memory that each resident block costs beside its own."""
MAX_TOP_K = 32
ROUTE_SHAPES = ((256, 1), (256, 8), (512, 8), (1024, 1), (1024, 8))
"""Threads and blocks of a routing cluster: many for many slots, few for few."""

ROUTE = ScheduleFamily(
    target=Target.SM_90A,
    name="block",
    kinds=(OpKind.ROUTE,),
    fields=(
        ScheduleField(name="threads", tag="t", doc="threads of a block"),
        ScheduleField(name="blocks", tag="b", doc="blocks of the one cluster"),
    ),
)
STREAM = ScheduleFamily(
    target=Target.SM_90A,
    name="stream",
    kinds=tuple(kind for kind in OpKind if kind not in (*GEMMS, OpKind.ROUTE, OpKind.BLOCK)),
)
CHOICE = replace(
    LADDER,
    fields=(
        *LADDER.fields,
        ScheduleField(
            name="claims",
            tag="c",
            doc="blocks claim their items, where the ladder has several kernels and rows come as they are",
            type="bool",
        ),
        ScheduleField(name="even", tag="e", doc="the last items are cut into parts, in narrow ladders", type="bool"),
    ),
)
"""What a spec may choose: the fields of a ladder, and which of the three families."""
#: Values to consider; where the model sees no difference, the first of them wins.
AUTO: Mapping[str, tuple[Value, ...]] = {
    "ladder": (
        "n8",
        "n16",
        "n8_16",
        "n16_64",
        "n40_48",
        "n40_64",
        "n8_16_32",
        "n16_24_32",
        "n16_40_88",
        "n40_48_56_64",
        "n48_96_144",
        "n88_96_104_112",
        "n8_16_32_64_128",
        "n48_56_64_72_80_96",
        "n16_32_48_64_96_128",
        "n136_152",
        "n120_136_152",
        "n128_136_144",
        "n64_96_128_152",
        "n120_128_136_144_152",
        "n16_32_48_64_80_96_112_128_144_152",
        "n192_256",
    ),
    "warpgroups": (4, 2, 1, 5, 3),
    "tiles": (1, 2),
    "blocks": (1, 2, 4),
    "claims": (False, True),
    "even": (False, True),
}
LISTED: Mapping[str, tuple[Value, ...]] = {**AUTO, "even": (False,)}
"""The same where a spec lists what it wants."""
GATHER_WIDTHS = 32
"""Rows that a gathering gemm1 multiplies by their router weight pass through registers: wider tiles would spill."""
WEIGHTED_REGISTERS = 88
"""What a thread needs that keeps such rows in flight."""
DECODE_WIDTHS = 128
"""Codes of a W4A4 token tile pass through registers too, at a third of the width in registers."""
QUANTISING_WIDTHS = 96
"""Without a gate a thread has twice the values to quantise: wider tiles would spill."""
FIVE_GATHER_WIDTH = 24
"""Widest tile of five consumer warpgroups beside a warpgroup that gathers."""
LIBRARY: Mapping[OpKind, tuple[str, ...]] = {
    OpKind.ROUTE: ("route.cuh",),
    OpKind.QUANTIZE: ("quantize.cuh",),
    OpKind.GATHER: ("row_ops.cuh",),
    OpKind.ARRANGE: ("arrange.cuh",),
    OpKind.GEMM1: ("epilogue.cuh",),
    OpKind.DEINTERLEAVE: ("row_ops.cuh",),
    OpKind.DEINTERLEAVE_QUANTIZE: ("quantize.cuh",),
    OpKind.GEMM2: ("epilogue.cuh",),
    OpKind.COMBINE: ("row_ops.cuh",),
}


def serves_rows(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Row order, row tile and pack must be this target's."""
    if arguments_have_rows(op) and op.rows_layout != ROWS_LAYOUT:
        return illegal(
            "rows_layout", f"rows between ops are in the order {ROWS_LAYOUT}, not {op.rows_layout or 'plain'}"
        )
    if op.kind in (OpKind.GATHER, OpKind.COMBINE) and op.top_k > MAX_TOP_K:
        return illegal("top_k", "a token's slots are held in registers", top_k=op.top_k, limit=MAX_TOP_K)
    if op.arranged and weighted_gather(op):
        return illegal("arranged", "pieces are copied as they are: a router weight on the input needs a gather")
    if op.kind in GEMMS and op.row_tile != ROW_TILE:
        return illegal("row_tile", "rows are padded to groups of 8", row_tile=op.row_tile, needed=ROW_TILE)
    if op.kind in GEMMS and op.weight_pack != packs_of(op)[0]:
        return illegal("weight_pack", f"reads {packs_of(op)[0]}, not {op.weight_pack or 'an unnamed pack'}")
    return LEGAL


def arguments_have_rows(op: OpSpec) -> bool:
    """True when token rows in the target's own order are among the op's arguments."""
    if op.decoded:
        return True
    if op.kind is OpKind.GEMM1:
        return not (op.w4a4 or op.gather) or op.arranged or op.epilogue is Epilogue.COMPACT
    if op.kind is OpKind.GEMM2:
        return not op.w4a4
    if op.kind is OpKind.QUANTIZE:
        return not op.gather
    return op.kind in (OpKind.GATHER, OpKind.ARRANGE, OpKind.DEINTERLEAVE)


def packs_of(op: OpSpec) -> tuple[str, ...]:
    """The one pack whose row order an op's epilogue expects, and whose codes decode to the dtype of its operands.

    Rows of codes (W4A4) decode to bf16 whatever the tokens are.
    """
    pack = PIECES_PACK if op.kind is OpKind.GEMM1 and not op.gated else PACK
    return (pack + FP16_SUFFIX,) if op.dtype is TokenDtype.FP16 and not op.w4a4 else (pack,)


def fits_device(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Two stages of every kernel, with everything beside them, must fit into one block's shared memory."""
    for width in widths(schedule):
        stage, fixed = shared_bytes(op, schedule, width)
        blocks = schedule.number("blocks") if plain_form(op, schedule, width) else 1
        limit = device.smem_bytes if blocks == 1 else device.smem_sm_bytes // blocks - RESERVED_BYTES
        if 2 * stage + fixed > limit:
            return illegal("shared_memory", "two stages do not fit", width=width, stage=stage, fixed=fixed, limit=limit)
    return LEGAL


def fits_registers(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Accumulators, two operand buffers and addresses must fit a thread's share of the register file."""
    for width in widths(schedule):
        if not plain_form(op, schedule, width):
            continue  # setmaxnreg forms: their budgets are constants of gemm_plan.h
        warps = 4 * schedule.number("warpgroups") + producer_warps(op)
        share = device.registers_sm // 4 // (-(-warps * schedule.number("blocks") // 4) * 32) // 8 * 8
        needed = max(width // 2 + 32 + 28, WEIGHTED_REGISTERS if weighted_gather(op) else 0)
        if needed > share:
            return illegal("registers", "a thread needs more", width=width, needed=needed, share=share)
    return LEGAL


def useful_shape(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Fields that no kernel of the ladder reads must stay at their first value; gathers stay narrow."""
    ladder = widths(schedule)
    groups, tiles, blocks = (schedule.number(name) for name in ("warpgroups", "tiles", "blocks"))
    if groups not in range(1, 6) or tiles not in (1, 2) or blocks not in range(1, 9):
        return illegal(
            "shape", "1 to 5 warpgroups of 1 or 2 tiles, 1 to 8 blocks", warpgroups=groups, tiles=tiles, blocks=blocks
        )
    if tiles == 2 and (groups != 4 or blocks != 1 or ladder[0] > MANY_TILES_WIDTH or staged(op)):
        return illegal("tiles", "more tiles a warpgroup: four warpgroups, one block, widths up to 88, no decoder")
    if tiles == 2 and any(NARROW_WIDTH < width <= MANY_TILES_WIDTH for width in ladder) and holds_little(op):
        return illegal("tiles", "between 32 and 88 the epilogue or a gathering producer needs the registers")
    if tiles == 2 and NARROW_WIDTH < ladder[-1] <= 64 and 0 < op.k % UNIT_K <= UNIT_K // 2:
        return illegal("tiles", "a first kernel with four tiles has no registers to copy half units of K")
    if (op.reads_codes or op.gather) and blocks > 1:
        return illegal("blocks", "a warpgroup of producers leaves no registers for a second block", blocks=blocks)
    if ladder[0] > 64 and (groups != 4 or blocks != 1):
        return illegal("warpgroups", "no kernel of this ladder is narrow enough to choose", narrowest=ladder[0])
    if staged(op) and schedule.family is CLAIMS:
        return illegal("claims", "producer threads that decode rows walk the items each by itself")
    if ladder[-1] > widest(op):
        return illegal("token_width", "registers hold fewer rows of a tile", width=ladder[-1], limit=widest(op))
    if op.epilogue is Epilogue.FUSED_FP4 and op.gated:
        for width in ladder:
            groups, tiles = warpgroups_of(op, schedule, width)
            if groups * tiles % 2:
                return illegal("chunk", "a block's channels need an even number of m64 tiles", tiles=groups * tiles)
    return LEGAL


def may_claim(op: OpSpec, schedule: Schedule) -> bool:
    """True where claiming items can gain anything, and the kernels can: see :func:`useful_shape`."""
    return len(widths(schedule)) > 1 and not staged(op)


def _form(op: OpSpec, schedule: Schedule, device: DeviceFacts, claims: bool, even: bool) -> Schedule:
    """A ladder in the family asked for, as far as that can gain anything."""
    if claims and may_claim(op, schedule):
        return CLAIMS.make(**schedule.as_dict())
    return even_form(op, schedule, device) if even else schedule


def widest(op: OpSpec) -> int:
    """Most rows of a token tile that the producer's and the epilogue's registers take."""
    if op.epilogue is Epilogue.FUSED_FP4 and not op.gated:
        return QUANTISING_WIDTHS
    return DECODE_WIDTHS if op.reads_codes else GATHER_WIDTHS if staged(op) else 256


def holds_little(op: OpSpec) -> bool:
    """True when two warpgroups cannot hold three or four tiles each."""
    return (op.gather and not op.arranged) or op.epilogue not in (None, Epilogue.COMPACT) or op.fused_combine


def counts_fit(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Each warp of the routing block counts experts in its own row of shared memory."""
    threads = schedule.number("threads")
    if threads < 32 or threads > 1024 or threads % 32:
        return illegal("threads", "whole warps, at most 1024 threads", threads=threads)
    if schedule.number("blocks") not in (1, 2, 4, 8):
        return illegal("blocks", "a portable cluster has 1, 2, 4 or 8 blocks", blocks=schedule.number("blocks"))
    parts = max(1, min(threads // op.experts, threads // 32))
    needed = 4 * ((threads // 32 + parts + 3) * op.experts + 35)
    if needed > device.smem_bytes:
        return illegal("shared_memory", "counts do not fit", bytes=needed, limit=device.smem_bytes)
    return LEGAL


def holds_tokens(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """A producer that gathers keeps the tokens of its rows in registers."""
    ladder = widths(schedule)
    if op.arranged and ladder[-1] > TWO_TILES_WIDTH:
        return illegal("token_width", "a producer of pieces holds fewer rows", width=ladder[-1], limit=TWO_TILES_WIDTH)
    plain = [width for width in ladder if plain_form(op, schedule, width)]
    if op.gather and schedule.number("warpgroups") == 5 and plain and plain[-1] > FIVE_GATHER_WIDTH:
        return illegal("registers", "five warpgroups leave a gathering producer too few", width=plain[-1])
    return LEGAL


GEMM_PREDICATES: tuple[Predicate, ...] = (
    serves_rows,
    useful_shape,
    fits_device,
    fits_registers,
    holds_tokens,
    cuts_whole_parts,
)


@dataclass(frozen=True)
class Sm90Catalog:
    """What the sm_90a target offers; see :class:`moegen.codegen.catalog.Catalog`."""

    @property
    def target(self) -> Target:
        """Always sm_90a."""
        return Target.SM_90A

    def families(self, kind: OpKind) -> tuple[ScheduleFamily, ...]:
        """Ladders for the gemms, one block for route, streams for the rest."""
        return (LADDER, CLAIMS, EVEN) if kind in GEMMS else (ROUTE,) if kind is OpKind.ROUTE else (STREAM,)

    def row_tiles(self, choice: Choice, act_format: ActFormat) -> tuple[int, ...]:
        """Always groups of 8; raises SpecError when ``choice`` names an unknown field."""
        chosen_values(CHOICE, AUTO, choice)
        return (ROW_TILE,)

    def gather_forms(self) -> tuple[bool, ...]:
        """A gather of its own for wide tiles, one inside gemm1 for few tokens."""
        return (False, True)

    def rows_layouts(self, act_format: ActFormat) -> tuple[str, ...]:
        """The private order alone."""
        return (ROWS_LAYOUT,)

    def decoded_forms(self) -> tuple[bool, ...]:
        """Codes for few rows, products for many, whose wide tiles would each decode their rows again."""
        return (False, True)

    def scale_layout(self, declared: ScaleLayout) -> ScaleLayout:
        """Either, as declared."""
        return declared

    def weight_packs(self, op: OpSpec) -> tuple[str, ...]:
        """One private pack."""
        return packs_of(op)

    def pack_bytes(self, op: OpSpec) -> int:
        """Units of all experts: codes and scales, and the padding to whole tiles."""
        return op.experts * expert_bytes(op)

    def schedules(self, op: OpSpec, device: DeviceFacts, choice: Choice) -> tuple[Schedule, ...]:
        """Every combination of the considered values; raises SpecError on an unknown field or a malformed ladder."""
        considered = chosen_values(CHOICE, LISTED if choice else AUTO, choice)
        if op.kind is OpKind.ROUTE:
            return tuple(ROUTE.make(threads=threads, blocks=blocks) for threads, blocks in ROUTE_SHAPES)
        if op.kind not in GEMMS:
            return (STREAM.make(),)
        made = [
            _form(op, schedule, device, claims is True, even is True)
            for values in considered
            for claims, even in product(values["claims"], values["even"])
            for schedule in expand(LADDER, values)
        ]
        return tuple(dict.fromkeys(made))

    def verdict(self, op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
        """The first predicate that refuses, or LEGAL."""
        if op.kind in GEMMS:
            return judge(GEMM_PREDICATES, op, schedule, device)
        return judge((serves_rows, counts_fit) if op.kind is OpKind.ROUTE else (serves_rows,), op, schedule, device)

    def time_us(self, op: OpSpec, schedule: Schedule, device: DeviceFacts, load: Load) -> float:
        """Bytes at the ring's rate, decode and multiply at the multiprocessors', whichever is longest, and launches."""
        if op.kind in GEMMS:
            return gemm_us(op, schedule, device, load)
        passes = 2.0 if op.act_scale is ActScale.DYNAMIC_TENSOR else 1.0
        if op.kind is OpKind.ROUTE:
            return route_us(schedule, load)
        if op.kind is OpKind.ARRANGE:
            return arrange_us(op, device, load)
        return CHAINED_US + 1e6 * passes * stream_bytes(op, load) / (0.8 * device.read_bytes_s)

    def template(self, op: OpSpec, schedule: Schedule) -> str:
        """One template per op."""
        return f"sm_90a/{op.kind.value}.cu.j2"

    def includes(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        """Device library files of the kernel half."""
        names = LIBRARY[op.kind]
        if op.decoded and op.kind not in GEMMS:
            names = ("products.cuh",)
        if op.kind is OpKind.GEMM1:
            names += ("gathered.cuh",) if op.gather and not staged(op) else ()
            fast = op.numerics is not None and op.numerics.activation_math.value == "fast"
            names = ("activations_fast.cuh" if fast else "activations_lean.cuh", *names)
            names += ("fused_fp4.cuh",) if op.epilogue is Epilogue.FUSED_FP4 else ()
        return tuple(f"sm_90a/device/{name}" for name in names)

    def scratch(self, op: OpSpec, schedule: Schedule) -> Scratch:
        """Two words for each kernel that claims items, and for a tensor's dynamic scale."""
        if schedule.family is CLAIMS:
            return Scratch(fixed=8 * len(widths(schedule)))
        return Scratch(fixed=8) if op.act_scale is ActScale.DYNAMIC_TENSOR and op.kind not in GEMMS else Scratch()

    def most_tokens(self, op: OpSpec, schedule: Schedule) -> int | None:
        """Any number."""
        return None

    def options(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        """Nothing beyond the toolchain's own list."""
        return ()


CATALOG = Sm90Catalog()
