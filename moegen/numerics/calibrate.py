"""Static activation scales from sample tokens: run the layer unquantised and keep the largest magnitudes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.core.enums import Contract, RouterWeight
from moegen.core.errors import TensorError
from moegen.core.ops import Activation
from moegen.numerics.contracts import global_scale_pair
from moegen.numerics.quantize import tensor_amax
from moegen.numerics.reference.layer import LayerWeights, expert_hidden


@dataclass(frozen=True, kw_only=True)
class StaticScales:
    """Second-level activation scales.

    Attributes:
        x_scale: (g, p) of gemm1's input, one for all experts: fp32 ``[1, 2]``.
        h_scale: (g, p) of gemm2's input, one per expert: fp32 ``[E, 2]``.
        unseen: experts that no sample reached; they have the scale of the largest amax seen.
    """

    x_scale: Tensor
    h_scale: Tensor
    unseen: tuple[int, ...]


def calibrate(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    weights: LayerWeights,
    activation: Activation,
    *,
    contract: Contract = Contract.TE,
    router_weight: RouterWeight = RouterWeight.COMBINE,
    first_expert: int = 0,
    headroom: float = 1.0,
) -> StaticScales:
    """Observes sample tokens ``x [T, H]`` with their routing.

    Args:
        x, topk_ids, topk_weights: samples, as the layer would get them.
        weights, activation: the layer.
        contract: decides how an amax becomes a pair.
        router_weight: where the slot's weight is multiplied in.
        first_expert: id of this rank's first expert.
        headroom: factor on every amax; 1 maps the largest sample to the top of the range.

    Raises:
        TensorError: no sample reached any expert.
    """
    local = topk_ids.long() - first_expert
    x_amax = torch.zeros(())
    h_amax = torch.zeros(weights.experts)
    seen = torch.zeros(weights.experts, dtype=torch.bool)
    for expert in range(weights.experts):
        tokens, slots = (local == expert).nonzero(as_tuple=True)
        if not len(tokens):
            continue
        weight = topk_weights[tokens, slots].float()[:, None]
        rows = x[tokens].float() * weight if router_weight is RouterWeight.INPUT else x[tokens].float()
        hidden = expert_hidden(rows, weights, activation, expert)
        hidden = hidden * weight if router_weight is RouterWeight.PRE_QUANT else hidden
        seen[expert] = True
        x_amax = torch.maximum(x_amax, tensor_amax(rows))
        h_amax[expert] = tensor_amax(hidden)
    if not seen.any():
        raise TensorError("no sample reached any expert", "calibrate", "pass tokens routed to this rank's experts")
    h_amax[~seen] = h_amax[seen].amax()
    return StaticScales(
        x_scale=global_scale_pair(x_amax.reshape(1) * headroom, contract),
        h_scale=global_scale_pair(h_amax * headroom, contract),
        unseen=tuple((~seen).nonzero()[:, 0].tolist()),
    )
