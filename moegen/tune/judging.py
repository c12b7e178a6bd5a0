"""Gates the pipelines of one numerics class at one point, with a reference for a few tokens of many.

A token's output does not depend on the other tokens (unless a step takes the largest value of a whole tensor), so the
reference is computed for tokens spread over the batch; every other row is held against the first pipeline that passed.
Where two pipelines part, the reference of that very row says which of them is wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from moegen.core.package import Pipeline
from moegen.runtime.bank import computed_scales
from moegen.tune.gate import GateVerdict, Tolerance, judge
from moegen.tune.inputs import TokenInputs

REFERENCE_TOKENS = 4
"""Tokens whose reference is computed; each costs the weights of its experts, decoded to fp64."""
Reference = Callable[[TokenInputs], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """Verdict on one pipeline; ``withdrawn`` names one that had passed before and is now known to be wrong, and why."""

    verdict: GateVerdict
    withdrawn: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Jury:
    """What the pipelines of one numerics class must compute at one point.

    Args:
        inputs: the whole batch.
        reference: computes the output of some of its tokens.
        tolerance: bounds against the reference.
        whole: True when tokens depend on each other, so that the reference needs all of them.
    """

    inputs: TokenInputs
    reference: Reference
    tolerance: Tolerance
    whole: bool = False
    _accepted: tuple[str, torch.Tensor] | None = None

    def __post_init__(self) -> None:
        tokens = len(self.inputs.x)
        count = tokens if self.whole else min(tokens, REFERENCE_TOKENS)
        spread = torch.linspace(0, max(tokens - 1, 0), count, dtype=torch.float64).round().long()
        self._rows = spread.to(self.inputs.x.device)
        self._wanted = self.reference(self.inputs.rows(self._rows))

    def rule(self, name: str, output: torch.Tensor) -> Ruling:
        """Judges the output ``[T, H]`` of one pipeline."""
        if output.shape != self.inputs.x.shape:
            return Ruling(verdict=judge(output, self.inputs.x, self.tolerance, seed=self.inputs.seed))
        verdict = self._against_reference(output, self._rows, self._wanted)
        if not verdict.passed or len(self._rows) == len(output):
            return Ruling(verdict=verdict)
        if self._accepted is None:
            return self._first(name, output, verdict)
        fellow, theirs = self._accepted
        if judge(output, theirs, _doubled(self.tolerance), seed=self.inputs.seed).passed:
            return Ruling(verdict=verdict)
        apart = (output.double() - theirs.double()).abs().nan_to_num(torch.inf).amax(-1)
        row = apart.argmax().reshape(1)
        wanted = self.reference(self.inputs.rows(row))
        mine, other = (self._against_reference(found, row, wanted) for found in (output, theirs))
        if not mine.passed:
            return Ruling(verdict=mine)
        if other.passed:  # both keep the bounds even where they part most
            return Ruling(verdict=verdict)
        self._accepted = name, output
        return Ruling(verdict=verdict, withdrawn={fellow: other.reason})

    def _first(self, name: str, output: torch.Tensor, verdict: GateVerdict) -> Ruling:
        finite = judge(output, output.nan_to_num(), self.tolerance, seed=self.inputs.seed)
        if not finite.passed:
            return Ruling(verdict=finite)
        self._accepted = name, output
        return Ruling(verdict=verdict)

    def _against_reference(self, output: torch.Tensor, rows: torch.Tensor, wanted: torch.Tensor) -> GateVerdict:
        """A verdict whose row is that of the batch."""
        found = judge(output[rows], wanted, self.tolerance, seed=self.inputs.seed)
        if found.row is None:
            return found
        row = int(rows[found.row])
        return GateVerdict(
            passed=False,
            reason=f"token {row}: {found.reason}",
            layer_error=found.layer_error,
            row_error=found.row_error,
            row=row,
            column=found.column,
        )


def depends_on_all_tokens(pipeline: Pipeline) -> bool:
    """True when a step takes a scale from all tokens together."""
    return bool(computed_scales(pipeline))


def _doubled(tolerance: Tolerance) -> Tolerance:
    """Two outputs within a tolerance of the truth are within twice that of each other."""
    return Tolerance(layer=2 * tolerance.layer, row=2 * tolerance.row, element=2 * tolerance.element)
