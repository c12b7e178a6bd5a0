"""Grouped matrix products: rows of each expert times its weights, then the exact chain up to the stored values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.core.enums import RouterWeight, ScaleLayout
from moegen.core.ops import Activation, Numerics
from moegen.numerics.activations import gate_value, gated_product, ungated_value
from moegen.numerics.layouts import Halves, split_rows, weight_pack
from moegen.numerics.quantize import Quantized, unscaled_values


@dataclass(frozen=True, kw_only=True)
class Bank:
    """A packed weight bank and how to read it.

    ``tensors`` by ABI suffix (``codes`` and ``scales``, or ``packed``), ``alpha [E, halves]`` fp32, ``bias [E, N]``
    fp32 in packed row order or None; ``rows`` of one half, ``depth`` K.
    """

    pack: str
    layout: ScaleLayout
    tensors: Mapping[str, Tensor]
    alpha: Tensor
    bias: Tensor | None
    rows: int
    depth: int

    @property
    def halves(self) -> int:
        """2 for gate and up, else 1."""
        return self.alpha.shape[1]

    def expert(self, index: int) -> Halves:
        """One expert's codes and linear scales, ``[1, N, ...]`` each half."""
        one = {name: tensor[index : index + 1] for name, tensor in self.tensors.items()}
        return weight_pack(self.pack).unpack(
            one, rows=self.rows, depth=self.depth, halves=self.halves, layout=self.layout
        )

    def half_bias(self, index: int) -> tuple[Tensor, ...] | None:
        """One expert's bias ``[N]`` of each half."""
        return None if self.bias is None else split_rows(self.bias[index], self.halves, dim=-1)


@dataclass(frozen=True, kw_only=True)
class Span:
    """The real rows of one expert among the padded rows."""

    expert: int
    start: int
    stop: int


def spans(expert_offsets: Tensor, expert_rows: Tensor) -> Iterator[Span]:
    """Experts that have rows, in order."""
    for expert, count in enumerate(expert_rows.tolist()):
        if count:
            start = int(expert_offsets[expert])
            yield Span(expert=expert, start=start, stop=start + count)


def accumulate(rows: Tensor, weights: Tensor) -> Tensor:
    """``rows [n, K] · weights [N, K]ᵀ``: products and sums in fp64, rounded once to fp32.

    Where all partial sums are exact in fp32 (``moegen.numerics.exact``) this equals any order of accumulation.
    """
    return (rows.double() @ weights.double().T).float()


def products(rows: Tensor, bank: Bank, span: Span, decode: Tensor | None) -> tuple[Tensor, ...]:
    """Steps 1 to 3 of the chain for each half: accumulate, times alpha, plus bias. fp32 ``[n, N]``.

    ``decode`` is the rows' second-level decode scale (W4A4) or None; weight and row scale are multiplied first.
    """
    biases = bank.half_bias(span.expert)
    values = []
    for index, half in enumerate(bank.expert(span.expert)):
        weights = unscaled_values(Quantized(codes=half.codes[0], scales=half.scales[0]))
        alpha = bank.alpha[span.expert, index]
        value = accumulate(rows, weights) * (alpha if decode is None else alpha * decode)
        values.append(value if biases is None else value + biases[index])
    return tuple(values)


RowReader = Callable[[int, int], Tensor]
"""fp32 values of padded rows [start, stop): ``[stop - start, K]``."""


@dataclass(frozen=True, kw_only=True)
class Activated:
    """fp32 ``[R, I]`` buffers after the activation; ``gate`` is G(gate) where it was asked for."""

    gate: Tensor | None
    product: Tensor


def gemm1(
    read_rows: RowReader,
    bank: Bank,
    activation: Activation,
    numerics: Numerics,
    *,
    row_slot: Tensor,
    grouping: Iterator[Span],
    decode: Tensor | None = None,
    topk_weights: Tensor | None = None,
    keep_gate: bool = False,
) -> Activated:
    """Steps 1 to 5 for all rows; the stored form is made of it by the caller. Padding rows are 0."""
    filled = list(grouping)
    product = torch.zeros(len(row_slot), bank.rows)
    gate = torch.zeros_like(product) if keep_gate else None
    if not filled:
        return Activated(gate=gate, product=product)
    parts = [products(read_rows(span.start, span.stop), bank, span, decode) for span in filled]
    halves = [torch.cat(half) for half in zip(*parts, strict=True)]
    here = torch.cat([torch.arange(span.start, span.stop) for span in filled])
    if bank.halves == 2:
        value = gated_product(activation, halves[0], halves[1], numerics.gate_round)
    else:
        value = ungated_value(activation, halves[0])
    if numerics.router_weight is RouterWeight.PRE_QUANT:
        assert topk_weights is not None
        value = value * topk_weights.flatten()[row_slot[here].long()][:, None]
    product[here] = value
    if gate is not None:
        gate[here] = gate_value(activation, halves[0])
    return Activated(gate=gate, product=product)


def gemm2(read_rows: RowReader, bank: Bank, *, rows: int, grouping: Iterator[Span], decode: Tensor | None) -> Tensor:
    """Steps 1 to 3 of the second product: fp32 ``[R, H]``. ``decode`` is fp32 ``[E]`` or ``[1]``, or None."""
    output = torch.zeros(rows, bank.rows)
    for span in grouping:
        scale = None if decode is None else decode[span.expert if len(decode) > 1 else 0]
        output[span.start : span.stop] = products(read_rows(span.start, span.stop), bank, span, scale)[0]
    return output
