"""Sums a token's rows: one thread eight columns of one token."""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from sm_100a.device import dependents
from sm_100a.device.arithmetic import add, fma
from sm_100a.device.quantize import global_vector

WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class Combiner:
    """What is known of a combine when it is compiled; ``weighted``: router weights are multiplied in here."""

    columns: int
    top_k: int
    weighted: bool
    dtype: Any
    threads: int

    @property
    def pieces(self):
        """Threads a token."""
        return self.columns // WIDTH


@cute.jit
def position(combiner: cutlass.Constexpr):
    """(token, first column) of this thread; the token may lie past the last."""
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    index = Int64(cta) * combiner.threads + thread
    return index // combiner.pieces, Int32(index % combiner.pieces) * WIDTH


@cute.jit
def combine_thread(combiner: cutlass.Constexpr, rows, slot_row, weights, y):
    """Ordered: ``s = fma(w_j, row, s)`` over ascending slots, one rounding."""
    dependents.enter()
    token, column = position(combiner)
    if token < y.shape[0]:
        sums = cute.make_rmem_tensor(WIDTH, Float32)
        sums.fill(0.0)
        for j in cutlass.range_constexpr(combiner.top_k):
            row = slot_row[token * combiner.top_k + j]
            if row >= 0:
                values = global_vector(rows, Int64(row) * combiner.columns + column, WIDTH).load().to(Float32)
                for i in cutlass.range_constexpr(WIDTH):
                    if cutlass.const_expr(combiner.weighted):
                        sums[i] = fma(weights[token, j], values[i], sums[i])
                    else:
                        sums[i] = add(sums[i], values[i])
        global_vector(y, token * combiner.columns + column, WIDTH).store(sums.load().to(combiner.dtype))


@cute.jit
def round_thread(combiner: cutlass.Constexpr, sums, y):
    """Atomic: one rounding of what gemm2 added up."""
    dependents.enter()
    token, column = position(combiner)
    if token < y.shape[0]:
        offset = token * combiner.columns + column
        values = global_vector(sums, offset, WIDTH).load()
        global_vector(y, offset, WIDTH).store(values.to(combiner.dtype))


@cute.jit
def grid_of(combiner: cutlass.Constexpr, y):
    """CTAs that cover every token; at least one, since a launch of none is an error."""
    return (Int32(Int64(y.shape[0]) * combiner.pieces // combiner.threads + 1), 1, 1)
