"""The epilogue warps of a grouped gemm: 32 accumulators of one token at a time.

Plain: a thread owns a token row and walks along its columns. Swapped: a thread reads one weight row, and shared memory
turns up to 32 tokens around, after which a thread holds 32 weight rows of one of them.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import tcgen05
from sm_100a.device import gemm_work
from sm_100a.device.epilogue import Box
from sm_100a.device.gemm_boxes import make_sender
from sm_100a.device.gemm_layout import CHUNK, CTA_ROWS, SCALE_ROWS, accumulator_tensor
from sm_100a.device.gemm_roles import WARP, epilogue_barrier


@dataclass(frozen=True, kw_only=True)
class Finisher:
    """What an epilogue thread works with: the kernel's constants and tensors, how it reads accumulators (``copy``,
    ``source`` by chunk and accumulator, ``shape`` of its registers), where its warp's results go (``sender``, or None),
    and where swapped accumulators are turned around (``staged``)."""

    gemm: Any
    epilogue: Any
    tensors: Any
    accumulators: Any
    copy: Any
    source: Any
    shape: Any
    sender: Any
    staged: Any
    thread: Any
    place: Any


def make_finisher(gemm, epilogue, tensors, accumulators, mma, base, staged, box_storage, place):
    """A thread's finisher; ``base`` is where tensor memory begins."""
    thread, _, _ = cute.arch.thread_idx()
    accumulator = accumulator_tensor(gemm, mma, base)
    chunks = cute.flat_divide(accumulator[((None, None), 0, 0, None)], (CTA_ROWS, gemm.chunk))
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(gemm.chunk)), Float32)
    copy = tcgen05.make_tmem_copy(atom, chunks[(None, None, 0, 0, 0)])
    part = copy.get_slice(thread)
    return Finisher(
        gemm=gemm,
        epilogue=epilogue,
        tensors=tensors,
        accumulators=accumulators,
        copy=copy,
        source=part.partition_S(chunks),
        shape=part.partition_D(cute.make_identity_tensor((CTA_ROWS, gemm.chunk))).shape,
        sender=make_sender(gemm.boxes, *tensors.boxes, box_storage, thread // WARP) if gemm.boxes else None,
        staged=staged,
        thread=thread,
        place=place,
    )


@cute.jit
def finish_tiles(finisher: cutlass.Constexpr, work_ring, items):
    """Finishes tile after tile."""
    gemm = finisher.gemm
    sent = Int32(0)
    held = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, gemm.acc_ring)
    turn = Int32(0)
    taken = gemm_work.make_state()
    work = gemm_work.take(work_ring, items, taken)
    taken.advance()
    while work.expert >= 0:
        if cutlass.const_expr(gemm.swapped):
            sent = finish_swapped(finisher, held, turn, work, sent)
        else:
            sent = finish_plain(finisher, held, turn, work, sent)
        held.advance()
        turn = (turn + 1) % gemm.acc_stages
        work = gemm_work.take(work_ring, items, taken)
        taken.advance()
    if cutlass.const_expr(finisher.sender is not None):
        finisher.sender.close()


@cute.jit
def finish_plain(finisher: cutlass.Constexpr, held, turn, work, sent):
    """A thread owns a token row, whose factors are there before its accumulators, and walks along its columns.

    Returns how many boxes the warp has sent, ``sent`` included.
    """
    gemm, epilogue = finisher.gemm, finisher.epilogue
    row = work.token_tile * gemm.tokens + finisher.place * CTA_ROWS + finisher.thread
    known = epilogue.row(finisher.tensors, row, work.expert)
    finisher.accumulators.consumer_wait(held)
    for number in cutlass.range(gemm.cols // gemm.chunk, unroll=1):
        chunk = chunk_of(gemm, number, turn)
        values = read_chunk(finisher, held, turn, number, chunk)
        column = work.weight_tile * gemm.weights + chunk * CHUNK
        sent += finish_chunk(finisher, values, known, work, row, column, sent)
    return sent


@cute.jit
def finish_swapped(finisher: cutlass.Constexpr, held, turn, work, sent):
    """A thread reads one weight row of some tokens, and finishes 32 weight rows of one; returns as above."""
    gemm, thread = finisher.gemm, finisher.thread
    token, first = thread % gemm.chunk, thread // gemm.chunk * CHUNK
    column = work.weight_tile * gemm.weights + finisher.place * CTA_ROWS + first
    finisher.accumulators.consumer_wait(held)
    for number in cutlass.range(gemm.cols // gemm.chunk, unroll=1):
        chunk = chunk_of(gemm, number, turn)
        row = work.token_tile * gemm.tokens + chunk * gemm.chunk + token
        known = finisher.epilogue.row(finisher.tensors, row, work.expert)
        values = read_chunk(finisher, held, turn, number, chunk)
        turn_around(gemm, finisher.staged, values, thread)
        # Narrow tiles have less to finish than there are threads.
        if first < CTA_ROWS:
            turned = cute.make_rmem_tensor(CHUNK, Float32)
            for i in cutlass.range_constexpr(CHUNK):
                turned[i] = finisher.staged[token, first + i]
            sent += finish_chunk(finisher, turned, known, work, row, column, sent)
    return sent


@cute.jit
def read_chunk(finisher: cutlass.Constexpr, held, turn, number, chunk):
    """A chunk in registers; the accumulator is handed back when all that the next tile overwrites has been read."""
    values = cute.make_rmem_tensor(finisher.shape, Float32)
    cute.copy(finisher.copy, finisher.source[(None, None, None, 0, chunk, turn)], values)
    cute.arch.fence_view_async_tmem_load()
    if number == finisher.gemm.kept_chunks - 1:
        finisher.accumulators.consumer_release(held)
    return values


def chunk_of(gemm, number, turn):
    """The chunk to read: the first of two overlapping accumulators is read from its end, where it is shared."""
    if not gemm.overlap:
        return number
    along = gemm.chunks_a_box
    last = gemm.cols // gemm.chunk // along - 1
    backwards = (last - number // along) * along + number % along
    return cutlass.select_(turn == 0, backwards, number)


@cute.jit
def finish_chunk(finisher: cutlass.Constexpr, values, known, work, row, column, sent):
    """Stores 32 weight rows of one token, and the padding that lies beyond the tile when it is the last.

    Returns how many boxes the warp sent for it.
    """
    gemm, epilogue, tensors = finisher.gemm, finisher.epilogue, finisher.tensors
    count = Int32(0)
    if cutlass.const_expr(finisher.sender is None):
        epilogue.finish(tensors, values, known, row, work.expert, column, None)
    else:
        count = send_chunk(finisher, values, known, work, row, column, sent)
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
def send_chunk(finisher: cutlass.Constexpr, values, known, work, row, column, sent):
    """The same by way of the warp's boxes; a box is sent when the last of its chunks is in it."""
    epilogue, sender, chunks = finisher.epilogue, finisher.sender, finisher.gemm.boxes.chunks
    whole = cutlass.Boolean(True)
    if cutlass.const_expr(not epilogue.store.pads):
        whole = cute.arch.vote_all_sync(known.slot >= 0)
    chunk = column // CHUNK % chunks
    if whole and chunk == 0:
        sender.open()
    epilogue.finish(finisher.tensors, values, known, row, work.expert, column, Box(sender, sent, whole))
    count = Int32(0)
    first = epilogue.out_column(column - chunk * CHUNK)
    if whole and chunk == chunks - 1 and first < epilogue.columns:
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
