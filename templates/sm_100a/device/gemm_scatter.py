"""The scale warp of narrow swapped gemms: scales of 8, 16 or 32 tokens, one token a row of a unit.

A tile of few tokens starts anywhere within a unit of 128 rows of scales. MMAs read B's scales from lane 0 of an even
column of tensor memory on, so units copied as a whole would leave them at the wrong place. This warp copies the four
scales of each token and MMA on their own, to where the first tokens of a unit lie; the rest of the unit stays zero.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint8, pipeline
from sm_100a.device import gemm_work
from sm_100a.device.gemm_layout import MMA_K
from sm_100a.device.gemm_roles import WARP
from sm_100a.device.scale_layouts import Swizzle128x4

UNIT_BYTES = 512
"""Scales of 128 rows for one MMA."""
ROW_BYTES = 16
"""From one of the first 32 rows of a unit to the next."""
WORD = 4
"""Scales of one row for one MMA: what a copy brings."""


def make_ring(gemm, storage, cluster):
    """Barriers of the stages' scales: the scale warp fills, the MMA warp hands back."""
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    return pipeline.PipelineAsyncUmma.create(
        barrier_storage=storage,
        num_stages=gemm.stages,
        producer_group=one,
        consumer_group=one,
        cta_layout_vmnk=cluster,
        defer_sync=True,
    )


def clear(shared, size):
    """Zeros ``size`` bytes of shared memory, a multiple of 512."""
    zeros = cute.make_rmem_tensor(WORD, Int32)
    zeros.fill(0)
    words = cute.recast_ptr(shared, dtype=Int32)
    for first in range(0, size, ROW_BYTES * WARP):
        offset = first // WORD + cute.arch.lane_idx() * WORD
        cute.make_tensor(words + cute.assume(offset, divby=WORD), cute.make_layout(WORD)).store(zeros.load())


def copy_word(target, scales, offset, inside):
    """Starts a copy of four scales, or of four zeros."""
    cute.arch.inline_ptx(
        "cp.async.ca.shared.global [{$r0}], [{$r1}], 4, {$r2};",
        read_only_args=[
            target.toint(),
            (scales.iterator + offset).toint(),
            Int32(cutlass.select_(inside, Int32(WORD), Int32(0))),
        ],
    )


@cute.jit
def copy_stage(gemm: cutlass.Constexpr, scales, target, row, k):
    """Starts the copies of one stage: the warp's lanes share tokens and MMAs out."""
    steps = gemm.depth // MMA_K
    columns = -(-gemm.k // MMA_K) * WORD
    lane = cute.arch.lane_idx()
    for first in cutlass.range_constexpr(0, gemm.tokens * steps, WARP):
        index = first + lane
        if cutlass.const_expr(gemm.tokens * steps % WARP == 0) or index < gemm.tokens * steps:
            token, step = index % gemm.tokens, index // gemm.tokens
            column = (k * steps + step) * WORD
            inside = column < columns
            offset = Swizzle128x4.offset(row + token, cutlass.select_(inside, column, Int32(0)), columns)
            copy_word(target + (step * UNIT_BYTES + token * ROW_BYTES), scales, offset, inside)
    cute.arch.cp_async_commit_group()


def publish(ring, state):
    """Says that a stage's scales are there; copies must have been waited for."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        ring.producer_commit(state)


@cute.jit
def scatter_scales(gemm: cutlass.Constexpr, ring, scales, shared, work_ring, items):
    """Fills the stages' scales of B, as many stages ahead as there are."""
    stage_bytes = UNIT_BYTES * (gemm.depth // MMA_K)
    target = cute.recast_ptr(shared, dtype=Uint8)
    clear(target, gemm.stages * stage_bytes)
    lag = gemm.stages - 1
    filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, gemm.stages)
    publishing = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, gemm.stages)
    copied = Int32(0)
    taken = gemm_work.make_state()
    work = gemm_work.take(work_ring, items, taken)
    taken.advance()
    while work.expert >= 0:
        for k in cutlass.range(gemm.k_tiles, unroll=1):
            ring.producer_acquire(filling)
            copy_stage(gemm, scales, target + filling.index * stage_bytes, work.token_tile * gemm.tokens, k)
            filling.advance()
            if copied >= lag:
                cute.arch.cp_async_wait_group(lag)
                publish(ring, publishing)
                publishing.advance()
            copied += 1
        work = gemm_work.take(work_ring, items, taken)
        taken.advance()
    cute.arch.cp_async_wait_group(0)
    for _ in cutlass.range(cutlass.min(copied, lag), unroll=1):
        publish(ring, publishing)
        publishing.advance()
    ring.producer_tail(filling)
