"""Which warp of a gemm CTA does what, and the barriers that join some of them."""

from cutlass import pipeline

WARP = 32
EPILOGUE_WARPS = (0, 1, 2, 3)
MMA_WARP = 4
COPY_WARP = 5
SCHEDULER_WARP = 6
SCALE_WARP = 7
"""Of narrow swapped tiles alone."""
TMEM_BARRIER = 1
EPILOGUE_BARRIER = 2


def epilogue_barrier():
    """Joins the epilogue warps of a CTA."""
    return pipeline.NamedBarrier(barrier_id=EPILOGUE_BARRIER, num_threads=WARP * len(EPILOGUE_WARPS))


def tensor_memory_barrier():
    """Joins the warps that use tensor memory: the epilogue's and the one that multiplies."""
    return pipeline.NamedBarrier(barrier_id=TMEM_BARRIER, num_threads=WARP * (len(EPILOGUE_WARPS) + 1))
