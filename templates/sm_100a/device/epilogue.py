"""What becomes of accumulators: the exact chain alpha, bias, activation, router weight, then one of five stores.

A thread owns one row of a tile. It works on blocks of 16 output values, one quantiser block: 32 accumulator columns
when W1 is gated (gate and up alternate by 8), else 16. The thread that made a row's block stores it, at least 32 bytes
of tokens and so whole sectors, or lays it into a box that a bulk copy stores.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8
from sm_100a.device.arithmetic import add, mul, round_bf16
from sm_100a.device.quantize import BLOCK, CODE_BYTES, global_vector, quantize_block

GROUP = 8
CHUNK = 32


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Tensors of the chain; None where a kernel has none.

    ``alpha [E, halves]``, ``pair [E or 1, 2]``, ``bias [E, N]``, ``weights [T, k]`` fp32; ``out`` rows of tokens, codes
    or sums, ``scales`` of the codes, ``out_pair [E, 2]`` their second-level scales. Padding rows are found through
    ``row_slot [R]``, or through ``offsets [E + 1]`` and ``rows [E]``. ``boxes`` is the bulk copy of ``out``'s boxes as
    (atom, tensor).
    """

    alpha: Any
    pair: Any
    bias: Any
    weights: Any
    out: Any
    scales: Any
    out_pair: Any
    row_slot: Any
    offsets: Any
    rows: Any
    boxes: Any


@dataclass(frozen=True)
class Box:
    """Where a warp's rows go through shared memory: its :class:`~sm_100a.device.gemm_boxes.Sender`, how many boxes it
    has sent, and whether these rows are to go that way."""

    sender: Any
    sent: Any
    taken: Any


class Row(NamedTuple):
    """What is known of a row before its accumulators: its slot (negative: padding) and the chain's factors, which are
    alpha of the gate or of the only half, alpha of up, the router weight."""

    slot: Any
    first: Any
    second: Any
    weight: Any


class RowStore:
    """``h_rows`` or ``out_rows``: values rounded once to the token dtype; padding rows are 0, or skipped.

    ``boxes``: rows go through shared memory, where 32 neighbours are all to be written.
    """

    WIDTH = 1

    def __init__(self, dtype, pads, boxes=None):
        self.dtype = dtype
        self.pads = pads
        self.boxes = boxes
        self.blocks = 0

    @cute.jit
    def block(
        self, chain: cutlass.Constexpr, arguments: cutlass.Constexpr, gates, values, real, row, expert, column, box
    ):
        """Stores 16 values at ``column``."""
        if cutlass.const_expr(self.boxes is None):
            if real or cutlass.const_expr(self.pads):
                store_tokens(self.dtype, arguments.out, values, Int64(row) * chain.columns + column)
        else:
            if box.taken:
                box.sender.put(box.sent, values, column % self.boxes.columns)
            elif real:
                store_tokens(self.dtype, arguments.out, values, Int64(row) * chain.columns + column)

    @cute.jit
    def tail(self, chain: cutlass.Constexpr, arguments: cutlass.Constexpr, row, column, box):
        """Nothing lies past the last column; the rest of a box is 0."""
        if cutlass.const_expr(self.boxes is not None):
            values = zeros()
            if box.taken:
                box.sender.put(box.sent, values, column % self.boxes.columns)


class AddStore:
    """``y_acc``: real rows added to their token's fp32 sum, four columns at a time, in any order."""

    blocks = 0
    boxes = None

    @cute.jit
    def block(
        self, chain: cutlass.Constexpr, arguments: cutlass.Constexpr, gates, values, real, row, expert, column, box
    ):
        """Adds 16 values at ``column``."""
        if real:
            token = arguments.row_slot[row] // chain.top_k
            for first in cutlass.range_constexpr(0, BLOCK, 4):
                target = arguments.out.iterator + (Int64(token) * chain.columns + column + first)
                cute.arch.inline_ptx(
                    "red.relaxed.gpu.global.add.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                    read_only_args=[target.toint(), *(values[first + i] for i in range(4))],
                )

    @cute.jit
    def tail(self, chain: cutlass.Constexpr, arguments: cutlass.Constexpr, row, column, box):
        """Nothing lies past the last column."""


