"""The copy warp of a grouped gemm: bulk copies of codes and scales into the ring."""

import cutlass
import cutlass.cute as cute
from cutlass import pipeline
from cutlass.cute.nvgpu import cpasync
from sm_100a.device import gemm_work
from sm_100a.device.gemm_layout import SCALE_ROWS, make_mma, make_unit_mma, operand_tiles


def copy_tile(part, tile, k, layer, stage, barrier):
    """Starts one bulk copy into a stage."""
    atom, source, destination = part
    cute.copy(atom, source[(None, tile, k, layer)], destination[(None, stage)], tma_bar_ptr=barrier)


def _part(gemm, number, atom, tensor, shared, place):
    """A bulk copy's (atom, tiles of the source, stages of the destination)."""
    extents = (gemm.rows, gemm.cols, gemm.rows, SCALE_ROWS)
    tiles = cute.local_tile(tensor, (extents[number], gemm.depth), (None, None, None))
    part = make_unit_mma().get_slice(0) if number == 3 else make_mma(gemm).get_slice(place)
    partitioned = part.partition_B(tiles) if number % 2 == 1 else part.partition_A(tiles)
    destination, source = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 3), cute.group_modes(partitioned, 0, 3)
    )
    if number >= 2:
        destination, source = cute.filter_zeros(destination), cute.filter_zeros(source)
    return atom, source, destination


@cute.jit
def load_tiles(
    gemm: cutlass.Constexpr, ring, copies: cutlass.Constexpr, shared: cutlass.Constexpr, work_ring, items, place
):
    """Fills a stage with both operands and their scales, tile after tile."""
    parts = [
        _part(gemm, number, copies[2 * number], copies[2 * number + 1], shared[number], place)
        for number in range(len(copies) // 2)
    ]
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, gemm.stages)
    taken = gemm_work.make_state()
    work = gemm_work.take(work_ring, items, taken)
    taken.advance()
    while work.expert >= 0:
        a, b, layer_a, layer_b = operand_tiles(gemm, work)
        for k in cutlass.range(gemm.k_tiles, unroll=1):
            ring.producer_acquire(state)
            barrier = ring.producer_get_barrier(state)
            stage = state.index
            copy_tile(parts[0], a, k, layer_a, stage, barrier)
            copy_tile(parts[1], b, k, layer_b, stage, barrier)
            copy_tile(parts[2], a, k, layer_a, stage, barrier)
            if cutlass.const_expr(not gemm.narrow):
                for unit in cutlass.range_constexpr(gemm.units):
                    first = b * gemm.cols // SCALE_ROWS
                    copy_tile(parts[3], first + unit, k, layer_b, stage * gemm.units + unit, barrier)
            state.advance()
        work = gemm_work.take(work_ring, items, taken)
        taken.advance()
    ring.producer_tail(state)
