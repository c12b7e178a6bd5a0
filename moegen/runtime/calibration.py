"""Static activation scales for a checkpoint that has none: from sample tokens through the layer itself."""

from dataclasses import replace

import torch

from moegen.core.errors import CheckpointError
from moegen.core.ops import Numerics, OpSpec
from moegen.numerics.calibrate import calibrate
from moegen.numerics.layouts import Projection as CodedProjection
from moegen.numerics.reference.layer import LayerWeights
from moegen.runtime.checkpoint.weights import ExpertWeights, Projection


def layer_weights(weights: ExpertWeights) -> LayerWeights:
    """Canonical weights in the form of the reference layer."""
    sides = [side for side in (weights.gate, weights.up) if side is not None]
    biases = tuple(side.bias for side in sides if side.bias is not None)
    return LayerWeights(
        w1=tuple(_coded(side) for side in sides),
        w2=_coded(weights.down),
        w1_alpha=torch.stack([side.second for side in sides], dim=1),
        w2_alpha=weights.down.second[:, None],
        w1_bias=biases or None,
        w2_bias=weights.down.bias,
    )


def with_calibrated_inputs(
    weights: ExpertWeights,
    op: OpSpec,
    numerics: Numerics,
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    *,
    headroom: float = 1.0,
) -> ExpertWeights:
    """The same weights with input scales that sample tokens called for.

    Experts that no sample reached get the largest scale seen, so every slot is filled with a measured number.

    Args:
        weights: whose input scales are replaced.
        op: the layer's gemm1, for its activation.
        numerics: the layer's numerics class.
        x, topk_ids, topk_weights: sample tokens ``[T, H]``, their experts ``[T, k]`` and router weights ``[T, k]``.
        headroom: factor on every magnitude, for tokens that the samples do not have.

    Raises:
        CheckpointError: the op has no activation, so it is no gemm1.
        TensorError: no sample reached any of these experts.
    """
    if op.activation is None:
        raise CheckpointError(f"{op.kind.value} has no activation", "calibration", "pass a gemm1")
    scales = calibrate(
        x,
        topk_ids,
        topk_weights,
        layer_weights(weights),
        op.activation,
        contract=numerics.contract,
        router_weight=numerics.router_weight,
        first_expert=weights.first_expert,
        headroom=headroom,
    )
    gemm1 = scales.x_scale[0, 1].expand(weights.experts).contiguous()
    gate = weights.gate
    return ExpertWeights(
        gate=None if gate is None else replace(gate, input=gemm1),
        up=replace(weights.up, input=gemm1),
        down=replace(weights.down, input=scales.h_scale[:, 1].contiguous()),
        first_expert=weights.first_expert,
    )


def _coded(side: Projection) -> CodedProjection:
    return CodedProjection(codes=side.codes, scales=side.scales)
