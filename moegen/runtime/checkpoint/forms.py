"""The tensor forms of a layer's experts, each turned into the canonical one without touching a code or a scale byte."""

from dataclasses import dataclass

import torch

from moegen.core.abi import BLOCK
from moegen.core.enums import GateUpOrder
from moegen.runtime.checkpoint.names import Form
from moegen.runtime.checkpoint.second_level import UNREAD, decode_scale, decode_scales
from moegen.runtime.checkpoint.taker import Taker
from moegen.runtime.checkpoint.weights import ExpertWeights, Projection


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What the spec expects of a layer: H, I in elements; this rank's experts ``first … first + experts - 1`` of
    ``total``; whether there are a gate and biases; which of gate, up and down have static input scales to read."""

    hidden: int
    intermediate: int
    first: int
    experts: int
    total: int
    gated: bool
    bias: bool
    static_sides: frozenset[str]

    @property
    def cut(self) -> slice:
        """This rank's experts."""
        return slice(self.first, self.first + self.experts)

    def sides(self) -> dict[str, tuple[int, int]]:
        """Side → (N rows, K columns)."""
        up = (self.intermediate, self.hidden)
        gate = {"gate": up} if self.gated else {}
        return {**gate, "up": up, "down": (self.hidden, self.intermediate)}