class PairStore:
    """``h_pair``: eight activated gates, then their eight products, twice; ``boxes`` as of rows."""

    WIDTH = 2
    pads = True

    def __init__(self, dtype, boxes=None):
        self.dtype = dtype
        self.boxes = boxes
        self.blocks = 0

    @cute.jit
    def block(
        self, chain: cutlass.Constexpr, arguments: cutlass.Constexpr, gates, values, real, row, expert, column, box
    ):
        """Stores 32 columns."""
        start = Int64(row) * (2 * chain.columns) + 2 * column
        for half in cutlass.range_constexpr(2):
            both = cute.make_rmem_tensor(2 * GROUP, Float32)
            for i in cutlass.range_constexpr(GROUP):
                both[i] = gates[half * GROUP + i]
                both[GROUP + i] = values[half * GROUP + i]
            if cutlass.const_expr(self.boxes is None):
                store_tokens(self.dtype, arguments.out, both, start + half * 2 * GROUP)
            else:
                box.sender.put(box.sent, both, half * 2 * GROUP)

    @cute.jit
    def tail(self, chain: cutlass.Constexpr, arguments: cutlass.Constexpr, row, column, box):
        """Nothing lies past the last column; no box is sent there."""


class CodeStore:
    """``h_codes`` and ``h_scales``: the contract's quantiser on registers; padding of both is 0.

    ``pitch`` bytes a row of codes, ``scale_columns`` a row of scales with their padding.
    """

    def __init__(self, contract, layout, pitch, scale_columns, round_values):
        self.contract = contract
        self.layout = layout
        self.pitch = pitch
        self.scale_columns = scale_columns
        self.round_values = round_values
        self.boxes = None
        self.blocks = max(scale_columns, pitch // CODE_BYTES)

    @cute.jit
    def block(
        self, chain: cutlass.Constexpr, arguments: cutlass.Constexpr, gates, values, real, row, expert, column, box
    ):
        """Quantises and stores one block."""
        codes = cute.make_rmem_tensor(CODE_BYTES, Uint8)
        codes.fill(Uint8(0))
        byte = Uint8(0)
        if real:
            if cutlass.const_expr(self.round_values):
                for i in cutlass.range_constexpr(BLOCK):
                    values[i] = round_bf16(values[i])
            g, p = arguments.out_pair[expert, 0], arguments.out_pair[expert, 1]
            packed, byte = quantize_block(self.contract, values.load(), g, p)
            codes.store(packed)
        self.write(arguments, codes, byte, row, column // BLOCK)

    @cute.jit
    def tail(self, chain: cutlass.Constexpr, arguments: cutlass.Constexpr, row, column, box):
        """Clears one block past the last column, where the pitch or the layout has one."""
        codes = cute.make_rmem_tensor(CODE_BYTES, Uint8)
        codes.fill(Uint8(0))
        block = column // BLOCK
        self.write(arguments, codes, Uint8(0), row, block)

    @cute.jit
    def clear_scale(self, arguments: cutlass.Constexpr, row, block):
        """Clears one scale, where the layout has it."""
        offset = self.layout.offset(row, block, self.scale_columns)
        if block < self.scale_columns:
            global_vector(arguments.scales, offset, 1)[0] = Uint8(0)

    @cute.jit
    def write(self, arguments: cutlass.Constexpr, codes, byte, row, block):
        """Codes of a block where the pitch reaches it, its scale where the layout does."""
        code_offset = Int64(row) * self.pitch + block * CODE_BYTES
        scale_offset = self.layout.offset(row, block, self.scale_columns)
        if block < self.pitch // CODE_BYTES:
            global_vector(arguments.out, code_offset, CODE_BYTES).store(codes.load())
        if block < self.scale_columns:
            global_vector(arguments.scales, scale_offset, 1)[0] = byte


def zeros():
    """16 zeros in registers."""
    values = cute.make_rmem_tensor(BLOCK, Float32)
    values.fill(0.0)
    return values


def store_tokens(dtype, out, values, offset):
    """16 fp32 values of a register tensor, rounded once to the token dtype, at a multiple of 16."""
    rounded = cute.make_rmem_tensor(BLOCK, dtype)
    rounded.store(values.load().to(dtype))
    global_vector(out, offset, BLOCK).store(rounded.load())


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The chain of one kernel.

    ``columns`` of a stored row before any padding; ``activation`` is None in gemm2; ``per_expert``: one second-level
    scale of the rows for each expert; ``weighted``: times the slot's router weight; ``store`` is one of this module's
    stores.
    """

    columns: int
    gated: bool
    bias: bool
    per_expert: bool
    weighted: bool
    top_k: int
    round_gate: bool
    activation: Any
    store: Any

    @property
    def width(self):
        """Accumulator columns of one block."""
        return 2 * BLOCK if self.gated else BLOCK

    def missing(self, covered):
        """Blocks of the output, padding included, that tiles over ``covered`` weight rows do not reach."""
        return max(0, self.store.blocks - covered // self.width)

    @cute.jit
    def clear(self, arguments: cutlass.Constexpr, row, covered):
        """Writes the padding of one row that no tile reaches."""
        for extra in cutlass.range_constexpr(self.missing(covered)):
            self.store.tail(self, arguments, row, (covered // self.width + extra) * BLOCK, None)

    @cute.jit
    def clear_scales(self, arguments: cutlass.Constexpr, row, column, last):
        """Writes the scales of a row past the last tile that share a unit of 128 rows with it: 32 weight rows' worth,
        and everything beyond when they are the last."""
        if cutlass.const_expr(self.store.blocks > 0):
            first = column // self.width
            stop = cutlass.select_(last, Int32(self.store.blocks), first + CHUNK // self.width)
            for block in cutlass.range(first, stop, unroll=1):
                self.store.clear_scale(arguments, row, block)

    @cute.jit
    def slot_of(self, arguments: cutlass.Constexpr, row, expert):
        """Slot of a row, negative for padding; where a kernel has no slots, 0 for every real row."""
        if cutlass.const_expr(arguments.row_slot is not None):
            slot = arguments.row_slot[row]
        else:
            real = row - arguments.offsets[expert] < arguments.rows[expert]
            slot = Int32(cutlass.select_(real, Int32(0), Int32(-1)))
        return slot

    @cute.jit
    def factors(self, arguments: cutlass.Constexpr, expert, slot):
        """The factors of a :class:`Row`."""
        decode = arguments.pair[expert if self.per_expert else 0, 1]
        first = mul(arguments.alpha[expert, 0], decode)
        second = mul(arguments.alpha[expert, 1], decode) if cutlass.const_expr(self.gated) else first
        weight = Float32(1.0)
        if cutlass.const_expr(self.weighted):
            # Padding rows read a weight that nobody uses.
            used = cutlass.max(slot, 0)
            weight = arguments.weights[used // self.top_k, used % self.top_k]
        return first, second, weight

    def row(self, arguments, row, expert):
        """The :class:`Row` of a row."""
        slot = self.slot_of(arguments, row, expert)
        return Row(slot, *self.factors(arguments, expert, slot))

    def out_column(self, column):
        """Stored column, before ``store`` widens it, of weight row ``column``."""
        return column // 2 if self.gated else column

    @cute.jit
    def finish(self, arguments: cutlass.Constexpr, accumulated, known, row, expert, column, box):
        """Takes 32 accumulator columns of one row, the first of which is weight row ``column``.

        ``known`` is the row's :class:`Row`; ``box`` a :class:`Box` where the store has boxes, else None.
        """
        for part in cutlass.range_constexpr(CHUNK // self.width):
            first = column + part * self.width
            out_column = self.out_column(first)
            if out_column < self.columns:
                gates, values = zeros(), zeros()
                if known.slot >= 0:
                    for i in cutlass.range_constexpr(BLOCK):
                        self.value(arguments, known, accumulated, part, first, expert, gates, values, i)
                self.store.block(self, arguments, gates, values, known.slot >= 0, row, expert, out_column, box)
            else:
                self.store.tail(self, arguments, row, out_column, box)

    def value(self, arguments, known, accumulated, part, first, expert, gates, values, i):
        """One output value of a real row."""
        if self.gated:
            at = i // GROUP * 2 * GROUP + i % GROUP
            gate = self.scaled(arguments, known.first, accumulated[at], expert, first + at)
            up = self.scaled(arguments, known.second, accumulated[at + GROUP], expert, first + at + GROUP)
            gates[i] = self.activation.gate(gate)
            rounded = round_bf16(gates[i]) if self.round_gate else gates[i]
            value = mul(rounded, self.activation.up(up))
        else:
            value = self.scaled(arguments, known.first, accumulated[part * BLOCK + i], expert, first + i)
            value = value if self.activation is None else self.activation.value(value)
        values[i] = mul(value, known.weight) if self.weighted else value

    def scaled(self, arguments, alpha, accumulated, expert, row):
        """``acc · a``, plus the bias of weight row ``row``."""
        value = mul(accumulated, alpha)
        return add(value, arguments.bias[expert, row]) if self.bias else value
