"""Timing of several candidates side by side: interleaved rounds, successive halving, adaptive repeats.

Nothing here touches a device: samples come from a :class:`Sampler`, so the same code runs on a CPU, on a GPU and on a
simulated noisy machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moegen.store.trials import TrialStatus
from moegen.tune.policy import MeasurePolicy, Stage
from moegen.tune.statistics import Timing, summarise


class CandidateFailed(Exception):
    """A candidate could not be timed; it leaves the race with ``status`` and the others go on.

    Args:
        status: how it failed.
        note: what is known of the cause.
    """

    def __init__(self, status: TrialStatus, note: str) -> None:
        self.status = status
        self.note = note
        super().__init__(status, note)


class Sampler(Protocol):
    """Runs a candidate ``calls`` times and returns the microseconds of each call."""

    def __call__(self, candidate: str, calls: int) -> Sequence[float]:
        """Raises :class:`CandidateFailed` when the candidate cannot be timed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one race found on one candidate: a timing, or a failure, and the stage at which it left."""

    candidate: str
    stage: Stage
    timing: Timing | None = None
    status: TrialStatus = TrialStatus.OK
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Duel:
    """Both sides of an interleaved pairing of the default with its challenger."""

    default: Measured
    challenger: Measured


class _Race:
    """Samples of the candidates still running."""

    def __init__(self, candidates: Sequence[str], sample: Sampler, stage: Stage) -> None:
        self.stage = stage
        self.running = list(candidates)
        self.left: dict[str, Measured] = {}
        self._sample = sample
        self._samples: dict[str, list[list[float]]] = {name: [] for name in candidates}
        self._turn = 0

    def round(self, calls: int) -> None:
        """Gives each running candidate one turn; who begins moves on by one from round to round."""
        offset = self._turn % max(len(self.running), 1)
        self._turn += 1
        for name in self.running[offset:] + self.running[:offset]:
            try:
                self._samples[name].append(list(self._sample(name, calls)))
            except CandidateFailed as failure:
                self._leave(name, Measured(candidate=name, stage=self.stage, status=failure.status, note=failure.note))

    def forget(self) -> None:
        """Drops the samples so far; used after warm-up."""
        self._samples = {name: [] for name in self._samples}

    def timing(self, name: str) -> Timing:
        return summarise(self._samples[name])

    def cut(self, ratio: float, pinned: Iterable[str]) -> None:
        """Removes candidates slower than ``ratio`` times the fastest, except pinned ones."""
        medians = {name: self.timing(name).median_us for name in self.running}
        if not medians:
            return
        limit = ratio * min(medians.values())
        for name in [name for name in self.running if medians[name] > limit and name not in pinned]:
            self._leave(name, Measured(candidate=name, stage=self.stage, timing=self.timing(name)))

    def _leave(self, name: str, measured: Measured) -> None:
        self.running.remove(name)
        self.left[name] = measured


def race(
    candidates: Sequence[str],
    sample: Sampler,
    policy: MeasurePolicy,
    *,
    pinned: Iterable[str] = (),
) -> list[Measured]:
    """Times candidates against each other and returns one result per candidate, in the given order.

    A first look drops candidates beyond ``screen_ratio`` times the best, a second those beyond ``halving_ratio``; the
    rest run interleaved rounds until every relative CI is within ``ci_bound`` or ``max_rounds`` is reached. ``pinned``
    candidates (the default) are never dropped for being slow.
    """
    pinned = frozenset(pinned)
    contest = _Race(candidates, sample, Stage.SCREEN)
    if policy.warmup_calls:
        contest.round(policy.warmup_calls)
        contest.forget()
    contest.round(policy.screen_calls)
    contest.cut(policy.screen_ratio, pinned)
    contest.forget()
    contest.stage = Stage.HALVING
    for _ in range(policy.halving_rounds):
        contest.round(policy.calls_per_round)
    contest.cut(policy.halving_ratio, pinned)
    contest.stage = Stage.FINAL
    for number in range(policy.halving_rounds + 1, policy.max_rounds + 1):
        contest.round(policy.calls_per_round)
        if number >= policy.min_rounds and all(
            contest.timing(name).relative_ci <= policy.ci_bound for name in contest.running
        ):
            break
    found = contest.left | {
        name: Measured(candidate=name, stage=Stage.FINAL, timing=contest.timing(name)) for name in contest.running
    }
    beaten = [name for name in candidates if found[name].status is TrialStatus.OK]
    if not contest.running and beaten:  # they lost only to candidates that failed later
        found |= {measured.candidate: measured for measured in race(beaten, sample, policy, pinned=pinned)}
    return [found[name] for name in candidates]


def duel(default: str, challenger: str, sample: Sampler, policy: MeasurePolicy) -> Duel | Measured:
    """Pairs the default with its challenger in fresh interleaved rounds.

    Returns the failed side's result instead when one of them fails: then nothing was confirmed.
    """
    contest = _Race([default, challenger], sample, Stage.CONFIRM)
    contest.round(max(policy.warmup_calls, 1))
    contest.forget()
    for _ in range(policy.confirm_rounds):
        contest.round(policy.calls_per_round)
        if contest.left:
            return next(iter(contest.left.values()))
    sides = [
        Measured(candidate=name, stage=Stage.CONFIRM, timing=contest.timing(name)) for name in (default, challenger)
    ]
    return Duel(default=sides[0], challenger=sides[1])
