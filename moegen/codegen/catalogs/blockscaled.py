"""Schedules of a block-scaled tcgen05 gemm (``kind::mxf4nvf4``) and what makes one legal, operand by operand.

The MMA computes D[M, N] = A[M, K] · B[N, K]ᵀ. Plain: tokens are A (M) and weights B (N); swapped: weights are A and
tokens B, so that few tokens fill a narrow N. Sizes are in elements; a tile is what one CTA, or a pair, computes.
"""

from moegen.codegen.catalog import LEGAL, Predicate, Verdict, illegal
from moegen.codegen.catalogs.ring import fits_shared_memory
from moegen.codegen.schedule import Schedule, ScheduleFamily, ScheduleField
from moegen.core.abi import BLOCK, round_up
from moegen.core.devices import DeviceFacts
from moegen.core.enums import Epilogue, OpKind, ScaleLayout, Target
from moegen.core.ops import OpSpec

MMA_K = 64
"""K of one mxf4nvf4 MMA: 32 bytes of E2M1."""
MMA_MAX_N = 256
SCALE_ROWS = 128
"""Block scales travel and sit in tensor memory in units of 128 rows, whatever the tile's width."""
SCALE_WIDTH = 64
"""The N operand's scales start at even columns of tensor memory: every 64 rows."""
NARROW = (8, 16, 32)
"""Token tiles below ``SCALE_WIDTH``, whose scales a warp copies token by token: what one load from tensor memory takes,
and what divides a unit of scales."""
SCALE_COLUMNS = 4
"""Tensor-memory columns of one 128-row unit of scales for one MMA_K."""
BOX_BYTES = 128
"""Inner extent of a swizzled bulk tensor copy."""
STAGE_ALIGN = 1024
"""Swizzled shared-memory tiles start at multiples of this."""
BARRIER_BYTES = 1024
BOX_ROWS = 32
"""Rows of a box that a warp stores by one bulk copy."""
BOX_STORE_BYTES = 4 * 2 * BOX_ROWS * 64
"""Two boxes of each epilogue warp."""
STAGED_BYTES = 32 * 132 * 4
"""Where a swapped tile turns 32 tokens of 128 weight rows around."""


def family(target: Target) -> ScheduleFamily:
    """The fields of a tcgen05 schedule on one target."""
    return ScheduleFamily(
        target=target,
        name="tcgen05",
        kinds=(OpKind.GEMM1, OpKind.GEMM2),
        fields=(
            ScheduleField(name="rows", tag="m", doc="M of the tile: 128, or 256 over a pair of CTAs"),
            ScheduleField(name="cols", tag="n", doc="N of the tile"),
            ScheduleField(name="k", tag="k", doc="depth of one pipeline stage"),
            ScheduleField(name="stages", tag="s", doc="stages of the shared-memory ring"),
            ScheduleField(name="acc_stages", tag="a", doc="accumulators in tensor memory, 2 overlap the epilogue"),
            ScheduleField(name="cta_group", tag="g", doc="CTAs that share one MMA"),
            ScheduleField(name="ctas", tag="c", doc="persistent CTAs: the multiprocessors of the device"),
            ScheduleField(name="swap_ab", tag="x", doc="weights are the M operand", type="bool"),
            ScheduleField(
                name="bulk_stores",
                tag="b",
                doc="rows leave through shared memory by bulk copies; else threads store what they made",
                type="bool",
            ),
        ),
    )


def token_tile(schedule: Schedule) -> int:
    """Tokens of one tile: the layer's row tile."""
    return schedule.number("cols" if schedule["swap_ab"] else "rows")


