"""Row order of a fused gate/up matrix: which half comes first, and in groups of how many rows they alternate."""

from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.core.enums import GateUpOrder
from moegen.core.errors import LayoutError

INTERLEAVES = (0, 1, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class GateUpRows:
    """Order of the 2I rows (dimension -2) of W1, of its scales and, along the last dimension, of its bias.

    ``interleave`` 0 keeps the halves whole ([gate; up]); n alternates groups of n rows, the first half's group first.
    """

    gate_first: bool = True
    interleave: int = 0

    def __post_init__(self) -> None:
        if self.interleave not in INTERLEAVES:
            raise LayoutError(f"interleave {self.interleave}", "gate/up rows", f"one of {INTERLEAVES}")

    @property
    def tag(self) -> str:
        """``gate_up_8``, ``up_gate_0``, …"""
        return f"{'gate_up' if self.gate_first else 'up_gate'}_{self.interleave}"

    def sources(self, intermediate: int) -> Tensor:
        """For each of the 2I fused rows, its index among gate rows (0 … I-1) and up rows (I … 2I-1): int64 ``[2I]``.

        Raises:
            LayoutError: I is not a whole number of groups.
        """
        group = self.interleave or intermediate
        if intermediate % max(group, 1):
            raise LayoutError(
                f"{intermediate} rows are not whole groups of {group}",
                self.tag,
                "choose an interleave that divides the rows",
            )
        halves = (
            torch.arange(2 * intermediate).reshape(2, -1, group)
            if intermediate
            else torch.zeros(2, 0, 1, dtype=torch.int64)
        )
        ordered = halves if self.gate_first else halves.flip(0)
        return ordered.transpose(0, 1).flatten()

    def pack(self, gate: Tensor, up: Tensor, dim: int = -2) -> Tensor:
        """Fuses two halves of equal shape along ``dim``; raises as :meth:`sources`, and on unequal shapes."""
        if gate.shape != up.shape:
            raise LayoutError(
                f"gate {tuple(gate.shape)} and up {tuple(up.shape)} differ", self.tag, "pass halves of one shape"
            )
        order = self.sources(gate.shape[dim]).to(gate.device)
        return torch.cat((gate, up), dim=dim).index_select(dim, order)

    def unpack(self, fused: Tensor, dim: int = -2) -> tuple[Tensor, Tensor]:
        """Inverse of :meth:`pack`: (gate, up)."""
        if fused.shape[dim] % 2:
            raise LayoutError(f"{fused.shape[dim]} fused rows", self.tag, "a fused matrix has as many gate as up rows")
        intermediate = fused.shape[dim] // 2
        order = torch.argsort(self.sources(intermediate)).to(fused.device)
        both = fused.index_select(dim, order)
        return both.narrow(dim, 0, intermediate), both.narrow(dim, intermediate, intermediate)


ROWS8 = GateUpRows(interleave=8)


def checkpoint_rows(order: GateUpOrder) -> GateUpRows:
    """The row order that a spec says a checkpoint has."""
    if order is GateUpOrder.INTERLEAVED:
        return GateUpRows(interleave=1)
    return GateUpRows(gate_first=order is GateUpOrder.GATE_UP)
