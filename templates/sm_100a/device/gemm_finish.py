"""The epilogue warps of a grouped gemm: 32 accumulators of one token at a time.

Plain: a thread owns a token row and walks along its columns. Swapped: a thread reads one weight row, and shared memory
turns up to 32 tokens around, after which a thread holds 32 weight rows of one of them.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import tcgen05
from sm_100a.device import gemm_work
from sm_100a.device.epilogue import Box
from sm_100a.device.gemm_boxes import make_sender
from sm_100a.device.gemm_layout import CHUNK, CTA_ROWS, SCALE_ROWS, accumulator_tensor
from sm_100a.device.gemm_roles import WARP, epilogue_barrier


@cute.jit
def finish_tiles(
    gemm: cutlass.Constexpr,
    epilogue: cutlass.Constexpr,
    tensors: cutlass.Constexpr,
    accumulators,
    mma,
    staged,
    box_storage,
    base,
    work_ring,
    items,
    place,
):
    """Finishes tile after tile, and hands each accumulator back when what the next tile overwrites is in registers."""
    thread, _, _ = cute.arch.thread_idx()
    accumulator = accumulator_tensor(gemm, mma, base)
    chunks = cute.flat_divide(accumulator[((None, None), 0, 0, None)], (CTA_ROWS, gemm.chunk))
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(gemm.chunk)), Float32)
    copy = tcgen05.make_tmem_copy(atom, chunks[(None, None, 0, 0, 0)])
    part = copy.get_slice(thread)
    source = part.partition_S(chunks)
    shape = part.partition_D(cute.make_identity_tensor((CTA_ROWS, gemm.chunk))).shape
    sender = make_sender(gemm.boxes, *tensors.boxes, box_storage, thread // WARP) if gemm.boxes else None
    sent = Int32(0)
    held = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, gemm.acc_ring)
    turn = Int32(0)
    taken = gemm_work.make_state()
    work = gemm_work.take(work_ring, items, taken)
    taken.advance()
    while work.expert >= 0:
        accumulators.consumer_wait(held)
        for number in cutlass.range(gemm.cols // gemm.chunk, unroll=1):
            chunk = chunk_of(gemm, number, turn)
            values = cute.make_rmem_tensor(shape, Float32)
            cute.copy(copy, source[(None, None, None, 0, chunk, turn)], values)
            cute.arch.fence_view_async_tmem_load()
            if number == gemm.kept_chunks - 1:
                accumulators.consumer_release(held)
            if cutlass.const_expr(gemm.swapped):
                turn_around(gemm, staged, values, thread)
                # Narrow tiles have less to finish than there are threads.
                if thread < CTA_ROWS // CHUNK * gemm.chunk:
                    turned = cute.make_rmem_tensor(CHUNK, Float32)
                    token, column = thread % gemm.chunk, thread // gemm.chunk * CHUNK
                    for i in cutlass.range_constexpr(CHUNK):
                        turned[i] = staged[token, column + i]
                    row = work.token_tile * gemm.tokens + chunk * gemm.chunk + token
                    first = work.weight_tile * gemm.weights + place * CTA_ROWS + column
                    sent += finish_chunk(gemm, epilogue, tensors, turned, work, row, first, sender, sent)
            else:
                row = work.token_tile * gemm.tokens + place * CTA_ROWS + thread
                column = work.weight_tile * gemm.weights + chunk * CHUNK
                sent += finish_chunk(gemm, epilogue, tensors, values, work, row, column, sender, sent)
        held.advance()
        turn = (turn + 1) % gemm.acc_stages
        work = gemm_work.take(work_ring, items, taken)
        taken.advance()
    if cutlass.const_expr(sender is not None):
        sender.close()


def chunk_of(gemm, number, turn):
    """The chunk to read: the first of two overlapping accumulators is read from its end, where it is shared."""
    if not gemm.overlap:
        return number
    along = gemm.chunks_a_box
    last = gemm.cols // gemm.chunk // along - 1
    backwards = (last - number // along) * along + number % along
    return cutlass.select_(turn == 0, backwards, number)


@cute.jit
def finish_chunk(
    gemm: cutlass.Constexpr,
    epilogue: cutlass.Constexpr,
    tensors: cutlass.Constexpr,
    values,
    work,
    row,
    column,
    sender: cutlass.Constexpr,
    sent,
):
    """Stores 32 weight rows of one token, and the padding that lies beyond the tile when it is the last.

    Returns how many boxes the warp sent.
    """
    slot = epilogue.slot_of(tensors, row, work.expert)
    count = Int32(0)
    if cutlass.const_expr(sender is None):
        epilogue.finish(tensors, values, slot, row, work.expert, column, None)
    else:
        count = send_chunk(gemm, epilogue, tensors, values, slot, work, row, column, sender, sent)
    ends = column + CHUNK == gemm.n_tiles * gemm.weights
    if ends:
        epilogue.clear(tensors, row, gemm.n_tiles * gemm.weights)
    if cutlass.const_expr(gemm.tokens % SCALE_ROWS != 0):
        end = (work.token_tile + 1) * gemm.tokens
        unit_end = (end + SCALE_ROWS - 1) // SCALE_ROWS * SCALE_ROWS
        beyond = cutlass.select_(work.last != 0, row + gemm.tokens, unit_end)
        while beyond < unit_end:
            epilogue.clear_scales(tensors, beyond, column, ends)
            beyond += gemm.tokens
    return count


@cute.jit
def send_chunk(
    gemm: cutlass.Constexpr,
    epilogue: cutlass.Constexpr,
    tensors: cutlass.Constexpr,
    values,
    slot,
    work,
    row,
    column,
    sender: cutlass.Constexpr,
    sent,
):
    """The same by way of the warp's boxes; a box is sent when the last of its chunks is in it."""
    whole = cutlass.Boolean(True)
    if cutlass.const_expr(not epilogue.store.pads):
        whole = cute.arch.vote_all_sync(slot >= 0)
    chunk = column // CHUNK % gemm.boxes.chunks
    if whole and chunk == 0:
        sender.open()
    epilogue.finish(tensors, values, slot, row, work.expert, column, Box(sender, sent, whole))
    count = Int32(0)
    first = epilogue.out_column(column - chunk * CHUNK)
    if whole and chunk == gemm.boxes.chunks - 1 and first < epilogue.columns:
        sender.send(sent, row, first * epilogue.store.WIDTH)
        count = Int32(1)
    return count


@cute.jit
def turn_around(gemm: cutlass.Constexpr, staged, values, thread):
    """Lays the accumulators of a weight row out by token, between two barriers."""
    epilogue_barrier().arrive_and_wait()
    for token in cutlass.range_constexpr(gemm.chunk):
        staged[token, thread] = values[token]
    epilogue_barrier().arrive_and_wait()
