"""How two quantised tensors differ: rate, width in E2M1 steps, and the first place, for gates on random data."""

from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.core.abi import BLOCK
from moegen.core.errors import TensorError
from moegen.numerics import e2m1
from moegen.numerics.quantize import Quantized

CODE_RATE = 1e-3
"""Largest share of differing codes between two orders of accumulation."""


@dataclass(frozen=True, kw_only=True)
class CodeReport:
    """Differences of codes and scales.

    Attributes:
        elements, blocks: how many were compared.
        codes, scales: how many differ.
        widest: largest distance of two codes, in steps of the E2M1 ladder (-6 … 6 has 14 steps).
        first: row, block, element within the block, and both bytes, of the first difference; empty when equal.
    """

    elements: int
    blocks: int
    codes: int
    scales: int
    widest: int
    first: str

    @property
    def equal(self) -> bool:
        """No byte differs."""
        return not self.codes and not self.scales

    def within(self, rate: float = CODE_RATE) -> bool:
        """At most ``rate`` of the codes differ, each by at most one step."""
        return self.widest <= 1 and self.codes <= rate * self.elements

    def __str__(self) -> str:
        if self.equal:
            return f"{self.elements} codes and {self.blocks} scales equal"
        shares = f"{self.codes} of {self.elements} codes and {self.scales} of {self.blocks} scales differ"
        return f"{shares}, by at most {self.widest} steps; first at {self.first}"


def compare_codes(got: Quantized, expected: Quantized, label: str = "") -> CodeReport:
    """Compares codes and linear scales byte by byte.

    Args:
        got, expected: ``[R, pitch]`` codes and ``[R, K/16]`` scales of equal shapes.
        label: put before the first difference, to name seed or buffer.

    Raises:
        TensorError: the shapes differ.
    """
    if got.codes.shape != expected.codes.shape or got.scales.shape != expected.scales.shape:
        raise TensorError(
            f"codes {tuple(got.codes.shape)} and scales {tuple(got.scales.shape)}",
            label or "compare_codes",
            f"expected {tuple(expected.codes.shape)} and {tuple(expected.scales.shape)}",
        )
    left, right = (e2m1.unpack(side.codes, expected.columns) for side in (got, expected))
    wrong_codes, wrong_scales = left != right, got.scales != expected.scales
    steps = (_ladder(left) - _ladder(right)).abs()
    return CodeReport(
        elements=left.numel(),
        blocks=got.scales.numel(),
        codes=int(wrong_codes.sum()),
        scales=int(wrong_scales.sum()),
        widest=int(steps.max()) if steps.numel() else 0,
        first=_first(left, right, wrong_codes, got.scales, expected.scales, wrong_scales, label),
    )


def _ladder(codes: Tensor) -> Tensor:
    index = (codes & 7).int()
    return torch.where(codes >= 8, -index, index)


def _first(
    left: Tensor, right: Tensor, codes: Tensor, got_scales: Tensor, scales: Tensor, wrong_scales: Tensor, label: str
) -> str:
    wrong_blocks = codes.unflatten(-1, (-1, BLOCK)).any(-1) | wrong_scales
    places = wrong_blocks.nonzero()
    if not len(places):
        return ""
    row, block = places[0].tolist()
    where = f"{label}{': ' if label else ''}row {row}, block {block}"
    if wrong_scales[row, block]:
        return f"{where}: scale {int(got_scales[row, block]):#04x}, expected {int(scales[row, block]):#04x}"
    column = int(codes[row, block * BLOCK : (block + 1) * BLOCK].nonzero()[0, 0])
    at = block * BLOCK + column
    return f"{where}, element {column}: code {int(left[row, at]):#x}, expected {int(right[row, at]):#x}"
