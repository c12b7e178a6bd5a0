"""Modelled time of an sm_90a gemm ladder (reading, feeding, decoding, multiplying) and of routing."""

import math

from moegen.codegen.catalogs.sm90_even import rounds
from moegen.codegen.catalogs.sm90_forms import UNIT_BYTES, UNIT_K, UNIT_ROWS, warpgroups_of, weight_tiles, widths
from moegen.codegen.cost import gemm_bytes, stream_bytes
from moegen.codegen.load import Load
from moegen.codegen.schedule import Schedule
from moegen.core.devices import DeviceFacts
from moegen.core.ops import OpSpec

# Rates of one H200 (benchmarks/hopper/NOTES.md); they rank candidates, no report shows them.
READ_SHARE = 0.92
"""Share of the read rate that the ring of bulk copies reaches on long runs."""
ISSUE_NS = 2.55 / (4 * 32 * 1.7)
"""Decoding one weight on one multiprocessor: 2.55 instructions over four schedulers of 32 lanes at 1.7 GHz."""
WGMMA_CYCLES = {8: 13, 16: 13, 24: 13, 32: 16, 48: 24}
"""Cycles of one m64k16 multiply by token width; half the width beyond 48."""
GATHER_CYCLES = 7
"""A warp's asynchronous copy of 128 bytes of a row in 4-byte words; 0.4 of it lengthens the multiplies beside it."""
PIECE_CYCLES = 2
"""The same share of a copy of whole pieces, 512 bytes of four rows."""
GATHER_SHARE = 0.4
UNROUTED_US = 3.0
"""Weights that no gather op gives time to fetch: a gemm1 that follows routing at once knows no item until it ends."""
ARRANGED_US = 0.8
"""Arranging tokens beside routing, which takes this long at least."""
DECODE_SHARE = 0.35
"""What of the decoding lengthens the multiplies beside it: both need issue slots and register ports."""
FEED_BYTES = 30
"""Bytes a cycle that one multiprocessor gets from L2 beside wide multiplies."""
CODED_WORK, CODED_MULTIPLY = 1.25, 1.45
"""Rows of codes, which every row tile decodes again: how much longer a tile takes, and wide multiplies beside it."""
CLOCK_GHZ = 1.7
CHAINED_US = 1.5
"""One more launch of a chain."""
ROUTE_US = 3.2
"""Routing a handful of slots."""
TILE_US = 1.2
"""Filling the ring, and the epilogue, of one tile that nothing hides."""


def gemm_us(op: OpSpec, schedule: Schedule, device: DeviceFacts, load: Load) -> float:
    """Modelled time of a ladder under rows per hit expert that scatter as independent tokens make them."""
    ladder = widths(schedule)
    hit = max(load.hit_experts, 1e-9)
    rows = load.rows / hit
    tiles_each = tiles_of(rows, ladder[-1])
    width = next((width for width in ladder if width * tiles_each >= rows), ladder[-1])
    groups, tiles = warpgroups_of(op, schedule, width)
    weights = load.hit_experts * tiles_each * op.n * op.k
    cycles = WGMMA_CYCLES.get(width, width // 2)
    multiply_us = 1e-3 * weights / 1024 * cycles / CLOCK_GHZ / device.cores
    decode_us = 1e-3 * weights * ISSUE_NS / device.cores
    read_us = 1e6 * gemm_bytes(op, load) / (READ_SHARE * device.read_bytes_s)
    row_tiles = -(-weight_tiles(op) // (groups * tiles))
    items = load.hit_experts * tiles_each * row_tiles
    waves = rounds(schedule, items, device.cores) * device.cores / max(items, 1e-9)
    fed = items * op.k / UNIT_K * (width * UNIT_K * 2 + groups * tiles * UNIT_BYTES)
    feed_us = 1e-3 * fed / FEED_BYTES / CLOCK_GHZ / device.cores
    copies = load.rows * op.k / UNIT_ROWS * row_tiles if op.gather and not op.w4a4 else 0.0
    unrouted_us = UNROUTED_US if op.gather and not op.w4a4 else 0.0
    copy_cycles = PIECE_CYCLES if op.arranged else GATHER_CYCLES
    gather_us = GATHER_SHARE * 1e-3 * copies * copy_cycles / CLOCK_GHZ / device.cores
    compute_us = multiply_us * (CODED_MULTIPLY if op.reads_codes else 1.0) + DECODE_SHARE * decode_us + gather_us
    work_us = max(read_us, feed_us, compute_us, decode_us) * min(waves, 2.0) * (CODED_WORK if op.reads_codes else 1.0)
    return work_us + unrouted_us + TILE_US * (1 + items / device.cores / 8) + CHAINED_US * len(ladder)


def tiles_of(rows: float, width: int) -> float:
    """Expected tiles of an expert that has rows: one more with the probability that it exceeds what the last one holds.

    Rows are Poisson's of mean ``rows``, in the normal approximation.
    """
    spread = math.sqrt(2 * max(rows, 1e-9))
    beyond = (0.5 * math.erfc((full * width + 0.5 - rows) / spread) for full in range(1, int(rows / width) + 3))
    return 1.0 + sum(beyond)


def route_us(schedule: Schedule, load: Load) -> float:
    """Modelled time of routing: more threads take longer to sum, a block's slots pass through its votes."""
    threads, blocks = schedule.number("threads"), schedule.number("blocks")
    return ROUTE_US + 1.6e-3 * threads + 0.4 * (blocks > 1) + 1.2e-3 * load.rows / blocks


def arrange_us(op: OpSpec, device: DeviceFacts, load: Load) -> float:
    """Modelled time of arranging tokens, as far as routing beside it does not hide it."""
    moved_us = 1e6 * stream_bytes(op, load) / (0.8 * device.read_bytes_s)
    return ARRANGED_US + max(0.0, moved_us - ROUTE_US - 3e-4 * load.rows)
