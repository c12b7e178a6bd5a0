"""Order statistics of timing samples: medians and their confidence intervals, with no assumption on the noise's
shape."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Summary of one candidate's samples, in microseconds.

    ``ci_us`` is half the width of the 95 % confidence interval of the median; infinite below six samples, where no
    two order statistics enclose the median that surely.
    """

    median_us: float
    p20_us: float
    p80_us: float
    ci_us: float
    n: int
    rounds: int

    @property
    def has_interval(self) -> bool:
        """True when there were rounds enough for an interval."""
        return math.isfinite(self.ci_us)

    @property
    def relative_ci(self) -> float:
        """``ci_us`` over the median."""
        return self.ci_us / self.median_us if self.median_us > 0 else math.inf


def quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of an ascending, non-empty sequence, linear between its points."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarise(rounds: Sequence[Sequence[float]]) -> Timing:
    """Summary of samples grouped by round.

    The interval is taken over the rounds' medians: calls of one round share its clock and cache state, so counting
    them as independent would make the interval too narrow.

    Raises:
        ValueError: there is no sample.
    """
    samples = sorted(sample for group in rounds for sample in group)
    if not samples:
        raise ValueError("no samples")
    medians = sorted(quantile(sorted(group), 0.5) for group in rounds if group)
    low, high = median_interval(medians)
    return Timing(
        median_us=quantile(samples, 0.5),
        p20_us=quantile(samples, 0.2),
        p80_us=quantile(samples, 0.8),
        ci_us=(high - low) / 2,
        n=len(samples),
        rounds=len(medians),
    )


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the median by the sign test; infinite when there are too few values."""
    rank = _interval_rank(len(ordered))
    if rank == 0:
        return -math.inf, math.inf
    return ordered[rank - 1], ordered[len(ordered) - rank]


@lru_cache(maxsize=256)
def _interval_rank(n: int) -> int:
    """Largest r for which the r-th smallest and r-th largest of n values enclose the median with 95 % confidence."""
    tails = [0.0]
    for i in range(n // 2):
        tails.append(tails[-1] + math.comb(n, i) / 2**n)
    return bisect_left(tails, (1 - _CONFIDENCE) / 2 + 1e-15) - 1
