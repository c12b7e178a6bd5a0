"""Races and duels on simulated machines whose true times are known."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moegen.core.enums import Target
from moegen.store.trials import TrialStatus
from moegen.tune.measure import CandidateFailed, Duel, Measured, duel, race
from moegen.tune.policy import Cache, Effort, Stage, Timer, measure_policy
from moegen.tune.statistics import median_interval, quantile, summarise

POLICY = measure_policy(Target.CPU)


class Machine:
    """True time per candidate, multiplicative noise per call, and a drift that all candidates share."""

    def __init__(self, times: dict[str, float], noise: float = 0.0, drift: float = 0.0, seed: int = 0) -> None:
        self.calls: Counter[str] = Counter()
        self.order: list[str] = []
        self.failures: dict[str, tuple[float, TrialStatus]] = {}
        self._times, self._noise, self._drift = times, noise, drift
        self._random = random.Random(seed)

    def __call__(self, candidate: str, calls: int) -> Sequence[float]:
        self.order.append(candidate)
        after, status = self.failures.get(candidate, (math.inf, TrialStatus.OK))
        if self.calls[candidate] >= after:
            raise CandidateFailed(status, "it broke")
        self.calls[candidate] += calls
        drift = 1 + self._drift * len(self.order)
        return [self._times[candidate] * drift * self._random.lognormvariate(0, self._noise) for _ in range(calls)]


def by_name(results: list[Measured]) -> dict[str, Measured]:
    return {result.candidate: result for result in results}


def test_slow_candidates_leave_early_and_the_default_never_does() -> None:
    machine = Machine({"default": 50.0, "fast": 10.0, "near": 11.0, "middling": 20.0, "awful": 90.0})
    results = by_name(race(list(machine._times), machine, POLICY, pinned={"default"}))
    stages = {name: result.stage for name, result in results.items()}
    assert stages == {
        "default": Stage.FINAL,
        "fast": Stage.FINAL,
        "near": Stage.FINAL,
        "middling": Stage.HALVING,
        "awful": Stage.SCREEN,
    }
    assert machine.calls["awful"] < machine.calls["middling"] < machine.calls["fast"]
    for name, result in results.items():
        assert result.timing is not None
        assert result.timing.median_us == machine._times[name]


def test_quiet_machine_stops_at_the_fewest_rounds_and_noisy_one_at_the_cap() -> None:
    quiet, noisy = Machine({"a": 1.0, "b": 1.1}), Machine({"a": 1.0, "b": 1.1}, noise=0.2)
    assert {r.timing.rounds for r in race(["a", "b"], quiet, POLICY) if r.timing} == {POLICY.min_rounds}
    assert {r.timing.rounds for r in race(["a", "b"], noisy, POLICY) if r.timing} == {POLICY.max_rounds}


def test_rounds_interleave_and_rotate() -> None:
    machine = Machine({"a": 1.0, "b": 1.0, "c": 1.0})
    race(["a", "b", "c"], machine, POLICY)
    rounds = [machine.order[i : i + 3] for i in range(0, len(machine.order), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert [turn[0] for turn in rounds[:4]] == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("after", "stage"), [(0, Stage.SCREEN), (3, Stage.SCREEN), (6, Stage.HALVING), (20, Stage.FINAL)]
)
def test_a_failing_candidate_leaves_with_its_status_and_the_rest_go_on(after: int, stage: Stage) -> None:
    machine = Machine({"good": 1.0, "bad": 0.5})
    machine.failures["bad"] = (after, TrialStatus.CRASH)
    results = by_name(race(["good", "bad"], machine, POLICY))
    assert (results["bad"].status, results["bad"].stage) == (TrialStatus.CRASH, stage)
    assert (results["bad"].timing, results["bad"].note) == (None, "it broke")
    assert results["good"].stage is Stage.FINAL


def test_rounds_at_a_slow_clock_do_not_count_and_that_is_said() -> None:
    machine = Machine({"a": 10.0})
    throttled = {2, 5}

    def sample(candidate: str, calls: int) -> Sequence[float]:
        slow = len(machine.order) in throttled
        return [time_us * (3.0 if slow else 1.0) for time_us in machine(candidate, calls)]

    def clock(candidate: str) -> float:
        return 600.0 if len(machine.order) - 1 in throttled else 1980.0

    (found,) = race(["a"], sample, replace(POLICY, halving_ratio=9.0), clock=clock)
    assert found.timing is not None
    assert (found.timing.median_us, found.timing.p80_us) == (10.0, 10.0)
    assert found.timing.rounds == POLICY.min_rounds - 2
    assert found.clock_ratio == 1.0
    assert found.note == f"2 of {POLICY.min_rounds} rounds at a slow clock were dropped"
    (blind,) = race(["a"], Machine({"a": 10.0}), POLICY)
    assert (blind.clock_ratio, blind.note) == (None, "")


def test_turns_of_slow_candidates_are_cut_short() -> None:
    machine, turns = Machine({"quick": 10.0, "slow": 12_000.0}), Counter[tuple[str, int]]()

    def sample(candidate: str, calls: int) -> Sequence[float]:
        turns[candidate, calls] += 1
        return machine(candidate, calls)

    policy = replace(POLICY, calls_per_round=5, turn_us=30_000.0, screen_ratio=1e9, halving_ratio=1e9)
    race(["quick", "slow"], sample, policy)
    assert turns["quick", 5] == POLICY.min_rounds
    assert turns["slow", 2] == POLICY.min_rounds + 1, "the screening look too"
    assert turns["slow", 5] == 0


def test_all_candidates_may_fail() -> None:
    machine = Machine({"a": 1.0, "b": 1.0})
    machine.failures = {"a": (0, TrialStatus.CRASH), "b": (0, TrialStatus.TIMEOUT)}
    assert [r.status for r in race(["a", "b"], machine, POLICY)] == [
        TrialStatus.CRASH,
        TrialStatus.TIMEOUT,
    ]


@pytest.mark.parametrize("seed", range(8))
def test_a_duel_sees_the_gain_through_a_drift_larger_than_it(seed: int) -> None:
    machine = Machine({"default": 100.0, "challenger": 95.0}, noise=0.01, drift=0.01, seed=seed)
    found = duel("default", "challenger", machine, POLICY)
    assert isinstance(found, Duel)
    assert found.default.timing is not None
    assert found.challenger.timing is not None
    assert 1 - found.challenger.timing.median_us / found.default.timing.median_us == pytest.approx(0.05, abs=0.02)
    assert found.default.stage == found.challenger.stage is Stage.CONFIRM


def test_a_side_that_fails_in_a_duel_confirms_nothing() -> None:
    machine = Machine({"default": 2.0, "challenger": 1.0})
    machine.failures["challenger"] = (6, TrialStatus.TIMEOUT)
    found = duel("default", "challenger", machine, POLICY)
    assert isinstance(found, Measured)
    assert (found.candidate, found.status) == ("challenger", TrialStatus.TIMEOUT)


def test_summary_of_known_samples() -> None:
    timing = summarise([[float(i)] for i in range(1, 10)])
    assert (timing.median_us, timing.p20_us, timing.p80_us) == (5.0, pytest.approx(2.6), pytest.approx(7.4))
    # Nine values: the 2nd and the 8th enclose the median with 1 - 2 * 10/512 = 96.1 %.
    assert (timing.ci_us, timing.n, timing.rounds) == (3.0, 9, 9)


def test_calls_of_one_round_count_once_in_the_interval() -> None:
    together = summarise([[1.0] * 10, [2.0] * 10])
    assert together.ci_us == math.inf
    assert together.n == 20


def test_too_few_values_have_no_interval() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == (-math.inf, math.inf)
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (1.0, 6.0)


def test_interval_covers_the_median_as_often_as_it_says() -> None:
    generator = random.Random(1)
    hits = 0
    for _ in range(2000):
        low, high = median_interval(sorted(generator.lognormvariate(0, 1) for _ in range(15)))
        hits += low <= 1.0 <= high
    assert hits / 2000 >= 0.94


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_quantile_stays_within_the_values(values: list[float], share: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, share) <= ordered[-1] * (1 + 1e-12)


def test_no_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarise([])


def test_policy_record_depends_on_every_field_and_on_the_stage() -> None:
    changed = {
        "timer": Timer.CUDA_EVENT,
        "cache": Cache.HOT,
        **{name: getattr(POLICY, name) + 1 for name in vars(POLICY) if name not in ("timer", "cache")},
    }
    ids = {replace(POLICY, **{name: value}).record(Stage.FINAL).id for name, value in changed.items()}
    ids |= {POLICY.record(stage).id for stage in Stage}
    assert len(ids) == len(changed) + len(Stage)


def test_standard_policies() -> None:
    assert measure_policy(Target.CPU).timer is Timer.CPU_WALL
    assert measure_policy(Target.SM_90A).timer is Timer.CUDA_GRAPH
    assert measure_policy(Target.CPU, Effort.QUICK).max_rounds < POLICY.max_rounds
    assert measure_policy(Target.CPU, cache=Cache.HOT).cache is Cache.HOT
