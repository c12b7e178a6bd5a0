"""The weighted sum over a token's k rows."""

import torch
from torch import Tensor

from moegen.core.enums import TokenDtype
from moegen.numerics.elementary import fma
from moegen.numerics.rounding import to_token


def combine_ordered(
    out_rows: Tensor, slot_row: Tensor, *, top_k: int, dtype: TokenDtype, topk_weights: Tensor | None
) -> Tensor:
    """``y [T, H]``: for ascending slots that have a row, s = fma(w, row, s) in fp32, or s + row without weights; one
    rounding at the end. A token without rows is 0."""
    slots = slot_row.long().reshape(-1, top_k)
    total = torch.zeros(len(slots), out_rows.shape[-1])
    for j in range(top_k):
        has_row = (slots[:, j] >= 0).nonzero()[:, 0]
        row = out_rows[slots[has_row, j]].float()
        if topk_weights is None:
            total[has_row] = total[has_row] + row
        else:
            total[has_row] = fma(topk_weights[has_row, j][:, None].expand_as(row), row, total[has_row])
    return to_token(total, dtype)


def accumulate_rows(
    values: Tensor, row_slot: Tensor, y_acc: Tensor, *, top_k: int, topk_weights: Tensor | None
) -> Tensor:
    """``y_acc [T, H]`` plus each real row's ``w · value`` (fp32 product, then fp32 add), in ascending rows: one of the
    orders that atomic adds may take."""
    real = (row_slot >= 0).nonzero()[:, 0]
    slots = row_slot[real].long()
    added = values[real] if topk_weights is None else values[real] * topk_weights.flatten()[slots][:, None]
    return y_acc.index_add(0, slots // top_k, added)
