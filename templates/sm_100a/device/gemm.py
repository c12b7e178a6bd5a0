"""The threads of a grouped block-scaled gemm on tcgen05.

Persistent CTAs of six warps: four read accumulators and finish them, one issues MMAs, one issues bulk copies. Tiles are
found on the device: ``tile_expert`` names each token tile's expert, ``totals[0]`` counts them. Codes and scales reach
shared memory by bulk tensor copies, scales go on to tensor memory beside the accumulators.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float8E4M3FN, Float32, Int32, memory, pipeline
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.utils import blockscaled_layout
from sm_100a.device.gemm_layout import (
    BLOCK,
    CHUNK,
    CTA_ROWS,
    SCALE_COLUMN_ROWS,
    SCALE_ROWS,
    STAGED_PITCH,
    cluster_layout,
    make_mma,
    make_storage,
    make_unit_mma,
    shared_layouts,
    stage_bytes,
    unit_layout,
)

EPILOGUE_WARPS = (0, 1, 2, 3)
MMA_WARP = 4
COPY_WARP = 5
WARP = 32
THREADS = 6 * WARP
TMEM_BARRIER = 1
EPILOGUE_BARRIER = 2


def epilogue_barrier():
    """Joins the epilogue warps of a CTA."""
    return pipeline.NamedBarrier(barrier_id=EPILOGUE_BARRIER, num_threads=WARP * len(EPILOGUE_WARPS))


def scale_copy(gemm, shared, columns):
    """The copy of one operand's scales from shared to tensor memory: (copy, sources by stage, destination)."""
    source, destination = cute.filter_zeros(shared), cute.filter_zeros(columns)
    atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(gemm.cta_group), Float8E4M3FN)
    copy = tcgen05.make_s2t_copy(atom, destination)
    part = copy.get_slice(0)
    return copy, tcgen05.get_s2t_smem_desc_tensor(copy, part.partition_S(source)), part.partition_D(destination)


def copy_tile(part, tile, k, layer, stage, barrier):
    """Starts one bulk copy into a stage."""
    atom, source, destination = part
    cute.copy(atom, source[(None, tile, k, layer)], destination[(None, stage)], tma_bar_ptr=barrier)


def operand_tiles(gemm, work, expert):
    """(tile of A, tile of B, layer of A, layer of B): token tiles lie in one layer, weight tiles in their expert's."""
    token, weight = work // gemm.n_tiles, work % gemm.n_tiles
    return (weight, token, expert, 0) if gemm.swapped else (token, weight, 0, expert)


@cute.jit
def load_tiles(
    gemm: cutlass.Constexpr,
    ring,
    copies: cutlass.Constexpr,
    shared: cutlass.Constexpr,
    tile_expert,
    totals,
    place,
    group,
    groups,
):
    """The copy warp: fills a stage with both operands and their scales, tile after tile."""
    parts = []
    for number in cutlass.range_constexpr(4):
        atom, tensor = copies[2 * number], copies[2 * number + 1]
        extents = (gemm.rows, gemm.cols, gemm.rows, SCALE_ROWS)
        tiles = cute.local_tile(tensor, (extents[number], gemm.depth), (None, None, None))
        part = make_unit_mma().get_slice(0) if number == 3 else make_mma(gemm).get_slice(place)
        partitioned = part.partition_B(tiles) if number % 2 == 1 else part.partition_A(tiles)
        destination, source = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(shared[number], 0, 3), cute.group_modes(partitioned, 0, 3)
        )
        if cutlass.const_expr(number >= 2):
            destination, source = cute.filter_zeros(destination), cute.filter_zeros(source)
        parts.append((atom, source, destination))
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, gemm.stages)
    work = Int32(group)
    count = totals[0] * gemm.n_tiles
    while work < count:
        a, b, layer_a, layer_b = operand_tiles(gemm, work, tile_expert[work // gemm.n_tiles])
        for k in cutlass.range(gemm.k_tiles, unroll=1):
            ring.producer_acquire(state)
            barrier = ring.producer_get_barrier(state)
            stage = state.index
            copy_tile(parts[0], a, k, layer_a, stage, barrier)
            copy_tile(parts[1], b, k, layer_b, stage, barrier)
            copy_tile(parts[2], a, k, layer_a, stage, barrier)
            for unit in cutlass.range_constexpr(gemm.units):
                first = b * gemm.cols // SCALE_ROWS
                copy_tile(parts[3], first + unit, k, layer_b, stage * gemm.units + unit, barrier)
            state.advance()
        work += groups
    ring.producer_tail(state)


@cute.jit
def multiply_tiles(
    gemm: cutlass.Constexpr,
    ring,
    accumulators,
    mma,
    shared: cutlass.Constexpr,
    layouts: cutlass.Constexpr,
    base,
    totals,
    place,
    group,
    groups,
):
    """The MMA warp: scales to tensor memory, then one MMA for each 64 elements of depth."""
    a, b = mma.make_fragment_A(shared[0]), mma.make_fragment_B(shared[1])
    accumulator = accumulator_tensor(gemm, mma, base)
    first_scale = gemm.cols * gemm.acc_stages
    one_stage = (None, None, None, 0)
    scales_a = cute.make_tensor(
        cute.recast_ptr(base + first_scale, dtype=Float8E4M3FN),
        blockscaled_layout.make_tmem_layout_sfa(mma, gemm.tiler, BLOCK, cute.slice_(layouts[2], one_stage)),
    )
    layout_b = blockscaled_layout.make_tmem_layout_sfb(mma, gemm.tiler, BLOCK, cute.slice_(layouts[3], one_stage))
    column_b = base + first_scale + gemm.scale_columns[0]
    scales_b = cute.make_tensor(cute.recast_ptr(column_b, dtype=Float8E4M3FN), layout_b)
    copy_a, from_a, to_a = scale_copy(gemm, shared[2], scales_a)
    copy_b, from_b, to_b = scale_copy(gemm, shared[3], scales_b)
    filled = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, gemm.stages)
    target = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, gemm.acc_stages)
    work = Int32(group)
    count = totals[0] * gemm.n_tiles
    leads = place == 0
    while work < count:
        tile = accumulator[(None, None, None, target.index)]
        # A tile that starts in the middle of a unit of scales skips the columns of the 64 rows before it.
        _, b_tile, _, _ = operand_tiles(gemm, work, 0)
        skipped = b_tile * gemm.cols % SCALE_ROWS // SCALE_COLUMN_ROWS
        used_b = cute.make_tensor(cute.recast_ptr(column_b + skipped, dtype=Float8E4M3FN), layout_b)
        if leads:
            accumulators.producer_acquire(target)
        for k in cutlass.range(gemm.k_tiles, unroll=1):
            if leads:
                ring.consumer_wait(filled)
                stage = (None, None, None, None, filled.index)
                cute.copy(copy_a, from_a[stage], to_a)
                cute.copy(copy_b, from_b[stage], to_b)
                mma.set(tcgen05.Field.ACCUMULATE, k != 0)
                here = (None, None, None, filled.index)
                cute.gemm(mma, tile, [a[here], scales_a], [b[here], used_b], tile)
                ring.consumer_release(filled)
            filled.advance()
        if leads:
            accumulators.producer_commit(target)
        target.advance()
        work += groups
    accumulators.producer_tail(target)