def tensor_memory_columns(schedule: Schedule) -> int:
    """Columns that accumulators and both operands' scales would occupy side by side."""
    rows = schedule.number("rows") // schedule.number("cta_group")
    units = -(-rows // SCALE_ROWS) + -(-schedule.number("cols") // SCALE_ROWS)
    scales = units * SCALE_COLUMNS * (schedule.number("k") // MMA_K)
    return schedule.number("cols") * schedule.number("acc_stages") + scales


def shared_memory_bytes(schedule: Schedule) -> int:
    """Bytes of one CTA: the ring with every tile aligned, the barriers, and where a swapped tile is turned.

    A pair of CTAs splits both operands; the scales of B are needed whole by each.
    """
    group, k = schedule.number("cta_group"), schedule.number("k")
    rows, cols = schedule.number("rows") // group, schedule.number("cols")
    codes = [tile * k // 2 for tile in (rows, cols // group)]
    scales = [round_up(tile, SCALE_ROWS) * k // BLOCK for tile in (rows, cols)]
    stage = sum(round_up(size, STAGE_ALIGN) for size in codes + scales)
    staged = STAGED_BYTES * min(32, schedule.number("cols")) // 32 if schedule["swap_ab"] else 0
    boxes = BOX_STORE_BYTES if schedule["bulk_stores"] else 0
    return schedule.number("stages") * stage + staged + boxes + BARRIER_BYTES


def shares_row_tile(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """All ops of a pipeline pad an expert's rows alike."""
    tokens = token_tile(schedule)
    if tokens != op.row_tile:
        return illegal("row_tile", "the token tile is not the layer's row tile", tokens=tokens, row_tile=op.row_tile)
    return LEGAL


def needs_tiled_scales(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Bulk copies of scales bring whole 128x4 tiles to tensor memory as they are."""
    swizzled = ScaleLayout.SWIZZLE_128X4
    if op.scale_layout is not swizzled or op.weight_scale_layout is not swizzled:
        return illegal("scale_layout", "tensor memory takes scales in 128x4 tiles")
    return LEGAL


def has_ctas(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """A persistent grid has at least one CTA, and no more than run at a time."""
    ctas = schedule.number("ctas")
    if not 1 <= ctas <= device.cores:
        return illegal("ctas", "persistent CTAs beyond the multiprocessors", ctas=ctas, most=device.cores)
    return LEGAL


def reads_fp4_rows(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """mxf4nvf4 multiplies E2M1 by E2M1."""
    if not op.w4a4:
        return illegal("operand", "a block-scaled MMA needs FP4 rows, and this layer's rows are bf16")
    return LEGAL


def pairs_ctas(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """M = 128 belongs to one CTA, M = 256 to a pair; half-filled pairs waste a CTA."""
    group, rows = schedule.number("cta_group"), schedule.number("rows")
    if group not in (1, 2):
        return illegal("cta_group", "one CTA or a pair", cta_group=group)
    if rows != 128 * group:
        return illegal("pairing", "each CTA of a group owns 128 rows", rows=rows, needed=128 * group)
    if schedule["swap_ab"] and op.n < rows:
        return illegal("pairing", "fewer weight rows than one tile", n=op.n, rows=rows)
    return LEGAL


def width_fits_role(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """N in the MMA's steps and in whole units of scales, which compilers do not check.

    MMAs read B's scales from lane 0 of an even column of tensor memory on: every 64 rows. A narrower tile of weights
    would start in between. A narrower tile of tokens may, since these scales are copied token by token.
    """
    cols, step = schedule.number("cols"), 8 * schedule.number("cta_group")
    if cols < step or cols > MMA_MAX_N or cols % step:
        return illegal("width", "N outside the MMA's steps", cols=cols, step=step, most=MMA_MAX_N)
    if cols % SCALE_WIDTH == 0:
        return LEGAL
    if not schedule["swap_ab"]:
        return illegal("scale_width", "weight tiles need whole units of scales", cols=cols, unit=SCALE_WIDTH)
    if cols not in NARROW:
        return illegal("scale_width", "token tiles are 8, 16, 32 or whole units of scales", cols=cols, unit=SCALE_WIDTH)
    if schedule["cta_group"] != 1:
        return illegal("scale_width", "a pair halves loads of tokens, and a narrow tile has hardly any", cols=cols)
    return LEGAL


def depth_is_whole(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """A stage holds whole MMAs, and a row of it whole swizzle boxes' worth of bytes or an even share of one."""
    k = schedule.number("k")
    if k < MMA_K or k % MMA_K:
        return illegal("depth", "a stage holds whole MMAs", k=k, mma_k=MMA_K)
    row_bytes = k // 2
    if max(row_bytes, BOX_BYTES) % min(row_bytes, BOX_BYTES):
        return illegal("box", "a stage's row must fill swizzle boxes", row_bytes=row_bytes, box=BOX_BYTES)
    return LEGAL


def output_blocks_are_whole(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """16 activated values of a fused quantiser come from one tile: 32 weight rows when gated."""
    needed = 2 * BLOCK if op.gated else BLOCK
    weights = schedule.number("rows" if schedule["swap_ab"] else "cols")
    if op.epilogue is Epilogue.FUSED_FP4 and weights % needed:
        return illegal("output_block", "a block of 16 activated values spans tiles", weights=weights, needed=needed)
    return LEGAL


def stores_in_bulk(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Bulk copies store whole boxes of token rows."""
    if not schedule["bulk_stores"]:
        return LEGAL
    if op.fused_combine or op.epilogue is Epilogue.FUSED_FP4:
        return illegal("bulk_stores", "codes and sums are stored by the threads that made them")
    if token_tile(schedule) < BOX_ROWS:
        return illegal("bulk_stores", "a box of rows spans tiles", tokens=token_tile(schedule), box=BOX_ROWS)
    return LEGAL


def fits_tensor_memory(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Accumulators and scales share the multiprocessor's columns.

    Two accumulators may share columns with each other, which are read first; half of one is enough to work on.
    """
    columns, stages = tensor_memory_columns(schedule), schedule.number("acc_stages")
    if stages not in (1, 2):
        return illegal("acc_stages", "one accumulator, or two", acc_stages=stages)
    shared = schedule.number("cols") // 2 if stages == 2 else 0
    if columns > device.tmem_columns + shared:
        return illegal(
            "tensor_memory", "accumulators and scales exceed tensor memory", columns=columns, limit=device.tmem_columns
        )
    return LEGAL


PREDICATES: tuple[Predicate, ...] = (
    shares_row_tile,
    reads_fp4_rows,
    needs_tiled_scales,
    has_ctas,
    pairs_ctas,
    width_fits_role,
    depth_is_whole,
    output_blocks_are_whole,
    stores_in_bulk,
    fits_tensor_memory,
    fits_shared_memory(shared_memory_bytes),
)
