"""Work items of a persistent gemm: one warp finds tiles, the others take them from a ring in shared memory.

``tile_expert`` names each token tile's expert and ``totals[0]`` counts token tiles; both lie in device memory. The
scheduler warp runs a few items ahead, so that nobody else waits for these loads. An item is (expert, token tile, weight
tile, whether its token tile is the last); a negative expert ends the work.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, pipeline

DEPTH = 4
"""Items of the ring."""
WORDS = 4
"""32-bit words of an item."""


class Work(NamedTuple):
    """One item, and what its takers know of the ring."""

    expert: Int32
    token_tile: Int32
    weight_tile: Int32
    last: Int32


def make_ring(storage, takers):
    """The ring's barriers; ``takers`` warps take each item."""

    def group(threads):
        return pipeline.CooperativeGroup(pipeline.Agent.Thread, threads)

    return pipeline.PipelineAsync.create(
        barrier_storage=storage,
        num_stages=DEPTH,
        producer_group=group(1),
        consumer_group=group(takers),
        defer_sync=True,
    )


def make_state(giver=False):
    """A warp's place in the ring."""
    user = pipeline.PipelineUserType.Producer if giver else pipeline.PipelineUserType.Consumer
    return pipeline.make_pipeline_state(user, DEPTH)


def _item(items, index):
    return cute.make_tensor(items + cute.assume(index * WORDS, divby=WORDS), cute.make_layout(WORDS))


def take(ring, items, state):
    """Waits for the next item and hands its place back; the caller advances ``state``."""
    ring.consumer_wait(state)
    words = _item(items, state.index).load()
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        ring.consumer_release(state)
    return Work(*(Int32(words[i]) for i in range(WORDS)))


@cute.jit
def schedule_tiles(gemm: cutlass.Constexpr, ring, items, tile_expert, totals, group, groups):
    """The scheduler warp: each group of CTAs takes every ``groups``-th tile, weight tiles of a token tile first."""
    state = make_state(giver=True)
    token_tiles = totals[0]
    tile = Int32(group)
    expert = Int32(0)
    while expert >= 0:
        token_tile = tile // gemm.n_tiles
        expert = Int32(-1)
        if token_tile < token_tiles:
            expert = tile_expert[token_tile]
        ring.producer_acquire(state)
        with cute.arch.elect_one():
            item = cute.make_rmem_tensor(WORDS, Int32)
            item[0] = expert
            item[1] = token_tile
            item[2] = tile % gemm.n_tiles
            item[3] = Int32(token_tile == token_tiles - 1)
            _item(items, state.index).store(item.load())
            ring.producer_commit(state)
        state.advance()
        tile += groups
