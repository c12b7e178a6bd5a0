"""The one kernel ABI: which tensors an op takes, in which order, with which shapes.

Templates render their entry's signature from :func:`arguments`, the runtime binds buffers by the same names and sizes
its workspace from the same shapes, and tests call kernels through it: an argument exists in one place only.

Shapes are tuples of dimension names (see :class:`Dims`), integers, or ``"*"`` where a weight pack decides.
"""

from dataclasses import dataclass
from typing import Literal

from moegen.core.enums import (
    ActScale,
    CombineMode,
    Epilogue,
    OpKind,
    RouterWeight,
    ScaleLayout,
    TokenDtype,
)
from moegen.core.ops import OpSpec

Role = Literal["caller", "weight", "scale", "workspace", "scalar"]
Access = Literal["read", "write", "update"]
BLOCK = 16
"""Elements per E4M3 block scale."""
CODE_PITCH = 16
"""Rows of packed codes start at multiples of this many bytes (bulk copies and TMA need 16)."""


def round_up(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is >= ``value``."""
    return -(-value // multiple) * multiple


def code_pitch(columns: int) -> int:
    """Bytes from one row of E2M1 codes to the next, for ``columns`` elements (two a byte), zero-filled."""
    return round_up(columns // 2, CODE_PITCH)


def row_capacity(tokens: int, top_k: int, experts: int, row_tile: int) -> int:
    """Most padded rows that any routing of ``tokens`` tokens can need: T·k + active·(tile-1), in whole tiles."""
    slots = tokens * top_k
    active = min(experts, slots)
    return (slots + active * (row_tile - 1)) // row_tile * row_tile


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One kernel parameter.

    ``dtype``: ``bf16 f16 f32 i32 i64 u8 int`` (``int`` is a 64-bit scalar, not a tensor). All tensors are contiguous,
    row-major.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    role: Role
    access: Access = "read"


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Concrete sizes for one call or one workspace.

    T tokens; TK slots (T·k); E experts; E1 = E+1; R padded-row capacity; TILES = R / row_tile; H, I; I2 = 2I;
    HP, IP code pitches in bytes; HS, IS scale columns; HS4, IS4 the same rounded up to 4; R128 = R rounded up to 128.
    """

    tokens: int
    top_k: int
    experts: int
    hidden: int
    intermediate: int
    row_tile: int

    def __getitem__(self, name: str) -> int:
        rows = row_capacity(self.tokens, self.top_k, self.experts, self.row_tile)
        h_scales, i_scales = self.hidden // BLOCK, self.intermediate // BLOCK
        sizes = {
            "T": self.tokens,
            "k": self.top_k,
            "TK": self.tokens * self.top_k,
            "E": self.experts,
            "E1": self.experts + 1,
            "R": rows,
            "R128": round_up(rows, 128),
            "TILES": rows // self.row_tile,
            "H": self.hidden,
            "I": self.intermediate,
            "I2": 2 * self.intermediate,
            "HP": code_pitch(self.hidden),
            "IP": code_pitch(self.intermediate),
            "HS": h_scales,
            "IS": i_scales,
            "HS4": round_up(h_scales, 4),
            "IS4": round_up(i_scales, 4),
            "H128": round_up(self.hidden, 128),
            "I128": round_up(self.intermediate, 128),
            "I2_128": round_up(2 * self.intermediate, 128),
        }
        return sizes[name]

    def shape(self, argument: Argument) -> tuple[int, ...]:
        """Concrete shape of a tensor argument whose shape holds no ``"*"``."""
        return tuple(size if isinstance(size, int) else self[size] for size in argument.shape)


def weight_pack_of(op: OpSpec, name: str) -> str:
    """Pack of the weight argument ``name``: a block names those of w1 and w2, joined by ``+`` where they differ."""
    first, _, second = op.weight_pack.partition("+")
    return second if second and name.startswith("w2") else first


def public_pack(op: OpSpec) -> bool:
    """True when a gemm reads codes and scales as two plain tensors, False when it reads one private pack."""
    return op.weight_pack.startswith("rows")


def arguments(op: OpSpec) -> tuple[Argument, ...]:
    """Parameters of ``op``'s entry in order; a variant with scratch takes one more, ``scratch [*] u8``, last."""
    return _BUILDERS[op.kind](op)


def _token(op: OpSpec) -> str:
    return "f16" if op.dtype is TokenDtype.FP16 else "bf16"


def _arg(name: str, dtype: str, *shape: str | int, role: Role = "workspace", access: Access = "read") -> Argument:
    return Argument(name=name, dtype=dtype, shape=shape, role=role, access=access)


def _scales(op: OpSpec, name: str, columns: str, access: Access) -> Argument:
    if op.scale_layout is ScaleLayout.SWIZZLE_128X4:
        return _arg(name, "u8", "R128", f"{columns}4", access=access)
    return _arg(name, "u8", "R", columns, access=access)


def _rows(op: OpSpec, name: str, columns: str, access: Access = "read") -> Argument:
    """Token rows between two ops; a private ``rows_layout`` pads them to whole 128-column units."""
    return _arg(name, _token(op), "R", f"{columns}128" if op.rows_layout else columns, access=access)


def _quantised(op: OpSpec, name: str, columns: str, access: Access) -> tuple[Argument, ...]:
    """Rows of E2M1 values, ``name`` x or h: codes and block scales, or the bf16 products of both."""
    if op.decoded:
        width = f"{columns}128" if op.rows_layout else columns
        return (_arg(f"{name}_products", "bf16", "R", width, access=access),)
    codes = _arg(f"{name}_codes", "u8", "R", f"{columns}P", access=access)
    return (codes, _scales(op, f"{name}_scales", f"{columns}S", access))


def _pair(op: OpSpec, name: str) -> Argument:
    """Second-level scale as (encode g, decode p) pairs: one pair, or one per expert when gemm2's is static."""
    if op.act_scale is ActScale.DYNAMIC_TENSOR:
        return _arg(name, "f32", 1, 2, role="scale", access="write")
    return _arg(name, "f32", "E" if name == "h_scale" else 1, 2, role="scale")


def _weights_arg(op: OpSpec) -> tuple[Argument, ...]:
    return (_arg("topk_weights", "f32", "T", "k", role="caller"),)


def _grouping() -> tuple[Argument, ...]:
    return (
        _arg("expert_offsets", "i32", "E1"),
        _arg("expert_rows", "i32", "E"),
        _arg("tile_expert", "i32", "TILES"),
        _arg("totals", "i32", 4),
    )


def _bank(op: OpSpec, layer: str, rows: str, columns: str, halves: int) -> tuple[Argument, ...]:
    if public_pack(op):
        swizzled = op.weight_scale_layout is ScaleLayout.SWIZZLE_128X4
        padded = {"I2": "I2_128", "I": "I128", "H": "H128"}[rows]
        scale_shape = ("E", padded, f"{columns}S4") if swizzled else ("E", rows, f"{columns}S")
        bank = [
            _arg(f"{layer}_codes", "u8", "E", rows, f"{columns}P", role="weight"),
            _arg(f"{layer}_scales", "u8", *scale_shape, role="weight"),
        ]
    else:
        bank = [_arg(f"{layer}_packed", "u8", "E", "*", role="weight")]
    bank.append(_arg(f"{layer}_alpha", "f32", "E", halves, role="weight"))
    if op.bias:
        bank.append(_arg(f"{layer}_bias", "f32", "E", rows, role="weight"))
    return tuple(bank)


def _route(op: OpSpec) -> tuple[Argument, ...]:
    return (
        _arg("topk_ids", "i64" if op.ids_int64 else "i32", "T", "k", role="caller"),
        _arg("first_expert", "int", role="scalar"),
        _arg("expert_offsets", "i32", "E1", access="write"),
        _arg("expert_rows", "i32", "E", access="write"),
        _arg("row_slot", "i32", "R", access="write"),
        _arg("slot_row", "i32", "TK", access="write"),
        _arg("tile_expert", "i32", "TILES", access="write"),
        _arg("totals", "i32", 4, access="write"),
    )


def _input_weights(op: OpSpec) -> tuple[Argument, ...]:
    on_input = op.numerics is not None and op.numerics.router_weight is RouterWeight.INPUT
    return _weights_arg(op) if on_input else ()


def _quantize(op: OpSpec) -> tuple[Argument, ...]:
    if op.gather:
        return (
            _arg("x", _token(op), "T", "H", role="caller"),
            _arg("row_slot", "i32", "R"),
            _arg("totals", "i32", 4),
            *_input_weights(op),
            _pair(op, "x_scale"),
            *_quantised(op, "x", "H", "write"),
        )
    return (
        _rows(op, "h_rows", "I"),
        _arg("row_slot", "i32", "R"),
        _arg("tile_expert", "i32", "TILES"),
        _arg("totals", "i32", 4),
        _pair(op, "h_scale"),
        *_quantised(op, "h", "I", "write"),
    )


def _gather(op: OpSpec) -> tuple[Argument, ...]:
    return (
        _arg("x", _token(op), "T", "H", role="caller"),
        _arg("row_slot", "i32", "R"),
        *((_arg("slot_row", "i32", "TK"),) if op.rows_layout else ()),
        _arg("totals", "i32", 4),
        *_input_weights(op),
        _rows(op, "x_rows", "H", "write"),
    )


def _pieces(op: OpSpec, access: Access = "read") -> Argument:
    """Tokens once each, their columns in the order of ``rows_layout``."""
    return _arg("x_pieces", _token(op), "T", "H128" if op.rows_layout else "H", access=access)


def _arrange(op: OpSpec) -> tuple[Argument, ...]:
    return (_arg("x", _token(op), "T", "H", role="caller"), _pieces(op, "write"))


def _gemm1(op: OpSpec) -> tuple[Argument, ...]:
    assert op.numerics is not None
    if op.w4a4:
        rows = (*_quantised(op, "x", "H", "read"), _arg("x_scale", "f32", 1, 2, role="scale"))
    elif op.gather:
        rows = (_pieces(op) if op.arranged else _arg("x", _token(op), "T", "H", role="caller"),)
    else:
        rows = (_rows(op, "x_rows", "H"),)
    weighted = op.numerics.router_weight is RouterWeight.PRE_QUANT or (
        not op.w4a4 and op.gather and bool(_input_weights(op))
    )
    outputs: tuple[Argument, ...]
    if op.epilogue is Epilogue.FUSED_FP4:
        outputs = (
            _arg("h_scale", "f32", "E", 2, role="scale"),
            _arg("h_codes", "u8", "R", "IP", access="write"),
            _scales(op, "h_scales", "IS", "write"),
        )
    elif op.epilogue is Epilogue.INTERLEAVED:
        outputs = (_arg("h_pair", _token(op), "R", "I2", access="write"),)
    else:
        outputs = (_rows(op, "h_rows", "I", "write"),)
    rows_name, halves = ("I2", 2) if op.gated else ("I", 1)
    return (
        *rows,
        *_bank(op, "w1", rows_name, "H", halves),
        _arg("row_slot", "i32", "R"),
        *_grouping(),
        *(_weights_arg(op) if weighted else ()),
        *outputs,
    )


def _deinterleave(op: OpSpec) -> tuple[Argument, ...]:
    return (
        _arg("h_pair", _token(op), "R", "I2"),
        _arg("totals", "i32", 4),
        _rows(op, "h_rows", "I", "write"),
    )


def _deinterleave_quantize(op: OpSpec) -> tuple[Argument, ...]:
    return (_arg("h_pair", _token(op), "R", "I2"), *_quantize(op)[1:])


def _gemm2(op: OpSpec) -> tuple[Argument, ...]:
    if op.w4a4:
        rows = (
            *_quantised(op, "h", "I", "read"),
            _arg("h_scale", "f32", 1 if op.act_scale is ActScale.DYNAMIC_TENSOR else "E", 2, role="scale"),
        )
    else:
        rows = (_rows(op, "h_rows", "I"),)
    outputs: tuple[Argument, ...] = (_arg("out_rows", _token(op), "R", "H", access="write"),)
    if op.fused_combine:
        weights = _weights_arg(op) if _weight_at_combine(op) else ()
        outputs = (_arg("row_slot", "i32", "R"), *weights, _arg("y_acc", "f32", "T", "H", access="update"))
    return (*rows, *_bank(op, "w2", "H", "I", 1), *_grouping(), *outputs)


def _weight_at_combine(op: OpSpec) -> bool:
    return op.numerics is None or op.numerics.router_weight is RouterWeight.COMBINE


def _combine(op: OpSpec) -> tuple[Argument, ...]:
    y = _arg("y", _token(op), "T", "H", role="caller", access="write")
    if op.combine is CombineMode.ATOMIC:
        return (_arg("y_acc", "f32", "T", "H"), y)
    weights = _weights_arg(op) if _weight_at_combine(op) else ()
    return (_arg("out_rows", _token(op), "R", "H"), _arg("slot_row", "i32", "TK"), *weights, y)


def _block(op: OpSpec) -> tuple[Argument, ...]:
    """The whole layer: rows between its phases lie in the buffers that separate ops would use."""
    rows_name, halves = ("I2", 2) if op.gated else ("I", 1)
    return (
        *_route(op)[:2],
        _arg("x", _token(op), "T", "H", role="caller"),
        *_weights_arg(op),
        *_bank(op, "w1", rows_name, "H", halves),
        *_bank(op, "w2", "H", "I", 1),
        _rows(op, "h_rows", "I", "write"),
        _arg("out_rows", _token(op), "R", "H", access="write"),
        _arg("y", _token(op), "T", "H", role="caller", access="write"),
    )


_BUILDERS = {
    OpKind.ROUTE: _route,
    OpKind.QUANTIZE: _quantize,
    OpKind.GATHER: _gather,
    OpKind.ARRANGE: _arrange,
    OpKind.GEMM1: _gemm1,
    OpKind.DEINTERLEAVE: _deinterleave,
    OpKind.DEINTERLEAVE_QUANTIZE: _deinterleave_quantize,
    OpKind.GEMM2: _gemm2,
    OpKind.COMBINE: _combine,
    OpKind.BLOCK: _block,
}
