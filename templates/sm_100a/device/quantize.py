"""Rows of the token dtype to NVFP4: one thread a block of 16 elements.

Three kernels of a dynamic second-level scale (clear, largest, pair) run before the quantiser on the same stream.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float4E2M1FN, Float8E4M3FN, Float32, Int32, Int64, Uint8
from sm_100a.device import dependents
from sm_100a.device.contracts import FLT_MAX

BLOCK = 16
CODE_BYTES = 8
WARP = 32


@dataclass(frozen=True, kw_only=True)
class Quantizer:
    """What is known of a quantiser when it is compiled.

    ``columns`` elements a row, ``pitch`` bytes a row of codes, ``scale_columns`` bytes a row of scales with padding;
    ``contract`` and ``layout`` are classes of this library; ``per_expert``: one second-level scale for each expert;
    ``top_k`` is 0 for rows in expert order, else rows are found through their slot; ``threads`` a CTA;
    ``paired``: values are the second half of every 16 columns of an interleaved row.
    """

    contract: Any
    layout: Any
    columns: int
    pitch: int
    scale_columns: int
    row_tile: int
    top_k: int
    per_expert: bool
    weighted: bool
    threads: int
    paired: bool = False

    @property
    def blocks(self):
        """Blocks of 16 in a row."""
        return self.columns // BLOCK

    @property
    def slots(self):
        """Threads a row: one a block, and one for each piece of padding beyond the last."""
        return max(self.scale_columns, self.pitch // CODE_BYTES)


def global_vector(tensor, offset, count):
    """``count`` consecutive elements from ``offset``, a 64-bit multiple of ``count``: one wide access."""
    return cute.make_tensor(tensor.iterator + cute.assume(offset, divby=count), cute.make_layout(count))


def load_block(rows, row, block, columns):
    """16 elements of a row as fp32."""
    return global_vector(rows, Int64(row) * columns + block * BLOCK, BLOCK).load().to(Float32)


def load_paired_block(pairs, row, block, columns):
    """16 products of an interleaved row of ``2 · columns`` values as fp32: columns 8…15 of two groups of 16."""
    values = cute.make_rmem_tensor(BLOCK, Float32)
    start = Int64(row) * (2 * columns) + block * (2 * BLOCK)
    for half in range(2):
        group = global_vector(pairs, start + (half * BLOCK + BLOCK // 2), BLOCK // 2).load().to(Float32)
        for i in range(BLOCK // 2):
            values[half * (BLOCK // 2) + i] = group[i]
    return values.load()


def largest_magnitude(values):
    """Largest magnitude of a block; NaN when it holds one."""
    return abs(values).reduce(cute.ReductionOp.MAX, Float32(0.0), 0)


def to_scale_byte(x, floor_byte):
    """fp32, at least 0 or NaN, to (byte, decoded fp32): nearest even, at most 448."""
    pair = cute.make_rmem_tensor(2, Float32)
    pair[0] = x
    pair[1] = Float32(0.0)
    scales = cute.make_rmem_tensor(2, Float8E4M3FN)
    scales.store(pair.load().to(Float8E4M3FN))
    data = cute.recast_tensor(scales, Uint8)
    if floor_byte:
        data[0] = Uint8(cutlass.select_(data[0] == 0, Uint8(floor_byte), data[0]))
    return data[0], scales.load().to(Float32)[0]


def to_codes(values):
    """16 fp32 values to 8 bytes of E2M1, element 2i in the low nibble."""
    codes = cute.make_rmem_tensor(BLOCK, Float4E2M1FN)
    codes.store(values.to(Float4E2M1FN))
    return cute.recast_tensor(codes, Uint8).load()


def quantize_block(contract, values, g, p):
    """(8 bytes of codes, scale byte) of 16 fp32 values under the second-level scale (g, p)."""
    byte, s = to_scale_byte(contract.scale(largest_magnitude(values), g, p), contract.FLOOR_BYTE)
    scaled = contract.apply(values, contract.factor(s, g, p))
    return to_codes(contract.code(scaled)), byte


@cute.jit
def thread_position(quantizer: cutlass.Constexpr):
    """(row, block) of this thread; the row may lie past the last."""
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    index = Int64(cta) * quantizer.threads + thread
    return index // quantizer.slots, Int32(index % quantizer.slots)


@cute.jit
def load_slot(quantizer: cutlass.Constexpr, rows, weights, row, slot, block):
    """16 elements of a row as fp32, times its router weight where that is applied to the input."""
    if cutlass.const_expr(quantizer.paired):
        values = load_paired_block(rows, row, block, quantizer.columns)
    elif cutlass.const_expr(quantizer.top_k == 0):
        values = load_block(rows, row, block, quantizer.columns)
    else:
        values = load_block(rows, slot // quantizer.top_k, block, quantizer.columns)
    if cutlass.const_expr(quantizer.weighted):
        values = values * weights[slot // quantizer.top_k, slot % quantizer.top_k]
    return values


@cute.jit
def quantize_thread(quantizer: cutlass.Constexpr, rows, weights, row_slot, tile_expert, totals, pairs, codes, scales):
    """Quantises one block of a real row; clears one of a padding row, and one piece of padding past a row's end."""
    dependents.enter()
    row, block = thread_position(quantizer)
    row_count = Int64(totals[1])
    multiple = quantizer.layout.ROW_MULTIPLE
    if row < (row_count + multiple - 1) // multiple * multiple:
        slot = Int32(-1)
        if row < row_count:
            slot = row_slot[row]
        packed = cute.make_rmem_tensor(CODE_BYTES, Uint8)
        packed.fill(Uint8(0))
        byte = Uint8(0)
        if slot >= 0 and block < quantizer.blocks:
            expert = Int32(0)
            if cutlass.const_expr(quantizer.per_expert):
                expert = tile_expert[row // quantizer.row_tile]
            values = load_slot(quantizer, rows, weights, row, slot, block)
            block_codes, byte = quantize_block(quantizer.contract, values, pairs[expert, 0], pairs[expert, 1])
            packed.store(block_codes)
        if row < row_count and block < quantizer.pitch // CODE_BYTES:
            offset = row * quantizer.pitch + block * CODE_BYTES
            global_vector(codes, offset, CODE_BYTES).store(packed.load())
        if block < quantizer.scale_columns:
            offset = quantizer.layout.offset(row, block, quantizer.scale_columns)
            global_vector(scales, offset, 1)[0] = byte


@cute.jit
def clear_pair(pairs):
    """Starts the search for the largest magnitude; one thread."""
    dependents.enter()
    pairs[0, 0] = Float32(0.0)


@cute.jit
def largest_thread(quantizer: cutlass.Constexpr, rows, weights, row_slot, totals, pairs):
    """Raises the largest finite magnitude of all real rows, kept as fp32 bits in ``pairs[0, 0]``."""
    dependents.enter()
    row, block = thread_position(quantizer)
    largest = Float32(0.0)
    if row < Int64(totals[1]):
        slot = row_slot[row]
        if slot >= 0 and block < quantizer.blocks:
            magnitudes = abs(load_slot(quantizer, rows, weights, row, slot, block))
            largest = largest_magnitude(cute.where(magnitudes <= FLT_MAX, magnitudes, Float32(0.0)))
    largest = cute.arch.warp_reduction(largest, cute.arch.fmax)
    if cute.arch.lane_idx() == 0:
        # Bits of fp32 at least 0 are ordered as the values are.
        cute.arch.atomic_max(cute.recast_tensor(pairs, Int32).iterator, largest.bitcast(Int32))


@cute.jit
def finish_pair(quantizer: cutlass.Constexpr, pairs):
    """Replaces the largest magnitude by the second-level scale; one thread."""
    dependents.enter()
    g, p = quantizer.contract.pair(pairs[0, 0])
    pairs[0, 0] = g
    pairs[0, 1] = p


@cute.jit
def grid_of(quantizer: cutlass.Constexpr, codes, scales):
    """CTAs that cover every row of the buffers; at least one, since a launch of none is an error."""
    if cutlass.const_expr(quantizer.layout.ROW_MULTIPLE == 1):
        rows = codes.shape[0]
    else:
        rows = scales.shape[0]
    threads = Int64(rows) * quantizer.slots
    return (Int32(threads // quantizer.threads + 1), 1, 1)
