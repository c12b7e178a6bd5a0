"""W4A16 on the Blackwell targets: NVFP4 weights decoded in registers for warp-level MMAs, and row copies.

A block computes ``tokens`` token rows by ``rows`` weight rows; weights are the M operand, so that few tokens fill a
tile. All threads copy codes, scales and tokens into a ring in shared memory; ``templates/sm_100a/device/w4a16_shape.h``
has the same numbers for the kernels. Weights are the public pack, as W4A4 kernels read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from moegen.codegen.catalog import LEGAL, Choice, Predicate, Verdict, chosen_values, illegal, judge
from moegen.codegen.catalogs.ring import fits_shared_memory
from moegen.codegen.cost import gemm_bytes, roofline_us, stream_bytes, wave_occupancy
from moegen.codegen.load import Load
from moegen.codegen.schedule import Schedule, ScheduleFamily, ScheduleField, Value, expand
from moegen.core.devices import DeviceFacts
from moegen.core.enums import OpKind, RouterWeight, ScaleLayout, Target
from moegen.core.ops import OpSpec

GEMMS = (OpKind.GEMM1, OpKind.GEMM2)
COPIES = (OpKind.GATHER, OpKind.DEINTERLEAVE)
WARP = 32
FRAGMENT_ROWS = 16
"""Weight rows of one m16n8k16."""
GROUP_TOKENS = 8
CHUNK_K = 128
"""K that a row's codes in four lanes cover, 16 bytes each."""
UNIT_ROWS = 128
"""Rows of one tile of the 128x4 scale layout."""
MOST_ACCUMULATORS = 64
"""fp32 accumulators of a lane: the epilogue's values and the decoded operands need the other registers."""
RESERVED_BYTES = 1024
"""Shared memory that each resident block costs beside its own."""
SM_THREADS = 2048
AUTO: Mapping[str, tuple[Value, ...]] = {
    "tokens": (8, 16, 32, 64, 128),
    "rows": (64, 128),
    "k": (128, 256),
    "stages": (3, 4, 6),
    "warps": (4, 8),
}

# Rates of the time model, which ranks candidates only: nothing here was measured on a B200.
CLOCK_GHZ = 1.9
ISSUE_LANES = 4
"""Warp instructions a multiprocessor issues in a cycle."""
DECODE_ISSUE = 23.5
"""Warp instructions that copy and decode one m16k16 fragment: the count of the compiled loop (m128, k256, bf16)."""
TOKEN_ISSUE = 2.5
"""Loading and pairing the eight tokens of one k16 step, shared by a warp's fragments."""
WEIGHTED_ISSUE = 10.0
"""Multiplying those tokens by their router weights where gemm1 gathers them."""
LATENCY_US = 1.0
"""From a copy's issue to its arrival under load: what the bytes in flight must cover."""


def family(target: Target) -> ScheduleFamily:
    """The fields of a warp-level W4A16 schedule on one target."""
    return ScheduleFamily(
        target=target,
        name="warp",
        kinds=GEMMS,
        fields=(
            ScheduleField(name="tokens", tag="n", doc="token rows of a tile: the layer's row tile"),
            ScheduleField(name="rows", tag="m", doc="weight rows of a tile: 64 or 128"),
            ScheduleField(name="k", tag="k", doc="depth of one stage: 128 or 256"),
            ScheduleField(name="stages", tag="s", doc="stages of the shared-memory ring"),
            ScheduleField(name="warps", tag="w", doc="warps, which share the weight rows evenly"),
        ),
    )


def copies_family(target: Target) -> ScheduleFamily:
    """Row copies have nothing to choose: a thread moves 16 bytes."""
    return ScheduleFamily(target=target, name="copy", kinds=COPIES)


def fragments(schedule: Schedule) -> int:
    """m16 fragments of one warp; 0 when the warps cannot share the tile evenly."""
    whole, rest = divmod(schedule.number("rows"), FRAGMENT_ROWS * schedule.number("warps"))
    return 0 if rest else whole


