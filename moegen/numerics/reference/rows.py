"""Ops that turn rows into rows: gather, quantize, and taking the activated half of the interleaved buffer."""

import torch
from torch import Tensor

from moegen.core.enums import ActScale, Contract, ScaleLayout, TokenDtype
from moegen.numerics.layouts import scale_layout
from moegen.numerics.quantize import Quantized, dynamic_pair, quantize_rows
from moegen.numerics.rounding import to_token

GROUP = 8
"""Columns of one group of the interleaved buffer: eight activated gates, then eight products."""


def gathered(x: Tensor, row_slot: Tensor, top_k: int, topk_weights: Tensor | None) -> Tensor:
    """fp32 row of each padded row ``[R, H]``: its token's values, times the slot's weight when given; padding is 0."""
    slot = row_slot.long().clamp(min=0)
    real = (row_slot >= 0)[:, None]
    if not len(x):
        return x.new_zeros(len(row_slot), x.shape[-1]).float()
    rows = x[slot // top_k].float()
    if topk_weights is not None:
        rows = rows * topk_weights.flatten()[slot][:, None]
    return torch.where(real, rows, 0.0)


def gather(x: Tensor, row_slot: Tensor, *, top_k: int, dtype: TokenDtype, topk_weights: Tensor | None = None) -> Tensor:
    """``x_rows [R, H]``: as they are, or multiplied by the slot's weight and rounded once to the token dtype."""
    return to_token(gathered(x, row_slot, top_k, topk_weights), dtype)


def quantize(
    rows: Tensor,
    real: Tensor,
    *,
    contract: Contract,
    layout: ScaleLayout,
    act_scale: ActScale,
    pair: Tensor | None = None,
    row_expert: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantises padded rows.

    Args:
        rows: ``[R, K]``, any float dtype.
        real: bool ``[R]``; other rows get zero codes and scales.
        contract, layout, act_scale: formula, layout of the scales, where the second-level scale comes from.
        pair: static ``[1, 2]`` or ``[E, 2]``; unused when dynamic, where the pair is made from the real rows.
        row_expert: int64 ``[R]``; picks each row's pair when there is one per expert.

    Returns:
        codes ``[R, pitch]``, scales in ``layout``, and the pair ``[1 or E, 2]`` that was used.
    """
    values = torch.where(real[:, None], rows.float(), 0.0)
    used = dynamic_pair(values, contract) if act_scale is ActScale.DYNAMIC_TENSOR else pair
    assert used is not None
    per_row = used if row_expert is None or len(used) == 1 else used[row_expert.clamp(min=0)]
    return *pad_rows(quantize_rows(values, per_row, contract), real, layout), used


def pad_rows(quantized: Quantized, real: Tensor, layout: ScaleLayout) -> tuple[Tensor, Tensor]:
    """Codes and scales of padded rows as a consumer loads them: padding rows are 0, scales lie in ``layout``."""
    # Some contracts give a zero block a scale other than 0; a padding row has none.
    codes = torch.where(real[:, None], quantized.codes, 0)
    scales = torch.where(real[:, None], quantized.scales, 0)
    return codes, scale_layout(layout).pack(scales)


def expert_of_rows(tile_expert: Tensor, rows: int) -> Tensor:
    """Expert of each padded row, -1 past the last tile: int64 ``[R]``."""
    if not len(tile_expert):
        return torch.zeros(rows, dtype=torch.int64)
    return tile_expert.long().repeat_interleave(rows // len(tile_expert))


def interleave(gate: Tensor, product: Tensor) -> Tensor:
    """``h_pair [R, 2I]``: eight activated gates, their eight products, and so on."""
    return torch.stack((gate.unflatten(-1, (-1, GROUP)), product.unflatten(-1, (-1, GROUP))), dim=-2).flatten(-3)


def deinterleave(h_pair: Tensor) -> Tensor:
    """``h_rows [R, I]``: the products of the interleaved buffer."""
    return h_pair.unflatten(-1, (-1, 2, GROUP))[..., 1, :].flatten(-2)