def read_per_expert(taker: Taker, shape: LayerShape) -> ExpertWeights:
    """``<e>.<leaf>.<suffix>``: one matrix, its scales and its scalars for each expert."""
    convention, dialect = taker.found.convention, taker.dialect
    suffixes = (dialect.codes, dialect.scales, dialect.second, dialect.input, *(("bias",) if shape.bias else ()))
    for expert in range(shape.total):
        taker.allow(*(f"{expert}.{leaf}.{suffix}" for leaf in convention.leaves for suffix in suffixes))
    sides, inputs = {}, []
    for side, (rows, columns) in shape.sides().items():
        bank, leaf = _blank(shape, side, rows, columns), convention.leaf(side)
        for index in range(shape.experts):
            base = f"{shape.first + index}.{leaf}"
            _copy(bank.codes[index], taker.codes(f"{base}.{dialect.codes}", (rows, columns // 2)))
            _copy(bank.scales[index], taker.scales(f"{base}.{dialect.scales}", (rows, columns // BLOCK)))
            bank.second[index] = decode_scale(taker, f"{base}.{dialect.second}")
            if bank.bias is not None:
                _copy(bank.bias[index], taker.floats(f"{base}.bias", ((rows,),)))
        if bank.input is not None:
            # gemm1 has one scale for the whole layer, so those of other ranks' experts are read too
            experts = range(shape.total) if side != "down" else range(shape.total)[shape.cut]
            scales = [decode_scale(taker, f"{expert}.{leaf}.{dialect.input}", weight=False) for expert in experts]
            everywhere = torch.tensor(scales)
            bank.input.copy_(everywhere[shape.cut] if side != "down" else everywhere)
            inputs += [everywhere] if side != "down" else []
        sides[side] = bank
    return _weights(sides, shape, inputs)


def read_stacked(taker: Taker, shape: LayerShape) -> ExpertWeights:
    """``<leaf>.<suffix>`` with experts along the first dimension of every tensor."""
    convention, dialect = taker.found.convention, taker.dialect
    sides, inputs = {}, []
    for side, (rows, columns) in shape.sides().items():
        bank, base = _blank(shape, side, rows, columns), convention.leaf(side)
        cut = (shape.first, shape.experts)
        _copy(bank.codes, taker.codes(f"{base}.{dialect.codes}", (shape.total, rows, columns // 2), *cut))
        _copy(bank.scales, taker.scales(f"{base}.{dialect.scales}", (shape.total, rows, columns // BLOCK), *cut))
        bank.second.copy_(decode_scales(taker, f"{base}.{dialect.second}", shape.total, 1)[shape.cut, 0])
        taker.allow(f"{base}.{dialect.input}")
        if bank.input is not None:
            everywhere = decode_scales(taker, f"{base}.{dialect.input}", shape.total, 1, weight=False)
            bank.input.copy_(everywhere[shape.cut, 0])
            inputs += [everywhere] if side != "down" else []
        if bank.bias is not None:
            _copy(bank.bias, taker.floats(f"{base}.bias", ((shape.total, rows),), *cut))
        sides[side] = bank
    return _weights(sides, shape, inputs)


def read_fused(taker: Taker, shape: LayerShape) -> ExpertWeights:
    """``<leaf>`` and ``<leaf>_<suffix>``: gate and up in one tensor, all experts in one tensor.

    Fused columns store K before N, packed along K, so the transpose of the bytes is the canonical form; their
    second-level and input scales are one number for everything. Fused rows store N before K and one second-level scale
    per expert and half.
    """
    gate_rows, up_rows = _halves(taker.found.convention.order, shape.intermediate)
    first = _read_leaf(taker, shape, "up", 2 * shape.intermediate, shape.hidden, 2)
    sides = {"gate": first.part(gate_rows, 0, shape), "up": first.part(up_rows, 1, shape)}
    down = _read_leaf(taker, shape, "down", shape.hidden, shape.intermediate, 1)
    sides["down"] = down.part(slice(None), 0, shape)
    return _weights(sides, shape, [] if first.inputs is None else [first.inputs])


@dataclass(frozen=True, kw_only=True)
class _Leaf:
    """A fused tensor of this rank's experts, N before K; scales of every expert and half are ``[total, halves]``."""

    bank: Projection
    second: torch.Tensor
    inputs: torch.Tensor | None

    def part(self, rows: slice, half: int, shape: LayerShape) -> Projection:
        """The rows of one side as a projection of its own."""
        bank = self.bank
        return Projection(
            codes=bank.codes[:, rows].contiguous(),
            scales=bank.scales[:, rows].contiguous(),
            second=self.second[shape.cut, half].contiguous(),
            input=None if self.inputs is None else self.inputs[shape.cut, half].contiguous(),
            bias=None if bank.bias is None else bank.bias[:, rows].contiguous(),
        )


def _read_leaf(taker: Taker, shape: LayerShape, side: str, rows: int, columns: int, halves: int) -> _Leaf:
    dialect, cut, bank = taker.dialect, (shape.first, shape.experts), _blank(shape, side, rows, columns)
    leaf, transposed = taker.found.convention.leaf(side), taker.found.convention.form is Form.FUSED_COLUMNS

    def stored(depth: int) -> tuple[int, ...]:
        return (shape.total, depth, rows) if transposed else (shape.total, rows, depth)

    def canonical(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return tensor.transpose(1, 2) if tensor is not None and transposed else tensor

    _copy(bank.codes, canonical(taker.codes(leaf, stored(columns // 2), *cut)))
    _copy(bank.scales, canonical(taker.scales(f"{leaf}_{dialect.scales}", stored(columns // BLOCK), *cut)))
    if bank.bias is not None:
        _copy(bank.bias, taker.floats(f"{leaf}_bias", ((shape.total, rows),), *cut))
    inputs = f"{leaf}_{dialect.input}"
    taker.allow(inputs)
    return _Leaf(
        bank=bank,
        second=decode_scales(taker, f"{leaf}_{dialect.second}", shape.total, halves),
        inputs=None if bank.input is None else decode_scales(taker, inputs, shape.total, halves, weight=False),
    )


def _halves(order: GateUpOrder, intermediate: int) -> tuple[slice, slice]:
    """Rows of the gate and of the up half of a fused matrix."""
    first, second = slice(0, intermediate), slice(intermediate, None)
    if order is GateUpOrder.INTERLEAVED:
        return slice(0, None, 2), slice(1, None, 2)
    return (second, first) if order is GateUpOrder.UP_GATE else (first, second)


def _blank(shape: LayerShape, side: str, rows: int, columns: int) -> Projection:
    """Storage of one side: scales and biases start as NaN and are all checked, so none can be used unread."""
    slots = torch.full((shape.experts,), UNREAD)
    return Projection(
        codes=torch.zeros(shape.experts, rows, columns // 2, dtype=torch.uint8),
        scales=torch.zeros(shape.experts, rows, columns // BLOCK, dtype=torch.uint8),
        second=slots,
        input=slots.clone() if side in shape.static_sides else None,
        bias=torch.full((shape.experts, rows), UNREAD) if shape.bias else None,
    )


def _copy(into: torch.Tensor, tensor: torch.Tensor | None) -> None:
    """Fills a slot; a missing tensor is already in the account, and the account ends in an error."""
    if tensor is not None:
        into.copy_(tensor)


def _weights(sides: dict[str, Projection], shape: LayerShape, inputs: list[torch.Tensor]) -> ExpertWeights:
    return ExpertWeights(
        gate=sides.get("gate"),
        up=sides["up"],
        down=sides["down"],
        first_expert=shape.first,
        layer_input=torch.cat([part.flatten() for part in inputs]).max() if inputs else None,
    )
