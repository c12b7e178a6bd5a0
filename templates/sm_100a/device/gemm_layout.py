"""Sizes, layouts and bulk copies of a grouped block-scaled gemm, D = A · Bᵀ, on tcgen05.

Plain: token rows are A (M) and weights are B (N). Swapped: weights are A and tokens are B, so that few tokens of an
expert fill a narrow tile. A pair of CTAs shares an MMA of 256 rows: each holds half of both operands and half of the
accumulator.
"""

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Float4E2M1FN, Float8E4M3FN, Float32, Int16, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blackwell_helpers, blockscaled_layout
from sm_100a.device import gemm_work
from sm_100a.device.gemm_boxes import BUFFERS, WARPS
from sm_100a.device.gemm_roles import SCALE_WARP

BLOCK = 16
MMA_K = 64
CHUNK = 32
"""Accumulator columns that a thread holds at a time: gate and up of one block of 16 activated values."""
STAGED_PITCH = 132
"""Floats between tokens where accumulators are turned around: 128 weight rows, and 4 against bank conflicts."""
ALIGNMENT = 1024
CTA_ROWS = 128
SCALE_COLUMN_ROWS = 32
"""Rows whose scales share a column of tensor memory."""
MEMORY_COLUMNS = 512
"""Columns of tensor memory."""
SCALE_ROWS = 128
"""Rows of scales that are copied at a time."""
SCALE_STEP = 64
"""Rows of B whose scales start at an even column of tensor memory, as MMAs demand; narrower tiles need a scale warp."""


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """What is known of a gemm when it is compiled.

    ``n`` weight rows and ``k`` elements of one expert; ``pitch`` bytes a row of codes of either operand; a tile is
    ``rows`` (256 over a pair of CTAs) x ``cols``, ``depth`` elements deep a stage; ``ctas`` run at most;
    ``boxes``: rows are stored through shared memory (:mod:`sm_100a.device.gemm_boxes`), else None.
    """

    n: int
    k: int
    experts: int
    pitch: int
    rows: int
    cols: int
    depth: int
    stages: int
    acc_stages: int
    ctas: int
    swapped: bool
    boxes: Any = None

    @property
    def group(self):
        """CTAs that share a tile."""
        return self.rows // CTA_ROWS

    @property
    def cta_group(self):
        """The same as the instructions' field."""
        return tcgen05.CtaGroup.TWO if self.group == 2 else tcgen05.CtaGroup.ONE

    @property
    def tokens(self):
        """Token rows of a tile."""
        return self.cols if self.swapped else self.rows

    @property
    def weights(self):
        """Weight rows of a tile."""
        return self.rows if self.swapped else self.cols

    @property
    def n_tiles(self):
        """Tiles of one expert's weights."""
        return -(-self.n // self.weights)

    @property
    def k_tiles(self):
        """Stages of one tile."""
        return -(-self.k // self.depth)

    @property
    def tiler(self):
        """(M, N, K) of one stage."""
        return self.rows, self.cols, self.depth

    @property
    def narrow(self):
        """Tiles of so few tokens that their scales are copied token by token."""
        return self.swapped and self.cols < SCALE_STEP

    @property
    def warps(self):
        """Warps of a CTA; the last is the scale warp of narrow tiles."""
        return SCALE_WARP + self.narrow

    @property
    def chunk(self):
        """Accumulator columns that a thread reads at a time."""
        return min(CHUNK, self.cols)

    @property
    def units(self):
        """Units of 128 rows that hold the scales of one tile of B."""
        return -(-self.cols // SCALE_ROWS)

    @property
    def scale_columns(self):
        """Tensor-memory columns of (A's, B's) scales."""
        steps = self.depth // MMA_K
        return CTA_ROWS // SCALE_COLUMN_ROWS * steps, self.units * SCALE_ROWS // SCALE_COLUMN_ROWS * steps

    @property
    def overlap(self):
        """Columns that two accumulators share, whole chunks, since they and the scales would not fit otherwise."""
        beyond = self.cols * self.acc_stages + sum(self.scale_columns) - MEMORY_COLUMNS
        return max(0, -(-beyond // CHUNK) * CHUNK)

    @property
    def acc_ring(self):
        """Accumulators that are handed over as a whole: overlapping ones take turns, and one is free at a time."""
        return 1 if self.overlap else self.acc_stages

    @property
    def first_scale(self):
        """The column after the accumulators."""
        return self.cols * self.acc_stages - self.overlap

    @property
    def memory_columns(self):
        """Columns to allocate: a power of two."""
        needed = self.first_scale + sum(self.scale_columns)
        return max(32, 1 << (needed - 1).bit_length())

    @property
    def chunks_a_box(self):
        """Chunks that are finished in a row, since they fill one box."""
        return self.boxes.chunks if self.boxes else 1

    @property
    def kept_chunks(self):
        """Chunks to read before the next tile may be accumulated: all, or those that the accumulators share."""
        if not self.overlap:
            return self.cols // self.chunk
        shared = self.chunk * self.chunks_a_box
        return -(-self.overlap // shared) * self.chunks_a_box

    @property
    def box_elements(self):
        """16-bit elements of all warps' boxes."""
        return WARPS * BUFFERS * self.boxes.elements if self.boxes else 1

    @property
    def staged_values(self):
        """Accumulators that lie in shared memory at a time."""
        return self.chunk * STAGED_PITCH if self.swapped else STAGED_PITCH


def make_mma(gemm):
    """The tensor core's operation, both operands from shared memory."""
    return _mma((gemm.rows, gemm.cols), gemm.cta_group)


def make_unit_mma():
    """An operation as wide as one unit of B's scales, by which these are copied."""
    return _mma((CTA_ROWS, SCALE_ROWS), tcgen05.CtaGroup.ONE)


def _mma(tile, group):
    major = OperandMajorMode.K
    return blackwell_helpers.make_blockscaled_trivial_tiled_mma(
        Float4E2M1FN, Float4E2M1FN, major, major, Float8E4M3FN, BLOCK, group, tile
    )


def cluster_layout(gemm, mma):
    """CTAs of a cluster by (place in the group, 1, 1, 1)."""
    return cute.tiled_divide(cute.make_layout((gemm.group, 1, 1)), (mma.thr_id.shape,))


def shared_layouts(gemm, mma):
    """Staged shared-memory layouts of A, B and their scales."""
    return (
        blackwell_helpers.make_smem_layout_a(mma, gemm.tiler, Float4E2M1FN, gemm.stages),
        blackwell_helpers.make_smem_layout_b(mma, gemm.tiler, Float4E2M1FN, gemm.stages),
        blockscaled_layout.make_smem_layout_sfa(mma, gemm.tiler, BLOCK, gemm.stages),
        blockscaled_layout.make_smem_layout_sfb(mma, gemm.tiler, BLOCK, gemm.stages),
    )


def unit_layout(gemm):
    """B's scales in shared memory once more, as copies fill them: one unit of 128 rows after the other."""
    tiler = (CTA_ROWS, SCALE_ROWS, gemm.depth)
    return blockscaled_layout.make_smem_layout_sfb(make_unit_mma(), tiler, BLOCK, gemm.stages * gemm.units)


def code_tensor(codes, rows, k, pitch, experts):
    """Packed codes as E2M1 elements (row, k, expert), ``pitch`` bytes a row."""
    layout = cute.make_layout((rows, k, experts), stride=(2 * pitch, 1, Int64(rows) * (2 * pitch)))
    return cute.make_tensor(cute.recast_ptr(codes.iterator, dtype=Float4E2M1FN), layout)


def scale_tensor(scales, rows, k, experts):
    """Scales in 128x4 tiles as E4M3 elements (row, k, expert); ``rows`` and ``k`` count whole tiles."""
    layout = blockscaled_layout.tile_atom_to_shape_SF((rows, k, experts), BLOCK)
    return cute.make_tensor(cute.recast_ptr(scales.iterator, dtype=Float8E4M3FN), layout)


def make_copies(gemm, codes, scales, weight_codes, weight_scales):
    """Bulk copies as a flat tuple: (atom, tensor) of A, B, A's scales, one unit of B's scales (not of narrow tiles)."""
    mma = make_mma(gemm)
    layouts = (*shared_layouts(gemm, mma)[:3], unit_layout(gemm))
    padded_k = -(-gemm.k // MMA_K) * MMA_K
    padded_n = -(-gemm.n // SCALE_ROWS) * SCALE_ROWS
    tokens = (
        code_tensor(codes, codes.shape[0], gemm.k, gemm.pitch, 1),
        scale_tensor(scales, scales.shape[0], padded_k, 1),
    )
    weights = (
        code_tensor(weight_codes, gemm.n, gemm.k, gemm.pitch, gemm.experts),
        scale_tensor(weight_scales, padded_n, padded_k, gemm.experts),
    )
    a, b = (weights, tokens) if gemm.swapped else (tokens, weights)
    sources = (a[0], b[0], a[1], b[1])
    operation = cpasync.CopyBulkTensorTileG2SOp(gemm.cta_group)
    made = []
    for number in range(3 if gemm.narrow else 4):
        make = cute.nvgpu.make_tiled_tma_atom_B if number % 2 else cute.nvgpu.make_tiled_tma_atom_A
        unit = number == 3
        made += make(
            operation,
            sources[number],
            cute.slice_(layouts[number], (None, None, None, 0)),
            (CTA_ROWS, SCALE_ROWS, gemm.depth) if unit else gemm.tiler,
            make_unit_mma() if unit else mma,
            (1, 1, 1, 1) if unit else cluster_layout(gemm, mma).shape,
            internal_type=Int16 if number >= 2 else None,
        )
    return tuple(made)


def operand_tiles(gemm, work):
    """(tile of A, tile of B, layer of A, layer of B): token tiles lie in one layer, weight tiles in their expert's."""
    if gemm.swapped:
        return work.weight_tile, work.token_tile, work.expert, 0
    return work.token_tile, work.weight_tile, 0, work.expert


def accumulator_tensor(gemm, mma, base):
    """Accumulators in tensor memory: (MMA, 1, 1, accumulator).

    Overlapping ones share the last columns of the first, which are the first of the second.
    """
    one = mma.make_fragment_C(mma.partition_shape_C((gemm.rows, gemm.cols))).layout
    turns = cute.make_layout(gemm.acc_stages, stride=gemm.cols - gemm.overlap)
    return cute.make_tensor(base, cute.append(one, turns))


def stage_bytes(gemm, layouts):
    """Bytes that one stage's bulk copies bring."""
    kinds = (Float4E2M1FN, Float4E2M1FN, Float8E4M3FN, Float8E4M3FN)
    sizes = [
        cute.size_in_bytes(kind, cute.slice_(layout, (None, None, None, 0)))
        for kind, layout in zip(kinds, layouts, strict=True)
    ]
    return sum(sizes[:3] if gemm.narrow else sizes)


def make_storage(gemm, layouts):
    """The kernel's shared memory as a struct."""
    layout_a, layout_b, layout_scales_a, layout_scales_b = layouts

    def tile(kind, layout):
        return cute.struct.Align[cute.struct.MemRange[kind, cute.cosize(layout)], ALIGNMENT]

    @cute.struct
    class Storage:
        filled: cute.struct.MemRange[Int64, 2 * gemm.stages]
        accumulated: cute.struct.MemRange[Int64, 2 * gemm.acc_ring]
        scattered: cute.struct.MemRange[Int64, 2 * gemm.stages]
        scheduled: cute.struct.MemRange[Int64, 2 * gemm_work.DEPTH]
        tmem_released: Int64
        tmem_address: Int32
        items: cute.struct.Align[cute.struct.MemRange[Int32, gemm_work.WORDS * gemm_work.DEPTH], 16]
        a: tile(Float4E2M1FN, layout_a.outer)
        b: tile(Float4E2M1FN, layout_b.outer)
        scales_a: tile(Float8E4M3FN, layout_scales_a)
        scales_b: tile(Float8E4M3FN, layout_scales_b)
        boxes: cute.struct.Align[cute.struct.MemRange[Int16, gemm.box_elements], ALIGNMENT]
        staged: cute.struct.Align[cute.struct.MemRange[Float32, gemm.staged_values], 16]

    return Storage
