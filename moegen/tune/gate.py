"""The numerics gate: a candidate's output against the reference, row by row, before it may be timed or win.

A norm over the whole output hides one wrong token among many, so every row and every element is held to a bound of
its own, and the verdict names the first place where they part.
"""

import math
from dataclasses import dataclass

import torch

BLOCK = 16
"""Columns per block, as NVFP4 scales them; the verdict names a column's block since faults often come in whole
blocks."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Bounds on an output against the reference with the same quantised activations.

    Attributes:
        layer: norm of the difference over the norm of the reference, whole output.
        row: the same for each row.
        element: largest difference in a row over the row's root mean square.
    """

    layer: float
    row: float
    element: float


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """What the gate found. ``row``, ``column`` and ``block`` place the first element out of bounds; None when all
    is well."""

    passed: bool
    reason: str
    layer_error: float
    row_error: float
    row: int | None = None
    column: int | None = None

    @property
    def block(self) -> int | None:
        """Index of the 16 columns that hold the first element out of bounds."""
        return None if self.column is None else self.column // BLOCK


def gate_tolerance(w4a4: bool, intermediate: int) -> Tolerance:
    """Bounds for a layer with ``intermediate`` elements between its products.

    The layer bound is the published float gate. With quantised activations a different order of accumulation may move
    a value across a rounding midpoint: one E2M1 step of one of ``intermediate`` summands, at most about 0.8 of their
    root mean square, so a row moves by about ``1 / sqrt(intermediate)`` and a single element by a few times that.
    """
    if not w4a4:
        return Tolerance(layer=5e-3, row=2e-2, element=5e-2)
    step = 1.0 / math.sqrt(intermediate)
    return Tolerance(layer=5e-3, row=max(2e-2, step), element=max(5e-2, 4 * step))


def judge(output: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance, *, seed: int) -> GateVerdict:
    """Compares ``output`` with ``reference``, both ``[T, H]``, on the output's device; ``seed`` of the inputs is only
    reported.

    A row whose reference is all zero (a token without a local expert) must be exactly zero.
    """
    if output.shape != reference.shape:
        return _failure(
            f"shape {tuple(output.shape)}, expected {tuple(reference.shape)}", math.inf, math.inf, None, None
        )
    got = output.detach().double()
    want = reference.detach().to(got.device).double()
    if got.numel() == 0:
        return GateVerdict(passed=True, reason="", layer_error=0.0, row_error=0.0)
    bad = ~torch.isfinite(got)
    if bool(bad.any()):
        row, column = _first(bad)
        reason = f"seed {seed}, row {row}, block {column // BLOCK}, column {column}: {got[row, column].item()}"
        return _failure(reason, math.inf, math.inf, row, column)
    difference = (got - want).abs()
    rms = want.square().mean(-1, keepdim=True).sqrt()
    row_errors = _ratio(difference.square().mean(-1).sqrt(), rms.squeeze(-1))
    layer_error = float(_ratio(difference.norm(), want.norm()))
    row_error = float(row_errors.max())
    bad_elements = difference > tolerance.element * rms
    bad_rows = row_errors > tolerance.row
    bad_elements |= bad_rows.unsqueeze(-1) & (difference > tolerance.row * rms)
    if bool(bad_elements.any()):
        row, column = _first(bad_elements)
        reason = (
            f"seed {seed}, row {row}, block {column // BLOCK}, column {column}: {got[row, column].item():.6g}, "
            f"reference {want[row, column].item():.6g}; {int(bad_elements.any(-1).sum())} of {len(got)} rows differ"
        )
        return _failure(reason, layer_error, row_error, row, column)
    if layer_error > tolerance.layer:
        reason = f"seed {seed}: relative error of the whole output {layer_error:.3g}, allowed {tolerance.layer:.3g}"
        return _failure(reason, layer_error, row_error, None, None)
    return GateVerdict(passed=True, reason="", layer_error=layer_error, row_error=row_error)


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """``part / whole``, with 0 / 0 = 0: an exact zero is right where zero is wanted."""
    return torch.where(part == 0, torch.zeros_like(part), part / whole)


def _first(mask: torch.Tensor) -> tuple[int, int]:
    row, column = torch.nonzero(mask)[0].tolist()
    return row, column


def _failure(reason: str, layer_error: float, row_error: float, row: int | None, column: int | None) -> GateVerdict:
    return GateVerdict(
        passed=False, reason=reason, layer_error=layer_error, row_error=row_error, row=row, column=column
    )
