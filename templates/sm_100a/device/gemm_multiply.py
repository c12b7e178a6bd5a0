"""The MMA warp of a grouped gemm: scales to tensor memory, then one MMA for each 64 elements of depth."""

import cutlass
import cutlass.cute as cute
from cutlass import Float8E4M3FN, Int32, pipeline
from cutlass.cute.nvgpu import tcgen05
from cutlass.utils import blockscaled_layout
from sm_100a.device import gemm_work
from sm_100a.device.gemm_layout import (
    BLOCK,
    SCALE_COLUMN_ROWS,
    SCALE_ROWS,
    accumulator_tensor,
    operand_tiles,
)


def scale_copy(gemm, shared, columns):
    """The copy of one operand's scales from shared to tensor memory: (copy, sources by stage, destination)."""
    source, destination = cute.filter_zeros(shared), cute.filter_zeros(columns)
    atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(gemm.cta_group), Float8E4M3FN)
    copy = tcgen05.make_s2t_copy(atom, destination)
    part = copy.get_slice(0)
    return copy, tcgen05.get_s2t_smem_desc_tensor(copy, part.partition_S(source)), part.partition_D(destination)


def scale_tensor(column, layout):
    """Scales in tensor memory from ``column``."""
    return cute.make_tensor(cute.recast_ptr(column, dtype=Float8E4M3FN), layout)


@cute.jit
def multiply_tiles(
    gemm: cutlass.Constexpr,
    ring,
    scale_ring,
    accumulators,
    mma,
    shared: cutlass.Constexpr,
    layouts: cutlass.Constexpr,
    base,
    work_ring,
    items,
    place,
):
    """Accumulates tile after tile; of a pair of CTAs the first issues everything."""
    a, b = mma.make_fragment_A(shared[0]), mma.make_fragment_B(shared[1])
    accumulator = accumulator_tensor(gemm, mma, base)
    one_stage = (None, None, None, 0)
    layout_a = blockscaled_layout.make_tmem_layout_sfa(mma, gemm.tiler, BLOCK, cute.slice_(layouts[2], one_stage))
    layout_b = blockscaled_layout.make_tmem_layout_sfb(mma, gemm.tiler, BLOCK, cute.slice_(layouts[3], one_stage))
    column_b = base + gemm.first_scale + gemm.scale_columns[0]
    scales_a = scale_tensor(base + gemm.first_scale, layout_a)
    copy_a, from_a, to_a = scale_copy(gemm, shared[2], scales_a)
    copy_b, from_b, to_b = scale_copy(gemm, shared[3], scale_tensor(column_b, layout_b))
    filled = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, gemm.stages)
    target = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, gemm.acc_ring)
    turn = Int32(0)
    leads = place == 0
    taken = gemm_work.make_state()
    work = gemm_work.take(work_ring, items, taken)
    taken.advance()
    while work.expert >= 0:
        tile = accumulator[(None, None, None, turn)]
        # A tile that starts in the middle of a unit of scales skips the columns of the 64 rows before it.
        skipped = Int32(0)
        if cutlass.const_expr(not gemm.narrow):
            _, b_tile, _, _ = operand_tiles(gemm, work)
            skipped = b_tile * gemm.cols % SCALE_ROWS // SCALE_COLUMN_ROWS
        used_b = scale_tensor(column_b + skipped, layout_b)
        if leads:
            accumulators.producer_acquire(target)
        for k in cutlass.range(gemm.k_tiles, unroll=1):
            if leads:
                ring.consumer_wait(filled)
                if cutlass.const_expr(gemm.narrow):
                    scale_ring.consumer_wait(filled)
                stage = (None, None, None, None, filled.index)
                cute.copy(copy_a, from_a[stage], to_a)
                cute.copy(copy_b, from_b[stage], to_b)
                mma.set(tcgen05.Field.ACCUMULATE, k != 0)
                here = (None, None, None, filled.index)
                cute.gemm(mma, tile, [a[here], scales_a], [b[here], used_b], tile)
                ring.consumer_release(filled)
                if cutlass.const_expr(gemm.narrow):
                    scale_ring.consumer_release(filled)
            filled.advance()
        if leads:
            accumulators.producer_commit(target)
        target.advance()
        turn = (turn + 1) % gemm.acc_stages
        work = gemm_work.take(work_ring, items, taken)
        taken.advance()
    accumulators.producer_tail(target)
