"""Whole sessions against fake devices: what is recorded, what is chosen, and how a session is taken up again."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moegen.core.enums import Epilogue, Round, Target
from moegen.core.errors import TuneError
from moegen.core.ops import Numerics
from moegen.core.package import Package
from moegen.store.database import TrialDatabase
from moegen.store.trials import Session, Subject
from moegen.tune.fidelity import replay
from moegen.tune.freeze import freeze_tables
from moegen.tune.planning import TunePoint, tune_points
from moegen.tune.policy import Effort, MeasurePolicy, SelectPolicy, measure_policy
from moegen.tune.session import Ending, SessionReport, Step, TuneSession
from moegen.tune.worker import Worker
from tests.tune.packages import fake_package, fake_pipeline, simple_package

POLICY = measure_policy(Target.CPU, Effort.QUICK)
TIMEOUT_S = 4.0
Tune = Callable[..., SessionReport]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TrialDatabase]:
    with TrialDatabase(tmp_path / "trials.db") as db:
        yield db


@pytest.fixture
def tune(database: TrialDatabase) -> Iterator[Tune]:
    workers: list[Worker] = []

    def run(
        package: Package,
        times_us: dict[str, float],
        behaviours: dict[str, str] | None = None,
        points: list[TunePoint] | None = None,
        policy: MeasurePolicy = POLICY,
        slow_s: float = 0.0,
        **options: Any,
    ) -> SessionReport:
        fakes: dict[str, Any] = {"times_us": times_us, "behaviours": behaviours or {}, "slow_s": slow_s}
        worker = Worker("tests.tune.fakes:make_fake", fakes, timeout_s=TIMEOUT_S)
        workers.append(worker)
        session = TuneSession(package, Target.CPU, worker, database, policy, **options)
        return session.run(points or tune_points(package))

    yield run
    for worker in workers:
        worker.close()


def statuses(database: TrialDatabase, package: Package, tokens: int) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for result in database.results(package=package.offer_digest(Target.CPU), subject=Subject.PIPELINE, tokens=tokens):
        found.setdefault(result.trial.variant, set()).add(result.trial.status.value)
    return found


def test_a_session_records_trials_and_its_table_holds_the_confirmed_winner(tune: Tune, database: TrialDatabase) -> None:
    package = simple_package("default", "fast", "slow")
    report = tune(package, {"default": 100.0, "fast": 50.0, "slow": 500.0})
    assert (report.ending, report.explored, report.skipped, report.duels) == (Ending.DONE, 2, 0, 2)
    (table,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    assert [(point.tokens, point.routing, point.winner) for point in table.points] == [
        (4, "uniform", "fast"),
        (16, "uniform", "fast"),
    ]
    assert table.environment.device == "fake"
    assert {result.trial.clock_mhz for result in database.results(subject=Subject.PIPELINE)} == {1980.0}
    assert {str(result.policy.parameters["stage"]) for result in database.results()} == {"final", "screen", "confirm"}


def test_a_second_session_has_nothing_to_do_unless_asked(tune: Tune, database: TrialDatabase) -> None:
    package, times = simple_package("default", "fast"), {"default": 100.0, "fast": 50.0}
    first = tune(package, times)
    before = len(database.results())
    again = tune(package, times)
    assert (again.explored, again.skipped, again.duels, again.trials) == (0, 2, 0, 0)
    assert len(database.results()) == before
    assert tune(package, times, again=True).explored == first.explored


def test_interrupted_sessions_keep_whole_points_and_go_on(tune: Tune, database: TrialDatabase) -> None:
    package, times = simple_package("default", "fast"), {"default": 100.0, "fast": 50.0}

    def stop_at_second(step: Step) -> None:
        if step.done == 1:
            raise KeyboardInterrupt

    report = tune(package, times, progress=stop_at_second)
    assert (report.ending, report.explored, report.duels) == (Ending.INTERRUPTED, 1, 1)
    resumed = tune(package, times)
    assert (resumed.ending, resumed.explored, resumed.skipped, resumed.duels) == (Ending.DONE, 1, 1, 1)
    assert len(database.all(Session)) == 2


def test_a_budget_ends_a_session_in_order(tune: Tune) -> None:
    package, times = simple_package("default", "fast"), {"default": 100.0, "fast": 50.0}
    report = tune(package, times, budget_s=0.0)
    assert (report.ending, report.explored, report.duels) == (Ending.BUDGET, 0, 0)


def test_points_within_the_budget_get_their_duels(tune: Tune, database: TrialDatabase) -> None:
    """The first point alone takes the budget: no second point is begun, but the first is confirmed."""
    package, times, budget_s = simple_package("default", "fast"), {"default": 100.0, "fast": 50.0}, 3.0

    def dawdle(step: Step) -> None:
        if step.phase == "explore" and step.done == 1:
            time.sleep(max(0.0, budget_s - (time.monotonic() - began)))

    began = time.monotonic()
    report = tune(package, times, budget_s=budget_s, progress=dawdle)
    assert (report.ending, report.explored, report.duels) == (Ending.BUDGET, 1, 1)
    (table,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    assert [point.winner for point in table.points] == ["fast"]


def test_a_duel_that_an_interruption_cut_off_is_the_next_session_s_first_work(
    tune: Tune, database: TrialDatabase
) -> None:
    package, times = simple_package("default", "fast"), {"default": 100.0, "fast": 50.0}

    def stop_before_the_duel(step: Step) -> None:
        if step.detail.endswith("duel"):
            raise KeyboardInterrupt

    report = tune(package, times, progress=stop_before_the_duel)
    assert (report.ending, report.explored, report.duels) == (Ending.INTERRUPTED, 1, 0)
    (table,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    assert [point.winner for point in table.points] == ["default"]
    phases: list[str] = []
    resumed = tune(package, times, progress=lambda step: phases.append(step.phase))
    assert phases[0] == "confirm"
    assert (resumed.ending, resumed.explored, resumed.skipped, resumed.duels) == (Ending.DONE, 1, 1, 2)


def test_neighbours_have_the_fastest_in_common_across_sessions(tune: Tune, database: TrialDatabase) -> None:
    """A slow pipeline that leads at one point, by its ops, is measured whole at the next one too."""
    names = ["default", *"abcdefgh"]
    package = simple_package(*names)
    times = {name: 100.0 + 10 * index for index, name in enumerate(names)}
    tune(package, times | {"h": 1.0}, points=tune_points(package, tokens=[4]))
    tune(package, times | {"h": 150.0}, points=tune_points(package, tokens=[4, 16]))
    later = database.results(subject=Subject.PIPELINE, tokens=16)
    assert {r.trial.variant for r in later} == {"default", "a", "b", "h"}


def test_routings_have_the_fastest_in_common(tune: Tune, database: TrialDatabase) -> None:
    names = ["default", *"abcdefgh"]
    package = simple_package(*names)
    times = {name: 100.0 + 10 * index for index, name in enumerate(names)}
    tune(package, times | {"h": 1.0}, points=tune_points(package, tokens=[4]))
    tune(package, times, points=tune_points(package, tokens=[4], routing=["one_hot"]))
    skewed = [r for r in database.results(subject=Subject.PIPELINE) if r.routing.label == "one_hot"]
    assert {r.trial.variant for r in skewed} == {"default", "a", "b", "h"}


def test_ops_come_first_when_there_are_many_pipelines(tune: Tune, database: TrialDatabase) -> None:
    names = ["default", *"abcdefgh"]
    package = simple_package(*names)
    times = {name: 100.0 + 10 * index for index, name in enumerate(names)}
    tune(package, times, points=tune_points(package, tokens=[4]))
    ops = [result for result in database.results() if result.problem.subject is Subject.OP]
    assert {result.trial.variant for result in ops} == {"g2", *(f"g1-{name}" for name in names)}
    assert {result.problem.op for result in ops} == {"gemm1", "gemm2"}
    measured = {r.trial.variant for r in database.results(subject=Subject.PIPELINE)}
    assert measured == {"default", "a", "b"}


def test_each_numerics_class_gets_a_table_of_its_own(tune: Tune, database: TrialDatabase) -> None:
    other = replace(Numerics(), pre_quant_round=Round.BF16)
    package = fake_package(
        [
            fake_pipeline("default", ("g1-d", "g2")),
            fake_pipeline("fast", ("g1-f", "g2")),
            fake_pipeline("other", ("g1-o", "g2"), epilogue=Epilogue.INTERLEAVED, numerics=other),
        ]
    )
    tune(package, {"default": 100.0, "fast": 50.0, "other": 1.0})
    tables = {t.numerics: t for t in freeze_tables(database.results(), package, Target.CPU, SelectPolicy())}
    assert {point.winner for point in tables[Numerics()].points} == {"fast"}
    assert {point.winner for point in tables[other].points} == {"other"}
    assert {c.pipeline for point in tables[Numerics()].points for c in point.candidates} == {"default", "fast"}


def test_a_default_that_dies_is_recorded_at_every_point(tune: Tune, database: TrialDatabase) -> None:
    package = simple_package("default", "fast")
    report = tune(package, {"default": 100.0, "fast": 50.0}, {"default": "check:die"})
    assert report.excluded["default"].startswith("crash at T=4 uniform")
    assert statuses(database, package, 16)["default"] == {"crash"}
    (table,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    assert [point.winner for point in table.points] == ["fast", "fast"]
    assert tune(package, {"default": 100.0, "fast": 50.0}).skipped == 2


def test_a_pipeline_that_a_later_one_proves_wrong_is_not_timed(tune: Tune, database: TrialDatabase) -> None:
    package = simple_package("default", "witness")
    tune(package, {"default": 1.0, "witness": 50.0}, {"witness": "check:accuse"}, tune_points(package, tokens=[4]))
    found = {r.trial.variant: r.trial for r in database.results(subject=Subject.PIPELINE)}
    assert (found["default"].status.value, found["default"].note) == ("wrong", "token 3 was wrong")
    assert found["default"].median_us is None
    assert found["witness"].status.value == "ok"


def test_a_slow_reference_is_not_taken_for_a_hanging_candidate(tune: Tune, database: TrialDatabase) -> None:
    package = simple_package("default", "deadly")
    points = tune_points(package, tokens=[4])
    report = tune(package, {"default": 100.0, "deadly": 1.0}, {"deadly": "check:die"}, points, slow_s=TIMEOUT_S + 0.5)
    assert report.excluded.keys() == {"deadly"}
    assert statuses(database, package, 4) == {"default": {"ok"}, "deadly": {"crash"}}


def test_a_reference_that_cannot_be_had_ends_the_session(tune: Tune) -> None:
    package = simple_package("default")
    with pytest.raises(TuneError, match="reference: crash"):
        tune(package, {"default": 100.0}, {"default": "reference:die"})


def test_freeze_is_reproducible_from_an_exported_pack(tune: Tune, database: TrialDatabase, tmp_path: Path) -> None:
    package = simple_package("default", "fast")
    tune(package, {"default": 100.0, "fast": 50.0})
    database.export_pack(tmp_path / "pack.jsonl")
    with TrialDatabase(tmp_path / "other.db") as other:
        other.import_pack(tmp_path / "pack.jsonl")
        (theirs,) = freeze_tables(other.results(), package, Target.CPU, SelectPolicy())
    (ours,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    assert ours.digest == theirs.digest
    assert replay(ours, theirs) == []
    (strict,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy(switch_margin=0.6))
    assert {point.winner for point in strict.points} == {"default"}
    assert len(replay(ours, strict)) == 2


def test_a_quick_look_at_one_point_does_not_displace_a_full_table(tune: Tune, database: TrialDatabase) -> None:
    package, times = simple_package("default", "fast"), {"default": 100.0, "fast": 50.0}
    tune(package, times)
    (before,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    tune(package, times, points=tune_points(package, tokens=[4]), policy=replace(POLICY, max_rounds=7))
    (after,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    assert after.digest == before.digest
    tune(package, times, policy=replace(POLICY, max_rounds=7))
    (renewed,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    assert renewed.policy["max_rounds"] == 7
    assert len(renewed.points) == len(before.points)


def test_no_trials_and_no_built_pipeline_are_typed_errors(tune: Tune, database: TrialDatabase) -> None:
    package = simple_package("default")
    with pytest.raises(TuneError, match="no trials of fake"):
        freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    with pytest.raises(TuneError, match="no pipeline of fake is built"):
        tune(package, {"another": 1.0})


def test_points_come_from_the_spec_or_the_caller() -> None:
    package = simple_package("default")
    assert [point.key for point in tune_points(package)] == [(4, "uniform"), (16, "uniform")]
    points = tune_points(package, tokens=[8, 2, 8], routing=["one_hot", "uniform"])
    assert [point.key for point in points] == [(2, "uniform"), (2, "one_hot"), (8, "uniform"), (8, "one_hot")]
    many = tune_points(package, tokens=[1 << exponent for exponent in range(9)])
    assert [point.tokens for point in many][:5] == [1, 256, 32, 8, 64]
    assert sorted(point.tokens for point in many) == [1 << exponent for exponent in range(9)]
    with pytest.raises(TuneError, match="token count 0"):
        tune_points(package, tokens=[0])
