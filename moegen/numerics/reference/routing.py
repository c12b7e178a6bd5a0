"""The route op: slots grouped by expert, an expert's rows padded to whole tiles."""

from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.core.abi import row_capacity
from moegen.numerics.layouts import ExpertRows


@dataclass(frozen=True, kw_only=True)
class Routing:
    """What ``route`` writes, all int32 and named as the layer's buffers (docs/architecture.md).

    ``expert_offsets [E+1]``, ``expert_rows [E]``, ``row_slot [R]``, ``slot_row [T·k]``, ``tile_expert [R/row_tile]``,
    ``totals [4]`` (tiles, padded rows, valid slots, active experts).
    """

    expert_offsets: Tensor
    expert_rows: Tensor
    row_slot: Tensor
    slot_row: Tensor
    tile_expert: Tensor
    totals: Tensor

    def buffers(self) -> dict[str, Tensor]:
        """The tensors by buffer name."""
        return dict(vars(self))


def route(topk_ids: Tensor, *, experts: int, row_tile: int, first_expert: int = 0) -> Routing:
    """Groups slots by expert, ascending within an expert.

    Args:
        topk_ids: ``[T, k]`` int32 or int64; ids outside [first_expert, first_expert + experts) have no row.
        experts: experts on this rank.
        row_tile: rows of an expert are padded to a multiple of this.
        first_expert: id of this rank's first expert.
    """
    tokens, top_k = topk_ids.shape
    capacity = row_capacity(tokens, top_k, experts, row_tile)
    local = topk_ids.flatten().long() - first_expert
    valid = (local >= 0) & (local < experts)
    # Every invalid slot goes to one bin past the last expert; the stable sort keeps ascending slots.
    bins = torch.where(valid, local, experts)
    slots = torch.argsort(bins, stable=True)[: int(valid.sum())]
    counts = torch.bincount(bins, minlength=experts + 1)[:experts]
    grouping = ExpertRows(counts=tuple(counts.tolist()), row_tile=row_tile)
    rows = grouping.rows()

    row_slot = torch.full((capacity,), -1, dtype=torch.int64)
    row_slot[rows] = slots
    slot_row = torch.full((tokens * top_k,), -1, dtype=torch.int64)
    slot_row[slots] = rows
    offsets = torch.tensor(grouping.offsets)
    tile_expert = torch.full((capacity // row_tile,), -1, dtype=torch.int64)
    tiles = torch.repeat_interleave(torch.arange(experts), offsets.diff() // row_tile)
    tile_expert[: len(tiles)] = tiles
    totals = torch.tensor([len(tiles), grouping.offsets[-1], len(slots), int((counts > 0).sum())])
    return Routing(
        expert_offsets=offsets.int(),
        expert_rows=counts.int(),
        row_slot=row_slot.int(),
        slot_row=slot_row.int(),
        tile_expert=tile_expert.int(),
        totals=totals.int(),
    )
