"""Rows grouped by expert, each expert's padded to a multiple of a tile."""

from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.core.errors import LayoutError


@dataclass(frozen=True, kw_only=True)
class ExpertRows:
    """Where each expert's rows lie: ``counts`` real rows of each, padded to ``row_tile`` (0 rows stay 0)."""

    counts: tuple[int, ...]
    row_tile: int

    @property
    def tag(self) -> str:
        """``expert_rows_16``, …"""
        return f"expert_rows_{self.row_tile}"

    @property
    def offsets(self) -> tuple[int, ...]:
        """First padded row of each expert, and the number of padded rows last: E + 1 entries."""
        starts = [0]
        for count in self.counts:
            starts.append(starts[-1] + -(-count // self.row_tile) * self.row_tile)
        return tuple(starts)

    def rows(self) -> Tensor:
        """Padded row of each real row, in order: int64 ``[sum(counts)]``."""
        starts = [torch.arange(count) + start for count, start in zip(self.counts, self.offsets, strict=False)]
        return torch.cat([torch.zeros(0, dtype=torch.int64), *starts])

    def pack(self, dense: Tensor) -> Tensor:
        """``[sum(counts), ...]`` to ``[offsets[-1], ...]``; padding rows are 0."""
        padded = dense.new_zeros(self.offsets[-1], *dense.shape[1:])
        padded[self.rows()] = dense
        return padded

    def unpack(self, padded: Tensor) -> Tensor:
        """Inverse of :meth:`pack`."""
        return padded[self.rows()]

    def validate(self, padded: Tensor) -> None:
        """Checks that padding rows are 0.

        Raises:
            LayoutError: ``where`` names the first padding row that is not.
        """
        if padded.shape[0] != self.offsets[-1]:
            raise LayoutError(f"{padded.shape[0]} rows, expected {self.offsets[-1]}", self.tag, "pass all padded rows")
        padding = torch.ones(padded.shape[0], dtype=torch.bool)
        padding[self.rows()] = False
        stale = (padding.to(padded.device) & (padded.flatten(1) != 0).any(1)).nonzero()
        if len(stale):
            row = stale[0].item()
            expert = sum(start <= row for start in self.offsets) - 1
            raise LayoutError(
                "padding row is not 0", f"row {row} (expert {expert})", "the producer must write padding rows"
            )
