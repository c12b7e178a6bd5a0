"""Grouped block-scaled gemm on tcgen05: rows in expert order times each expert's weights, D = A · Bᵀ.

Persistent CTAs of six warps: four read accumulators and finish them, one issues MMAs, one issues bulk copies. Tiles are
found on the device: ``tile_expert`` names each row tile's expert, ``totals[0]`` counts them. Codes and scales reach
shared memory by bulk tensor copies, scales go on to tensor memory beside the accumulators.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float4E2M1FN, Float8E4M3FN, Float32, Int16, Int32, Int64, memory, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blackwell_helpers, blockscaled_layout

BLOCK = 16
MMA_K = 64
EPILOGUE_WARPS = (0, 1, 2, 3)
MMA_WARP = 4
COPY_WARP = 5
WARP = 32
THREADS = 6 * WARP
CHUNK = 32
"""Accumulator columns that a thread holds at a time: gate and up of one block of 16 activated values."""
TMEM_BARRIER = 1
ALIGNMENT = 1024
SCALE_COLUMN_ROWS = 32
"""Rows whose scales share a column of tensor memory."""
SCALE_ROWS = 128
"""Rows of scales that are copied at a time."""


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """What is known of a gemm when it is compiled.

    ``n`` weight rows and ``k`` elements of one expert; ``pitch`` bytes a row of codes of either operand; a tile is
    ``rows`` x ``cols``, ``depth`` elements deep a stage; ``ctas`` run at most.
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

    @property
    def n_tiles(self):
        """Tiles of one expert's weights."""
        return -(-self.n // self.cols)

    @property
    def k_tiles(self):
        """Stages of one tile."""
        return -(-self.k // self.depth)

    @property
    def tiler(self):
        """(M, N, K) of one stage."""
        return self.rows, self.cols, self.depth

    @property
    def units(self):
        """Units of 128 rows that hold the scales of one tile of B."""
        return -(-self.cols // SCALE_ROWS)

    @property
    def scale_columns(self):
        """Tensor-memory columns of (A's, B's) scales."""
        steps = self.depth // MMA_K
        return self.rows // 32 * steps, self.units * 4 * steps

    @property
    def memory_columns(self):
        """Columns to allocate: a power of two."""
        needed = self.cols * self.acc_stages + sum(self.scale_columns)
        return max(32, 1 << (needed - 1).bit_length())


def make_mma(gemm, cols=0):
    """The tensor core's operation, both operands from shared memory; ``cols`` columns wide where that is given."""
    return blackwell_helpers.make_blockscaled_trivial_tiled_mma(
        Float4E2M1FN,
        Float4E2M1FN,
        OperandMajorMode.K,
        OperandMajorMode.K,
        Float8E4M3FN,
        BLOCK,
        tcgen05.CtaGroup.ONE,
        (gemm.rows, cols or gemm.cols),
    )


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
    tiler = (gemm.rows, SCALE_ROWS, gemm.depth)
    return blockscaled_layout.make_smem_layout_sfb(make_mma(gemm, SCALE_ROWS), tiler, BLOCK, gemm.stages * gemm.units)


def code_tensor(codes, rows, k, pitch, experts):
    """Packed codes as E2M1 elements (row, k, expert), ``pitch`` bytes a row."""
    layout = cute.make_layout((rows, k, experts), stride=(2 * pitch, 1, Int64(rows) * (2 * pitch)))
    return cute.make_tensor(cute.recast_ptr(codes.iterator, dtype=Float4E2M1FN), layout)


def scale_tensor(scales, rows, k, experts):
    """Scales in 128x4 tiles as E4M3 elements (row, k, expert); ``rows`` and ``k`` count whole tiles."""
    layout = blockscaled_layout.tile_atom_to_shape_SF((rows, k, experts), BLOCK)
    return cute.make_tensor(cute.recast_ptr(scales.iterator, dtype=Float8E4M3FN), layout)


def make_copies(gemm, codes, scales, weight_codes, weight_scales):
    """Bulk copies as a flat tuple: (atom, tensor) of A, B, A's scales, one unit of B's scales."""
    mma = make_mma(gemm)
    layouts = (*shared_layouts(gemm, mma)[:3], unit_layout(gemm))
    padded_k = -(-gemm.k // MMA_K) * MMA_K
    padded_n = -(-gemm.n // SCALE_ROWS) * SCALE_ROWS
    sources = (
        code_tensor(codes, codes.shape[0], gemm.k, gemm.pitch, 1),
        code_tensor(weight_codes, gemm.n, gemm.k, gemm.pitch, gemm.experts),
        scale_tensor(scales, scales.shape[0], padded_k, 1),
        scale_tensor(weight_scales, padded_n, padded_k, gemm.experts),
    )
    operation = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    made = []
    for number in range(4):
        make = cute.nvgpu.make_tiled_tma_atom_B if number % 2 else cute.nvgpu.make_tiled_tma_atom_A
        unit = number == 3
        made += make(
            operation,
            sources[number],
            cute.slice_(layouts[number], (None, None, None, 0)),
            (gemm.rows, SCALE_ROWS, gemm.depth) if unit else gemm.tiler,
            make_mma(gemm, SCALE_ROWS) if unit else mma,
            (1, 1, 1, 1),
            internal_type=Int16 if number >= 2 else None,
        )
    return tuple(made)


def stage_bytes(layouts):
    """Bytes that one stage's copies bring."""
    kinds = (Float4E2M1FN, Float4E2M1FN, Float8E4M3FN, Float8E4M3FN)
    return sum(
        cute.size_in_bytes(kind, cute.slice_(layout, (None, None, None, 0)))
        for kind, layout in zip(kinds, layouts, strict=True)
    )


def make_storage(gemm, layouts):
    """The kernel's shared memory as a struct."""
    layout_a, layout_b, layout_scales_a, layout_scales_b = layouts

    def tile(kind, layout):
        return cute.struct.Align[cute.struct.MemRange[kind, cute.cosize(layout)], ALIGNMENT]

    @cute.struct
    class Storage:
        filled: cute.struct.MemRange[Int64, 2 * gemm.stages]
        accumulated: cute.struct.MemRange[Int64, 2 * gemm.acc_stages]
        tmem_released: Int64
        tmem_address: Int32
        a: tile(Float4E2M1FN, layout_a.outer)
        b: tile(Float4E2M1FN, layout_b.outer)
        scales_a: tile(Float8E4M3FN, layout_scales_a)
        scales_b: tile(Float8E4M3FN, layout_scales_b)

    return Storage


def scale_copy(shared, columns):
    """The copy of one operand's scales from shared to tensor memory: (copy, sources by stage, destination)."""
    source, destination = cute.filter_zeros(shared), cute.filter_zeros(columns)
    atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), Float8E4M3FN)
    copy = tcgen05.make_s2t_copy(atom, destination)
    part = copy.get_slice(0)
    return copy, tcgen05.get_s2t_smem_desc_tensor(copy, part.partition_S(source)), part.partition_D(destination)


def copy_tile(part, tile, k, layer, stage, barrier):
    """Starts one bulk copy into a stage."""
    atom, source, destination = part
    cute.copy(atom, source[(None, tile, k, layer)], destination[(None, stage)], tma_bar_ptr=barrier)


@cute.jit
def load_tiles(
    gemm: cutlass.Constexpr,
    ring,
    copies: cutlass.Constexpr,
    shared: cutlass.Constexpr,
    tile_expert,
    totals,
    cta,
    ctas,
):
    """The copy warp: fills a stage with both operands and their scales, tile after tile."""
    parts = []
    for number in cutlass.range_constexpr(4):
        atom, tensor = copies[2 * number], copies[2 * number + 1]
        extents = (gemm.rows, gemm.cols, gemm.rows, SCALE_ROWS)
        tiles = cute.local_tile(tensor, (extents[number], gemm.depth), (None, None, None))
        part = make_mma(gemm, SCALE_ROWS if number == 3 else 0).get_slice(0)
        partitioned = part.partition_B(tiles) if number % 2 == 1 else part.partition_A(tiles)
        destination, source = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(shared[number], 0, 3), cute.group_modes(partitioned, 0, 3)
        )
        if cutlass.const_expr(number >= 2):
            destination, source = cute.filter_zeros(destination), cute.filter_zeros(source)
        parts.append((atom, source, destination))
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, gemm.stages)
    work = Int32(cta)
    count = totals[0] * gemm.n_tiles
    while work < count:
        m, n = work // gemm.n_tiles, work % gemm.n_tiles
        expert = tile_expert[m]
        for k in cutlass.range(gemm.k_tiles, unroll=1):
            ring.producer_acquire(state)
            barrier = ring.producer_get_barrier(state)
            stage = state.index
            copy_tile(parts[0], m, k, 0, stage, barrier)
            copy_tile(parts[1], n, k, expert, stage, barrier)
            copy_tile(parts[2], m, k, 0, stage, barrier)
            for unit in cutlass.range_constexpr(gemm.units):
                first = n * gemm.cols // SCALE_ROWS
                copy_tile(parts[3], first + unit, k, expert, stage * gemm.units + unit, barrier)
            state.advance()
        work += ctas
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
    cta,
    ctas,
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
    copy_a, from_a, to_a = scale_copy(shared[2], scales_a)
    copy_b, from_b, to_b = scale_copy(shared[3], scales_b)
    filled = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, gemm.stages)
    target = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, gemm.acc_stages)
    work = Int32(cta)
    count = totals[0] * gemm.n_tiles
    while work < count:
        accumulators.producer_acquire(target)
        tile = accumulator[(None, None, None, target.index)]
        # A tile that starts in the middle of a unit of scales skips the columns of the 64 rows before it.
        skipped = work % gemm.n_tiles * gemm.cols % SCALE_ROWS // SCALE_COLUMN_ROWS
        used_b = cute.make_tensor(cute.recast_ptr(column_b + skipped, dtype=Float8E4M3FN), layout_b)
        for k in cutlass.range(gemm.k_tiles, unroll=1):
            ring.consumer_wait(filled)
            stage = (None, None, None, None, filled.index)
            cute.copy(copy_a, from_a[stage], to_a)
            cute.copy(copy_b, from_b[stage], to_b)
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
            here = (None, None, None, filled.index)
            cute.gemm(mma, tile, [a[here], scales_a], [b[here], used_b], tile)
            ring.consumer_release(filled)
            filled.advance()
        accumulators.producer_commit(target)
        target.advance()
        work += ctas
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
    base,
    tile_expert,
    totals,
    cta,
    ctas,
):
    """The epilogue warps: a thread owns one row of a tile and takes its columns 32 at a time."""
    thread, _, _ = cute.arch.thread_idx()
    accumulator = accumulator_tensor(gemm, mma, base)
    chunks = cute.flat_divide(accumulator[((None, None), 0, 0, None)], (gemm.rows, CHUNK))
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32)
    copy = tcgen05.make_tmem_copy(atom, chunks[(None, None, 0, 0, 0)])
    part = copy.get_slice(thread)
    source = part.partition_S(chunks)
    shape = part.partition_D(cute.make_identity_tensor((gemm.rows, CHUNK))).shape
    held = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, gemm.acc_stages)
    work = Int32(cta)
    count = totals[0] * gemm.n_tiles
    while work < count:
        m, n = work // gemm.n_tiles, work % gemm.n_tiles
        expert = tile_expert[m]
        row = m * gemm.rows + thread
        slot = epilogue.slot_of(tensors, row, expert)
        state = epilogue.begin(tensors, expert, slot)
        accumulators.consumer_wait(held)
        for chunk in cutlass.range(gemm.cols // CHUNK, unroll=1):
            values = cute.make_rmem_tensor(shape, Float32)
            cute.copy(copy, source[(None, None, None, 0, chunk, held.index)], values)
            cute.arch.fence_view_async_tmem_load()
            epilogue.finish(tensors, state, values, row, slot, expert, n * gemm.cols + chunk * CHUNK)
        accumulators.consumer_release(held)
        held.advance()
        if n == gemm.n_tiles - 1:
            epilogue.clear(tensors, row, gemm.n_tiles * gemm.cols)
        work += ctas


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
    mma = make_mma(gemm)
    layouts = shared_layouts(gemm, mma)
    storage = memory.SmemAllocator().allocate(make_storage(gemm, layouts))
    if warp == COPY_WARP:
        for number in cutlass.range_constexpr(4):
            cpasync.prefetch_descriptor(copies[2 * number])
    one = cute.make_layout((1, 1, 1, 1))
    thread_group = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    ring = pipeline.PipelineTmaUmma.create(
        barrier_storage=storage.filled.data_ptr(),
        num_stages=gemm.stages,
        producer_group=thread_group,
        consumer_group=thread_group,
        tx_count=stage_bytes(layouts),
        cta_layout_vmnk=one,
        defer_sync=True,
    )
    accumulators = pipeline.PipelineUmmaAsync.create(
        barrier_storage=storage.accumulated.data_ptr(),
        num_stages=gemm.acc_stages,
        producer_group=thread_group,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP * len(EPILOGUE_WARPS)),
        cta_layout_vmnk=one,
        defer_sync=True,
    )
    tmem = memory.TmemAllocator(
        storage.tmem_address.ptr,
        barrier_for_retrieve=pipeline.NamedBarrier(
            barrier_id=TMEM_BARRIER, num_threads=WARP * (len(EPILOGUE_WARPS) + 1)
        ),
        allocator_warp_id=EPILOGUE_WARPS[0],
        is_two_cta=False,
        two_cta_tmem_dealloc_mbar_ptr=storage.tmem_released.ptr,
    )
    pipeline.pipeline_init_arrive(cluster_shape_mn=(1, 1), is_relaxed=True)
    shared = (
        storage.a.get_tensor(layouts[0].outer, swizzle=layouts[0].inner),
        storage.b.get_tensor(layouts[1].outer, swizzle=layouts[1].inner),
        storage.scales_a.get_tensor(layouts[2]),
        storage.scales_b.get_tensor(layouts[3]),
    )
    units = storage.scales_b.get_tensor(unit_layout(gemm))
    pipeline.pipeline_init_wait(cluster_shape_mn=(1, 1))
    if warp == COPY_WARP:
        load_tiles(gemm, ring, copies, (*shared[:3], units), tile_expert, totals, cta, ctas)
    if warp == MMA_WARP:
        tmem.wait_for_alloc()
        base = tmem.retrieve_ptr(Float32)
        multiply_tiles(gemm, ring, accumulators, mma, shared, layouts, base, totals, cta, ctas)
    if warp < MMA_WARP:
        tmem.allocate(gemm.memory_columns)
        tmem.wait_for_alloc()
        base = tmem.retrieve_ptr(Float32)
        finish_tiles(gemm, epilogue, tensors, accumulators, mma, base, tile_expert, totals, cta, ctas)
        tmem.relinquish_alloc_permit()
        pipeline.NamedBarrier(barrier_id=TMEM_BARRIER + 1, num_threads=WARP * len(EPILOGUE_WARPS)).arrive_and_wait()
        tmem.free(base)


@cute.jit
def grid_of(gemm: cutlass.Constexpr, tile_expert):
    """Persistent CTAs, at most one for each tile; at least one, since a launch of none is an error."""
    return (cutlass.max(1, cutlass.min(gemm.ctas, Int32(tile_expert.shape[0]) * gemm.n_tiles)), 1, 1)
