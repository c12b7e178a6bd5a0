"""A CTA of a grouped block-scaled gemm on tcgen05: sets barriers up, then gives each warp its part.

Persistent CTAs: one warp finds tiles, one issues bulk copies, one issues MMAs, four finish accumulators; narrow tiles
have one that copies scales token by token.
Codes and scales reach shared memory by bulk tensor copies, scales go on to tensor memory beside the accumulators.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, memory, pipeline
from cutlass.cute.nvgpu import cpasync
from sm_100a.device import dependents, gemm_scatter, gemm_work
from sm_100a.device.gemm_finish import finish_tiles, make_finisher
from sm_100a.device.gemm_layout import (
    STAGED_PITCH,
    cluster_layout,
    make_mma,
    make_storage,
    shared_layouts,
    stage_bytes,
    unit_layout,
)
from sm_100a.device.gemm_load import load_tiles
from sm_100a.device.gemm_multiply import multiply_tiles
from sm_100a.device.gemm_roles import (
    COPY_WARP,
    EPILOGUE_WARPS,
    MMA_WARP,
    SCALE_WARP,
    SCHEDULER_WARP,
    WARP,
    epilogue_barrier,
    tensor_memory_barrier,
)


def make_rings(gemm, storage, cluster, layouts):
    """The rings between warps: (stages of operands, their scales in narrow tiles, accumulators, work items)."""
    thread_group = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    operands = pipeline.PipelineTmaUmma.create(
        barrier_storage=storage.filled.data_ptr(),
        num_stages=gemm.stages,
        producer_group=thread_group,
        consumer_group=thread_group,
        tx_count=stage_bytes(gemm, layouts) * gemm.group,
        cta_layout_vmnk=cluster,
        defer_sync=True,
    )
    accumulators = pipeline.PipelineUmmaAsync.create(
        barrier_storage=storage.accumulated.data_ptr(),
        num_stages=gemm.acc_ring,
        producer_group=thread_group,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP * len(EPILOGUE_WARPS) * gemm.group),
        cta_layout_vmnk=cluster,
        defer_sync=True,
    )
    scales = gemm_scatter.make_ring(gemm, storage.scattered.data_ptr(), cluster) if gemm.narrow else None
    # All warps but the scheduler take work.
    return operands, scales, accumulators, gemm_work.make_ring(storage.scheduled.data_ptr(), gemm.warps - 1)


@cute.jit
def gemm_thread(
    gemm: cutlass.Constexpr,
    epilogue: cutlass.Constexpr,
    copies: cutlass.Constexpr,
    tensors: cutlass.Constexpr,
    token_scales: cutlass.Constexpr,
    tile_expert,
    totals,
):
    """One thread of the kernel: sets barriers up, then does its warp's part.

    ``token_scales`` are the scales of a narrow tile's tokens as bytes in memory, else None.
    """
    dependents.release()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    place, group, groups = cta % gemm.group, cta // gemm.group, ctas // gemm.group
    mma = make_mma(gemm)
    layouts = shared_layouts(gemm, mma)
    storage = memory.SmemAllocator().allocate(make_storage(gemm, layouts))
    if warp == COPY_WARP:
        for atom in copies[::2]:
            cpasync.prefetch_descriptor(atom)
    cluster = cluster_layout(gemm, mma)
    ring, scale_ring, accumulators, work_ring = make_rings(gemm, storage, cluster, layouts)
    items = storage.items.data_ptr()
    tmem = memory.TmemAllocator(
        storage.tmem_address.ptr,
        barrier_for_retrieve=tensor_memory_barrier(),
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
    # Before tensor memory is allocated, too: this grid must not take columns that its predecessor still waits for.
    dependents.wait()
    if warp == SCHEDULER_WARP:
        gemm_work.schedule_tiles(gemm, work_ring, items, tile_expert, totals, group, groups)
    if warp == COPY_WARP:
        load_tiles(gemm, ring, copies, (*shared[:3], units), work_ring, items, place)
    if cutlass.const_expr(gemm.narrow):
        scattered = storage.scales_b.data_ptr()
        if warp == SCALE_WARP:
            gemm_scatter.scatter_scales(gemm, scale_ring, token_scales, scattered, work_ring, items)
    if warp == MMA_WARP:
        tmem.wait_for_alloc()
        base = tmem.retrieve_ptr(Float32)
        multiply_tiles(gemm, ring, scale_ring, accumulators, mma, shared, layouts, base, work_ring, items, place)
    if warp < MMA_WARP:
        tmem.allocate(gemm.memory_columns)
        tmem.relinquish_alloc_permit()
        tmem.wait_for_alloc()
        base = tmem.retrieve_ptr(Float32)
        staged = storage.staged.get_tensor(
            cute.make_layout((gemm.staged_values // STAGED_PITCH, STAGED_PITCH), stride=(STAGED_PITCH, 1))
        )
        boxes = storage.boxes.data_ptr()
        finisher = make_finisher(gemm, epilogue, tensors, accumulators, mma, base, staged, boxes, place)
        finish_tiles(finisher, work_ring, items)
        epilogue_barrier().arrive_and_wait()
        tmem.free(base)


@cute.jit
def grid_of(gemm: cutlass.Constexpr, tile_expert):
    """Persistent CTAs in whole groups, at most one group a tile."""
    tiles = Int32(tile_expert.shape[0]) * gemm.n_tiles
    return (cutlass.min(gemm.ctas // gemm.group, tiles) * gemm.group, 1, 1)
