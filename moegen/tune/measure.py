"""Timing of several candidates side by side: interleaved rounds, successive halving, adaptive repeats.

Nothing here touches a device: samples come from a :class:`Sampler`, so the same code runs on a CPU, on a GPU and on a
simulated noisy machine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moegen.store.trials import TrialStatus
from moegen.tune.policy import MeasurePolicy, Stage
from moegen.tune.statistics import Timing, quantile, summarise

Clock = Callable[[str], float | None]
"""The device's clock in MHz during a candidate's latest turn; None where it is not known."""


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
    """What one race found on one candidate: a timing, or a failure, and the stage at which it left.

    ``clock_ratio``: median clock of the rounds that count, over the median of all turns of the race.
    """

    candidate: str
    stage: Stage
    timing: Timing | None = None
    status: TrialStatus = TrialStatus.OK
    clock_ratio: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Duel:
    """Both sides of an interleaved pairing of the default with its challenger."""

    default: Measured
    challenger: Measured


class _Race:
    """Samples of the candidates still running."""

    def __init__(
        self, candidates: Sequence[str], sample: Sampler, policy: MeasurePolicy, clock: Clock, stage: Stage
    ) -> None:
        self.stage = stage
        self.running = list(candidates)
        self.left: dict[str, Measured] = {}
        self._sample, self._policy, self._clock = sample, policy, clock
        self._turns: dict[str, list[_Turn]] = {name: [] for name in candidates}
        self._call_us: dict[str, float] = {}
        self._turn = 0

    def round(self, calls: int) -> None:
        """Gives each running candidate one turn; who begins moves on by one from round to round.

        A turn is cut short, down to one call, where ``calls`` calls would take longer than the policy's ``turn_us``.
        """
        offset = self._turn % max(len(self.running), 1)
        self._turn += 1
        for name in self.running[offset:] + self.running[:offset]:
            fitting = int(self._policy.turn_us / self._call_us[name]) if name in self._call_us else calls
            try:
                samples = list(self._sample(name, max(1, min(calls, fitting))))
            except CandidateFailed as failure:
                self._leave(name, Measured(candidate=name, stage=self.stage, status=failure.status, note=failure.note))
                continue
            self._turns[name].append(_Turn(us=samples, clock_mhz=self._clock(name)))
            self._call_us[name] = min(samples)

    def forget(self) -> None:
        """Drops the samples so far; used after warm-up."""
        self._turns = {name: [] for name in self._turns}

    def timing(self, name: str) -> Timing:
        return summarise([turn.us for turn in self._fair(name)])

    def measured(self, name: str) -> Measured:
        """What is known of a candidate that is still running, or leaves now."""
        fair, usual = self._fair(name), self._usual_clock()
        clocks = sorted(turn.clock_mhz for turn in fair if turn.clock_mhz is not None)
        dropped = len(self._turns[name]) - len(fair)
        return Measured(
            candidate=name,
            stage=self.stage,
            timing=self.timing(name),
            clock_ratio=quantile(clocks, 0.5) / usual if clocks and usual else None,
            note=f"{dropped} of {len(self._turns[name])} rounds at a slow clock were dropped" if dropped else "",
        )

    def _usual_clock(self) -> float | None:
        clocks = sorted(turn.clock_mhz for turns in self._turns.values() for turn in turns if turn.clock_mhz)
        return quantile(clocks, 0.5) if clocks else None

    def _fair(self, name: str) -> "list[_Turn]":
        """Turns that were not taken at a slow clock; all of them when none is left."""
        limit = self._policy.slow_clock * (self._usual_clock() or 0.0)
        turns = self._turns[name]
        return [turn for turn in turns if turn.clock_mhz is None or turn.clock_mhz >= limit] or turns

    def cut(self, ratio: float, pinned: Iterable[str]) -> None:
        """Removes candidates slower than ``ratio`` times the fastest, except pinned ones."""
        medians = {name: self.timing(name).median_us for name in self.running}
        if not medians:
            return
        limit = ratio * min(medians.values())
        for name in [name for name in self.running if medians[name] > limit and name not in pinned]:
            self._leave(name, self.measured(name))

    def _leave(self, name: str, measured: Measured) -> None:
        self.running.remove(name)
        self.left[name] = measured


@dataclass(frozen=True)
class _Turn:
    """Samples of one candidate's turn, microseconds, and the device's clock meanwhile."""

    us: Sequence[float]
    clock_mhz: float | None


def race(
    candidates: Sequence[str],
    sample: Sampler,
    policy: MeasurePolicy,
    *,
    pinned: Iterable[str] = (),
    clock: Clock = lambda _: None,
) -> list[Measured]:
    """Times candidates against each other and returns one result per candidate, in the given order.

    A first look drops candidates beyond ``screen_ratio`` times the best, a second those beyond ``halving_ratio``; the
    rest run interleaved rounds until every relative CI is within ``ci_bound`` or ``max_rounds`` is reached. ``pinned``
    candidates (the default) are never dropped for being slow. Rounds at a slow ``clock`` do not count.
    """
    pinned = frozenset(pinned)
    contest = _Race(candidates, sample, policy, clock, Stage.SCREEN)
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
    found = contest.left | {name: contest.measured(name) for name in contest.running}
    beaten = [name for name in candidates if found[name].status is TrialStatus.OK]
    if not contest.running and beaten:  # they lost only to candidates that failed later
        found |= {measured.candidate: measured for measured in race(beaten, sample, policy, pinned=pinned, clock=clock)}
    return [found[name] for name in candidates]


def duel(
    default: str, challenger: str, sample: Sampler, policy: MeasurePolicy, *, clock: Clock = lambda _: None
) -> Duel | Measured:
    """Pairs the default with its challenger in fresh interleaved rounds.

    Returns the failed side's result instead when one of them fails: then nothing was confirmed.
    """
    contest = _Race([default, challenger], sample, policy, clock, Stage.CONFIRM)
    contest.round(max(policy.warmup_calls, 1))
    contest.forget()
    for _ in range(policy.confirm_rounds):
        contest.round(policy.calls_per_round)
        if contest.left:
            return next(iter(contest.left.values()))
    return Duel(default=contest.measured(default), challenger=contest.measured(challenger))
