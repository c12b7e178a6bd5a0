"""The layer without padding, packing or rounding points, in fp64 or fp32: what the float gates compare with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.core.enums import ActivationKind, Contract, RouterWeight
from moegen.core.ops import Activation
from moegen.numerics.activations import clamp, relu2
from moegen.numerics.layouts import Halves, Projection
from moegen.numerics.quantize import Quantized, dequantize, quantize_rows


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """A layer's weights as a checkpoint has them.

    Attributes:
        w1: (gate, up), or one projection: codes ``[E, I, H/2]``.
        w2: codes ``[E, H, I/2]``.
        w1_alpha: second-level decode scales, fp32 ``[E, halves]``; w2_alpha ``[E, 1]``.
        w1_bias: fp32 ``[E, I]`` of each half, or None; w2_bias ``[E, H]`` or None.
    """

    w1: Halves
    w2: Projection
    w1_alpha: Tensor
    w2_alpha: Tensor
    w1_bias: tuple[Tensor, ...] | None = None
    w2_bias: Tensor | None = None

    @property
    def experts(self) -> int:
        """E."""
        return self.w2.experts


@dataclass(frozen=True, kw_only=True)
class ActivationQuantizer:
    """Quantises activations on the way as W4A4 does: contract, ``x_scale [1, 2]``, ``h_scale [E or 1, 2]``."""

    contract: Contract
    x_scale: Tensor
    h_scale: Tensor

    def hidden(self, rows: Tensor) -> Tensor:
        """gemm1's input as its codes say, in the rows' dtype."""
        return self._apply(rows, self.x_scale[0])

    def intermediate(self, rows: Tensor, expert: int) -> Tensor:
        """gemm2's input as its codes say, in the rows' dtype."""
        return self._apply(rows, self.h_scale[expert if len(self.h_scale) > 1 else 0])

    def _apply(self, rows: Tensor, pair: Tensor) -> Tensor:
        return dequantize(quantize_rows(rows, pair, self.contract), pair[1], rows.dtype)


def weight_matrix(half: Projection, alpha: Tensor, expert: int, dtype: torch.dtype) -> Tensor:
    """One expert's dequantised matrix ``[N, K]``."""
    return dequantize(Quantized(codes=half.codes[expert], scales=half.scales[expert]), alpha, dtype)


def activation_exact(activation: Activation, values: tuple[Tensor, ...]) -> Tensor:
    """The activation by its textbook formula, in the dtype of its arguments."""
    if len(values) == 1:
        return relu2(values[0]) if activation.kind is ActivationKind.RELU2 else values[0] * torch.sigmoid(values[0])
    gate, up = values
    limit = activation.limit
    if activation.kind is ActivationKind.GEGLU_TANH:
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    if activation.kind is ActivationKind.SITU:
        assert activation.beta is not None
        bounded = _soft(gate, activation.beta) * torch.sigmoid(gate)
        return bounded * (up if activation.linear_beta is None else _soft(up, activation.linear_beta))
    if limit is None:
        return gate * torch.sigmoid(gate) * up
    if activation.kind is ActivationKind.SWIGLUSTEP:
        return (gate * torch.sigmoid(gate)).clamp(max=limit) * clamp(up, limit)
    gate = gate.clamp(max=limit)
    if activation.kind is ActivationKind.SWIGLU_OAI:
        assert activation.alpha is not None
        assert activation.beta is not None
        return (clamp(up, limit) + activation.beta) * gate * torch.sigmoid(activation.alpha * gate)
    return gate * torch.sigmoid(gate) * clamp(up, limit)


def _soft(x: Tensor, beta: float) -> Tensor:
    return beta * torch.tanh(x / beta)


def expert_hidden(rows: Tensor, weights: LayerWeights, activation: Activation, expert: int) -> Tensor:
    """Activated values ``[n, I]`` of rows ``[n, H]``, in the rows' dtype."""
    values = []
    for index, half in enumerate(weights.w1):
        value = rows @ weight_matrix(half, weights.w1_alpha[expert, index], expert, rows.dtype).T
        bias = None if weights.w1_bias is None else weights.w1_bias[index][expert].to(rows.dtype)
        values.append(value if bias is None else value + bias)
    return activation_exact(activation, tuple(values))


def expert_output(hidden: Tensor, weights: LayerWeights, expert: int) -> Tensor:
    """Rows ``[n, H]`` of activated values ``[n, I]``, in their dtype."""
    value = hidden @ weight_matrix(weights.w2, weights.w2_alpha[expert, 0], expert, hidden.dtype).T
    return value if weights.w2_bias is None else value + weights.w2_bias[expert].to(hidden.dtype)


def layer_reference(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    weights: LayerWeights,
    activation: Activation,
    *,
    router_weight: RouterWeight = RouterWeight.COMBINE,
    quantizer: ActivationQuantizer | None = None,
    first_expert: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The whole layer, expert by expert.

    Args:
        x: ``[T, H]``, any float dtype.
        topk_ids: ``[T, k]``; ids outside this rank's experts contribute 0.
        topk_weights: ``[T, k]``.
        weights, activation: the layer.
        router_weight: where the slot's weight is multiplied in.
        quantizer: None for W4A16; else activations go through NVFP4 at the same two places as in the kernels.
        first_expert: id of this rank's first expert.
        dtype: fp64, or fp32 for speed.

    Returns:
        ``[T, H]`` in ``dtype``.
    """
    y = torch.zeros(x.shape, dtype=dtype, device=x.device)
    local = topk_ids.long() - first_expert
    for expert in range(weights.experts):
        tokens, slots = (local == expert).nonzero(as_tuple=True)
        if not len(tokens):
            continue
        weight = topk_weights[tokens, slots].to(dtype)[:, None]
        rows = x[tokens].to(dtype)
        rows = rows * weight if router_weight is RouterWeight.INPUT else rows
        rows = rows if quantizer is None else quantizer.hidden(rows)
        hidden = expert_hidden(rows, weights, activation, expert)
        hidden = hidden * weight if router_weight is RouterWeight.PRE_QUANT else hidden
        hidden = hidden if quantizer is None else quantizer.intermediate(hidden, expert)
        output = expert_output(hidden, weights, expert)
        output = output * weight if router_weight is RouterWeight.COMBINE else output
        y.index_add_(0, tokens, output)
    return y