def accumulator_tensor(gemm, mma, base):
    """Accumulators in tensor memory: (MMA, 1, 1, stage)."""
    shape = cute.append(mma.partition_shape_C((gemm.rows, gemm.cols)), gemm.acc_stages)
    return cute.make_tensor(base, mma.make_fragment_C(shape).layout)


@cute.jit
def finish_tiles(
    gemm: cutlass.Constexpr,
    epilogue: cutlass.Constexpr,
    tensors: cutlass.Constexpr,
    accumulators,
    mma,
    staged,
    base,
    tile_expert,
    totals,
    place,
    group,
    groups,
):
    """The epilogue warps: 32 accumulators of one token at a time.

    Plain: a thread owns a token row and walks along its columns. Swapped: a thread reads one weight row, and shared
    memory turns 32 tokens around, after which a warp holds 32 weight rows of 32 tokens.
    """
    thread, _, _ = cute.arch.thread_idx()
    accumulator = accumulator_tensor(gemm, mma, base)
    chunks = cute.flat_divide(accumulator[((None, None), 0, 0, None)], (CTA_ROWS, CHUNK))
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32)
    copy = tcgen05.make_tmem_copy(atom, chunks[(None, None, 0, 0, 0)])
    part = copy.get_slice(thread)
    source = part.partition_S(chunks)
    shape = part.partition_D(cute.make_identity_tensor((CTA_ROWS, CHUNK))).shape
    held = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, gemm.acc_stages)
    work = Int32(group)
    count = totals[0] * gemm.n_tiles
    while work < count:
        token_tile, weight_tile = work // gemm.n_tiles, work % gemm.n_tiles
        expert = tile_expert[token_tile]
        accumulators.consumer_wait(held)
        for chunk in cutlass.range(gemm.cols // CHUNK, unroll=1):
            values = cute.make_rmem_tensor(shape, Float32)
            cute.copy(copy, source[(None, None, None, 0, chunk, held.index)], values)
            cute.arch.fence_view_async_tmem_load()
            if cutlass.const_expr(gemm.swapped):
                turn_around(staged, values, thread)
                row = token_tile * gemm.tokens + chunk * CHUNK + thread % WARP
                column = weight_tile * gemm.weights + place * CTA_ROWS + thread // WARP * CHUNK
            else:
                row = token_tile * gemm.tokens + place * CTA_ROWS + thread
                column = weight_tile * gemm.weights + chunk * CHUNK
            epilogue.finish(tensors, values, row, expert, column)
            if column + CHUNK == gemm.n_tiles * gemm.weights:
                epilogue.clear(tensors, row, gemm.n_tiles * gemm.weights)
            if cutlass.const_expr(gemm.tokens % SCALE_ROWS != 0):
                end = (token_tile + 1) * gemm.tokens
                beyond = row + gemm.tokens
                if token_tile == totals[0] - 1 and beyond < (end + SCALE_ROWS - 1) // SCALE_ROWS * SCALE_ROWS:
                    epilogue.clear_scales(tensors, beyond, column, column + CHUNK == gemm.n_tiles * gemm.weights)
        accumulators.consumer_release(held)
        held.advance()
        work += groups


@cute.jit
def turn_around(staged, values, thread):
    """Gives 32 accumulators of a weight row to the warps by token: afterwards a thread holds 32 weight rows of one."""
    epilogue_barrier().arrive_and_wait()
    for token in cutlass.range_constexpr(CHUNK):
        staged[token, thread] = values[token]
    epilogue_barrier().arrive_and_wait()
    for i in cutlass.range_constexpr(CHUNK):
        values[i] = staged[thread % WARP, thread // WARP * CHUNK + i]


@cute.jit
def gemm_thread(
    gemm: cutlass.Constexpr,
    epilogue: cutlass.Constexpr,
    copies: cutlass.Constexpr,
    tensors: cutlass.Constexpr,
    tile_expert,
    totals,
):
    """One thread of the kernel: sets barriers up, then does its warp's part."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    place, group, groups = cta % gemm.group, cta // gemm.group, ctas // gemm.group
    mma = make_mma(gemm)
    layouts = shared_layouts(gemm, mma)
    storage = memory.SmemAllocator().allocate(make_storage(gemm, layouts))
    if warp == COPY_WARP:
        for number in cutlass.range_constexpr(4):
            cpasync.prefetch_descriptor(copies[2 * number])
    cluster = cluster_layout(gemm, mma)
    thread_group = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    ring = pipeline.PipelineTmaUmma.create(
        barrier_storage=storage.filled.data_ptr(),
        num_stages=gemm.stages,
        producer_group=thread_group,
        consumer_group=thread_group,
        tx_count=stage_bytes(layouts) * gemm.group,
        cta_layout_vmnk=cluster,
        defer_sync=True,
    )
    accumulators = pipeline.PipelineUmmaAsync.create(
        barrier_storage=storage.accumulated.data_ptr(),
        num_stages=gemm.acc_stages,
        producer_group=thread_group,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP * len(EPILOGUE_WARPS) * gemm.group),
        cta_layout_vmnk=cluster,
        defer_sync=True,
    )
    tmem = memory.TmemAllocator(
        storage.tmem_address.ptr,
        barrier_for_retrieve=pipeline.NamedBarrier(
            barrier_id=TMEM_BARRIER, num_threads=WARP * (len(EPILOGUE_WARPS) + 1)
        ),
        allocator_warp_id=EPILOGUE_WARPS[0],
        is_two_cta=gemm.group == 2,
        two_cta_tmem_dealloc_mbar_ptr=storage.tmem_released.ptr,
    )
    pipeline.pipeline_init_arrive(cluster_shape_mn=(gemm.group, 1), is_relaxed=True)
    shared = (
        storage.a.get_tensor(layouts[0].outer, swizzle=layouts[0].inner),
        storage.b.get_tensor(layouts[1].outer, swizzle=layouts[1].inner),
        storage.scales_a.get_tensor(layouts[2]),
        storage.scales_b.get_tensor(layouts[3]),
    )
    units = storage.scales_b.get_tensor(unit_layout(gemm))
    pipeline.pipeline_init_wait(cluster_shape_mn=(gemm.group, 1))
    if warp == COPY_WARP:
        load_tiles(gemm, ring, copies, (*shared[:3], units), tile_expert, totals, place, group, groups)
    if warp == MMA_WARP:
        tmem.wait_for_alloc()
        base = tmem.retrieve_ptr(Float32)
        multiply_tiles(gemm, ring, accumulators, mma, shared, layouts, base, totals, place, group, groups)
    if warp < MMA_WARP:
        tmem.allocate(gemm.memory_columns)
        tmem.wait_for_alloc()
        base = tmem.retrieve_ptr(Float32)
        staged = storage.staged.get_tensor(
            cute.make_layout((gemm.staged_values // STAGED_PITCH, STAGED_PITCH), stride=(STAGED_PITCH, 1))
        )
        finish_tiles(
            gemm, epilogue, tensors, accumulators, mma, staged, base, tile_expert, totals, place, group, groups
        )
        tmem.relinquish_alloc_permit()
        epilogue_barrier().arrive_and_wait()
        tmem.free(base)


@cute.jit
def grid_of(gemm: cutlass.Constexpr, tile_expert):
    """Persistent CTAs in whole groups, at most one group a tile."""
    tiles = Int32(tile_expert.shape[0]) * gemm.n_tiles
    return (cutlass.min(gemm.ctas // gemm.group, tiles) * gemm.group, 1, 1)