def stage_bytes(schedule: Schedule) -> int:
    """Codes, scales and tokens of one stage; mirrors ``W4A16Shape``."""
    rows, tokens, k = (schedule.number(name) for name in ("rows", "tokens", "k"))
    return rows * k // 2 + rows * k // 16 + tokens * k * 2


def shared_memory_bytes(schedule: Schedule) -> int:
    """Bytes of one block's ring; mirrors ``W4A16Shape``."""
    return schedule.number("stages") * stage_bytes(schedule)


def row_tiles(op: OpSpec, schedule: Schedule) -> int:
    """Tiles of weight rows of one expert; mirrors ``W4A16Shape``."""
    tiles = UNIT_ROWS // schedule.number("rows")
    units, tail = divmod(op.n, UNIT_ROWS)
    return units * tiles + (0 if tail == 0 else 1 if tail <= FRAGMENT_ROWS else tiles)


def shares_row_tile(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """All ops of a pipeline pad an expert's rows alike."""
    tokens = schedule.number("tokens")
    if tokens < GROUP_TOKENS or tokens % GROUP_TOKENS:
        return illegal("tokens", "a tile has whole groups of 8 tokens", tokens=tokens)
    if tokens != op.row_tile:
        return illegal("row_tile", "the token tile is not the layer's row tile", tokens=tokens, row_tile=op.row_tile)
    return LEGAL


def reads_16_bit_rows(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Token rows are operands as they are."""
    if op.w4a4:
        return illegal("operand", "this layer's rows are FP4; the block-scaled kernels multiply those")
    return LEGAL


def needs_tiled_scales(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Scales come in 16-byte pieces, which rows of K/16 linear scales are not made of."""
    if op.weight_scale_layout is not ScaleLayout.SWIZZLE_128X4:
        return illegal("scale_layout", "weight scales are copied as 128x4 tiles: set scale_layout to swizzle_128x4")
    return LEGAL


def tiles_scale_units(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """A tile's scales are whole 16-byte pieces: four rows, 32 apart, of four blocks of K."""
    if schedule.number("rows") not in (UNIT_ROWS // 2, UNIT_ROWS):
        return illegal("rows", "a tile takes a scale unit of 128 rows, or half of it", rows=schedule.number("rows"))
    return LEGAL


def splits_evenly(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Every warp decodes as many fragments as every other, once."""
    warps = schedule.number("warps")
    if warps not in (4, 8) or not fragments(schedule):
        return illegal("warps", "4 or 8 warps share the tile's fragments", warps=warps, rows=schedule.number("rows"))
    return LEGAL


def depth_is_whole(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Rows of a stage are 64 or 128 bytes of codes: the two orders that shared memory is read in without conflicts."""
    if schedule.number("k") not in (CHUNK_K, 2 * CHUNK_K):
        return illegal("depth", "a stage holds 128 or 256 of K", k=schedule.number("k"))
    return LEGAL


def fits_registers(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Accumulators beside two decoded operands and addresses."""
    accumulators = fragments(schedule) * schedule.number("tokens") // 2
    if accumulators > MOST_ACCUMULATORS:
        return illegal("registers", "a lane holds more", accumulators=accumulators, limit=MOST_ACCUMULATORS)
    return LEGAL


PREDICATES: tuple[Predicate, ...] = (
    shares_row_tile,
    reads_16_bit_rows,
    needs_tiled_scales,
    tiles_scale_units,
    splits_evenly,
    depth_is_whole,
    fits_registers,
    fits_shared_memory(shared_memory_bytes),
)


@dataclass(frozen=True)
class W4A16Part:
    """The part of a Blackwell catalog that serves 16-bit tokens."""

    target: Target

    @property
    def families(self) -> tuple[ScheduleFamily, ...]:
        """The gemms' and the copies'."""
        return (family(self.target), copies_family(self.target))

    def serves(self, op: OpSpec) -> bool:
        """True for ops of W4A16 pipelines that no other part has."""
        return op.kind in COPIES or (op.kind in GEMMS and not op.w4a4)

    def row_tiles(self, choice: Choice) -> tuple[int, ...]:
        """Token tiles of the gemm schedules; raises SpecError as :func:`chosen_values`."""
        return tuple(sorted({schedule.number("tokens") for schedule in self._space(choice)}))

    def schedules(self, op: OpSpec, choice: Choice) -> tuple[Schedule, ...]:
        """Gemm schedules at the op's token tile, or the one shape of a copy."""
        if op.kind in COPIES:
            return (copies_family(self.target).make(),)
        return tuple(schedule for schedule in self._space(choice) if schedule.number("tokens") == op.row_tile)

    def _space(self, choice: Choice) -> tuple[Schedule, ...]:
        own = family(self.target)
        spaces = chosen_values(own, AUTO, choice)
        return tuple(dict.fromkeys(schedule for values in spaces for schedule in expand(own, values)))

    def verdict(self, op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
        """The first predicate that refuses, or LEGAL."""
        return LEGAL if op.kind in COPIES else judge(PREDICATES, op, schedule, device)

    def time_us(self, op: OpSpec, schedule: Schedule, device: DeviceFacts, load: Load) -> float:
        """Traffic of a copy; of a gemm, bytes or instructions over the tiles' waves, and one launch."""
        if op.kind in COPIES:
            return roofline_us(device, stream_bytes(op, load), 0.0)
        return gemm_us(op, schedule, device, load)

    def template(self, op: OpSpec) -> str:
        """CUDA sources."""
        name = op.kind.value if op.kind in COPIES else f"{op.kind.value}_w4a16"
        return f"sm_100a/{name}.cu.j2"

    def includes(self, op: OpSpec) -> tuple[str, ...]:
        """Device library files of the kernel half."""
        if op.kind in COPIES:
            return ("sm_100a/device/row_copies.cuh",)
        if op.kind is OpKind.GEMM2:
            return ("sm_100a/device/w4a16_epilogue.cuh",)
        fast = op.numerics is not None and op.numerics.activation_math.value == "fast"
        activations = "activations_fast" if fast else "activations"
        return (f"sm_90a/device/{activations}.cuh", "sm_100a/device/w4a16_epilogue.cuh")


def resident_blocks(schedule: Schedule, device: DeviceFacts) -> int:
    """Blocks that share a multiprocessor, by shared memory and threads."""
    by_memory = device.smem_sm_bytes // (shared_memory_bytes(schedule) + RESERVED_BYTES)
    return max(1, min(by_memory, SM_THREADS // (WARP * schedule.number("warps"))))


def gemm_us(op: OpSpec, schedule: Schedule, device: DeviceFacts, load: Load) -> float:
    """Modelled time: bytes at the rate that the copies in flight sustain, or instructions of decoding and multiplying,
    whichever is longer, over the share of the device that the tiles fill."""
    groups, warps = schedule.number("tokens") / GROUP_TOKENS, schedule.number("warps")
    weighted = op.gather and op.numerics is not None and op.numerics.router_weight is RouterWeight.INPUT
    per_group = TOKEN_ISSUE + (WEIGHTED_ISSUE if weighted else 0.0)
    per_fragment = DECODE_ISSUE + groups * (1 + per_group / fragments(schedule))
    tasks = load.tiles * row_tiles(op, schedule)
    steps = -(-op.k // CHUNK_K) * CHUNK_K // FRAGMENT_ROWS
    issued = tasks * warps * fragments(schedule) * steps * per_fragment
    issue_us = 1e-3 * issued / (ISSUE_LANES * CLOCK_GHZ * device.cores)
    blocks = resident_blocks(schedule, device)
    in_flight = blocks * (schedule.number("stages") - 1) * stage_bytes(schedule)
    sustained = min(1.0, in_flight * device.cores / (1e-6 * LATENCY_US * device.read_bytes_s))
    read_us = 1e6 * gemm_bytes(op, load) / (sustained * device.read_bytes_s)
    occupancy = wave_occupancy(tasks, device.cores * blocks) if tasks > device.cores else tasks / device.cores
    return max(read_us, issue_us) / max(occupancy, 1e-3) + device.launch_us
