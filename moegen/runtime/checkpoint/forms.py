"""The tensor forms of a layer's experts, each turned into the canonical one without touching a code or a scale byte."""

from dataclasses import dataclass

import torch

from moegen.core.abi import BLOCK
from moegen.core.enums import GateUpOrder
from moegen.runtime.checkpoint.names import Form
from moegen.runtime.checkpoint.taker import Taker
from moegen.runtime.checkpoint.weights import ExpertWeights, Projection

_ONE = ((), (1,))
_UNREAD = float("nan")
"""Slots start as NaN, and every slot is checked: none can be used before it was read."""


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What the spec expects of a layer: H, I in elements; this rank's experts ``first … first + experts - 1`` of
    ``total``; whether there are a gate, biases, and static input scales to read."""

    hidden: int
    intermediate: int
    first: int
    experts: int
    total: int
    gated: bool
    bias: bool
    static_inputs: bool

    def sides(self) -> dict[str, tuple[int, int]]:
        """Side → (N rows, K columns)."""
        up = (self.intermediate, self.hidden)
        gate = {"gate": up} if self.gated else {}
        return {**gate, "up": up, "down": (self.hidden, self.intermediate)}


def read_per_expert(taker: Taker, shape: LayerShape) -> ExpertWeights:
    """``<e>.<leaf>.<suffix>``: one matrix, its scales and its scalars for each expert."""
    convention, dialect = taker.found.convention, taker.dialect
    leaves = {"gate": convention.gate, "up": convention.up, "down": convention.down}
    for expert in range(shape.total):
        for leaf in convention.leaves:
            suffixes = (
                dialect.codes,
                dialect.scales,
                dialect.second,
                dialect.input,
                *(("bias",) if shape.bias else ()),
            )
            for suffix in suffixes:
                taker.allow(f"{expert}.{leaf}.{suffix}")
    sides = {}
    for side, (rows, columns) in shape.sides().items():
        bank = _blank(shape, rows, columns)
        for index in range(shape.experts):
            base = f"{shape.first + index}.{leaves[side]}"
            _copy(bank.codes[index], taker.codes(f"{base}.{dialect.codes}", (rows, columns // 2)))
            _copy(bank.scales[index], taker.scales(f"{base}.{dialect.scales}", (rows, columns // BLOCK)))
            bank.second[index] = _decode_scale(taker, f"{base}.{dialect.second}", weight=True)
            if bank.input is not None:
                bank.input[index] = _decode_scale(taker, f"{base}.{dialect.input}", weight=False)
            if bank.bias is not None:
                _copy(bank.bias[index], taker.floats(f"{base}.bias", ((rows,),)))
        sides[side] = bank
    return _weights(sides, shape)


def read_stacked(taker: Taker, shape: LayerShape) -> ExpertWeights:
    """``<leaf>.<suffix>`` with experts along the first dimension of every tensor."""
    convention, dialect = taker.found.convention, taker.dialect
    leaves = {"gate": convention.gate, "up": convention.up, "down": convention.down}
    sides = {}
    for side, (rows, columns) in shape.sides().items():
        bank, base = _blank(shape, rows, columns), leaves[side]
        cut = (shape.first, shape.experts)
        _copy(bank.codes, taker.codes(f"{base}.{dialect.codes}", (shape.total, rows, columns // 2), *cut))
        _copy(bank.scales, taker.scales(f"{base}.{dialect.scales}", (shape.total, rows, columns // BLOCK), *cut))
        _copy(bank.second, _decode_vector(taker, f"{base}.{dialect.second}", shape, halves=1))
        taker.allow(f"{base}.{dialect.input}")
        if bank.input is not None:
            _copy(bank.input, _decode_vector(taker, f"{base}.{dialect.input}", shape, halves=1, weight=False))
        if bank.bias is not None:
            _copy(bank.bias, taker.floats(f"{base}.bias", ((shape.total, rows),), *cut))
        sides[side] = bank
    return _weights(sides, shape)


def read_fused(taker: Taker, shape: LayerShape) -> ExpertWeights:
    """``<leaf>`` and ``<leaf>_<suffix>``: gate and up in one tensor, all experts in one tensor.

    Fused columns store K before N, packed along K, so the transpose of the bytes is the canonical form; their
    second-level and input scales are one number for everything. Fused rows store N before K and one second-level scale
    per expert and half.
    """
    convention = taker.found.convention
    rows = 2 * shape.intermediate if shape.gated else shape.intermediate
    fused = _read_fused_side(taker, shape, convention.up, rows, shape.hidden, halves=2 if shape.gated else 1)
    down = _read_fused_side(taker, shape, convention.down, shape.hidden, shape.intermediate, halves=1)
    sides = {"down": down[0]}
    if shape.gated:
        gate_rows, up_rows = _halves(convention.order, shape.intermediate)
        sides["gate"], sides["up"] = _half(fused, gate_rows, 0), _half(fused, up_rows, 1)
    else:
        sides["up"] = fused[0]
    return _weights(sides, shape)


def _read_fused_side(
    taker: Taker, shape: LayerShape, leaf: str, rows: int, columns: int, halves: int
) -> tuple[Projection, torch.Tensor, torch.Tensor | None]:
    """One fused leaf: its bank, and its second-level and input scales per half (``[E, halves]``)."""
    dialect, cut, bank = taker.dialect, (shape.first, shape.experts), _blank(shape, rows, columns)
    transposed = taker.found.convention.form is Form.FUSED_COLUMNS

    def stored(depth: int) -> tuple[int, ...]:
        return (shape.total, depth, rows) if transposed else (shape.total, rows, depth)

    def canonical(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return tensor.transpose(1, 2) if tensor is not None and transposed else tensor

    _copy(bank.codes, canonical(taker.codes(leaf, stored(columns // 2), *cut)))
    _copy(bank.scales, canonical(taker.scales(f"{leaf}_{dialect.scales}", stored(columns // BLOCK), *cut)))
    second = _decode_vector(taker, f"{leaf}_{dialect.second}", shape, halves)
    taker.allow(f"{leaf}_{dialect.input}")
    inputs = (
        _decode_vector(taker, f"{leaf}_{dialect.input}", shape, halves, weight=False) if shape.static_inputs else None
    )
    if bank.bias is not None:
        _copy(bank.bias, taker.floats(f"{leaf}_bias", ((shape.total, rows),), *cut))
    bank.second.copy_(second[:, 0])
    if bank.input is not None and inputs is not None:
        bank.input.copy_(inputs[:, 0])
    return bank, second, inputs


def _half(fused: tuple[Projection, torch.Tensor, torch.Tensor | None], rows: slice, half: int) -> Projection:
    bank, second, inputs = fused
    return Projection(
        codes=bank.codes[:, rows].contiguous(),
        scales=bank.scales[:, rows].contiguous(),
        second=second[:, half].contiguous(),
        input=None if inputs is None else inputs[:, half].contiguous(),
        bias=None if bank.bias is None else bank.bias[:, rows].contiguous(),
    )


def _halves(order: GateUpOrder, intermediate: int) -> tuple[slice, slice]:
    """Rows of the gate and of the up half of a fused matrix."""
    first, second = slice(0, intermediate), slice(intermediate, None)
    if order is GateUpOrder.INTERLEAVED:
        return slice(0, None, 2), slice(1, None, 2)
    return (second, first) if order is GateUpOrder.UP_GATE else (first, second)


def _blank(shape: LayerShape, rows: int, columns: int) -> Projection:
    slots = torch.full((shape.experts,), _UNREAD)
    return Projection(
        codes=torch.zeros(shape.experts, rows, columns // 2, dtype=torch.uint8),
        scales=torch.zeros(shape.experts, rows, columns // BLOCK, dtype=torch.uint8),
        second=slots,
        input=slots.clone() if shape.static_inputs else None,
        bias=torch.full((shape.experts, rows), _UNREAD) if shape.bias else None,
    )


def _copy(into: torch.Tensor, tensor: torch.Tensor | None) -> None:
    """Fills a slot; a missing tensor is already in the account, and the account ends in an error."""
    if tensor is not None:
        into.copy_(tensor.reshape(into.shape) if tensor.dim() != into.dim() else tensor)


def _decode_scale(taker: Taker, rest: str, *, weight: bool) -> float:
    """A scalar second-level scale in the multiply form (amax / 2688); NaN when it is missing or impossible."""
    taken = taker.floats(rest, _ONE)
    return _UNREAD if taken is None else _multiply_form(taker, rest, taken.reshape(()), weight=weight).item()


def _decode_vector(taker: Taker, rest: str, shape: LayerShape, halves: int, *, weight: bool = True) -> torch.Tensor:
    """Second-level scales ``[E, halves]`` of a tensor for all experts: a scalar, one per expert, or one per half."""
    shapes = ((shape.total,), (shape.total, halves), (shape.total, 1), *_ONE)
    taken = (
        taker.floats(rest, shapes, shape.first, shape.experts)
        if _is_per_expert(taker, rest)
        else taker.floats(rest, shapes)
    )
    if taken is None:
        return torch.full((shape.experts, halves), _UNREAD)
    scale = _multiply_form(taker, rest, taken, weight=weight)
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(shape.experts, halves).clone()
    return scale.reshape(shape.experts, -1).expand(shape.experts, halves).clone()


def _is_per_expert(taker: Taker, rest: str) -> bool:
    return taker.elements(rest) > 1


def _multiply_form(taker: Taker, rest: str, value: torch.Tensor, *, weight: bool) -> torch.Tensor:
    """Turns a stored scale into amax / 2688, and refuses what its name cannot mean.

    A weight's multiply form is below 1 (amax < 2688) and its divide form above; a value on the wrong side was written
    in the other form, and using it would scale the layer by a factor of about 10^7.
    """
    dialect = taker.dialect
    if not bool((value.isfinite() & (value > 0)).all()):
        taker.wrong(rest, f"scale {value.flatten()[:8].tolist()}, expected positive finite numbers")
        return torch.full_like(value, _UNREAD)
    inverted = value < 1 if dialect.divides else value > 1
    if weight and bool(inverted.any()):
        form, other = ("2688/amax", "amax/2688") if dialect.divides else ("amax/2688", "2688/amax")
        taker.wrong(
            rest,
            f"{value.flatten()[:8].tolist()} looks like {other}, but {dialect.name} stores {form}:"
            " the form cannot be told",
        )
        return torch.full_like(value, _UNREAD)
    return value.reciprocal() if dialect.divides else value


def _weights(sides: dict[str, Projection], shape: LayerShape) -> ExpertWeights:
    return ExpertWeights(gate=sides.get("gate"), up=sides["up"], down=sides["down"], first_expert=shape.first)
