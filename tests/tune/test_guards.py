"""The tuner's guards, each shown to fail under the fault it guards against."""

from pathlib import Path
from typing import Any

import torch
from faults import guards

from moegen.core.enums import Target
from moegen.store.database import TrialDatabase
from moegen.store.trials import Subject
from moegen.tune import gate, select
from moegen.tune.planning import tune_points
from moegen.tune.policy import Effort, SelectPolicy, measure_policy
from moegen.tune.session import TuneSession
from moegen.tune.worker import Worker
from tests.tune.faults import (
    bad_candidates_come_back,
    classes_mixed,
    fastest_final_wins,
    gate_by_norm_alone,
    gate_forgotten,
    points_written_piecemeal,
)
from tests.tune.packages import simple_package
from tests.tune.records import CLASS, OTHER_CLASS, confirmed, result

POLICY = SelectPolicy()


@guards(gate_by_norm_alone)
def test_one_wrong_row_of_a_thousand_is_seen(tmp_path: Path) -> None:
    reference = torch.randn(2000, 64, generator=torch.Generator().manual_seed(1))
    output = reference.clone()
    output[1234, :16] *= 1.1
    tolerance = gate.gate_tolerance(w4a4=False, intermediate=48)
    verdict = gate.judge(output, reference, tolerance, seed=1)
    assert (verdict.passed, verdict.row) == (False, 1234)


@guards(fastest_final_wins)
def test_two_percent_in_the_finals_change_nothing(tmp_path: Path) -> None:
    results = [result("default", 100.0), result("a", 97.5), *confirmed(100.0, "a", 98.0)]
    (choice,) = select.choose(results, "default", CLASS, POLICY)
    assert choice.winner == "default"


@guards(classes_mixed)
def test_another_numerics_class_does_not_compete(tmp_path: Path) -> None:
    results = [result("default", 100.0), result("a", 10.0, numerics=OTHER_CLASS)]
    (choice,) = select.choose(results, "default", CLASS, POLICY)
    assert [candidate.pipeline for candidate in choice.candidates] == ["default"]


@guards(points_written_piecemeal)
def test_half_a_point_is_no_point(tmp_path: Path) -> None:
    assert select.choose([result("a", 10.0)], "default", CLASS, POLICY) == []


@guards(gate_forgotten)
def test_a_fast_wrong_candidate_is_never_timed(tmp_path: Path) -> None:
    with TrialDatabase(tmp_path / "trials.db") as database:
        _tune(database, {"default": 100.0, "cheat": 1.0}, {"cheat": "nan"})
        trials = [r.trial for r in database.results(subject=Subject.PIPELINE) if r.trial.variant == "cheat"]
    assert trials
    assert all(trial.median_us is None for trial in trials)


@guards(bad_candidates_come_back)
def test_a_deadly_candidate_kills_one_worker_only(tmp_path: Path) -> None:
    with TrialDatabase(tmp_path / "trials.db") as database:
        starts = _tune(database, {"default": 100.0, "deadly": 1.0}, {"deadly": "check:die"})
    assert starts == 2


def _tune(database: TrialDatabase, times_us: dict[str, float], behaviours: dict[str, str]) -> int:
    """Tunes a fake package; returns how often a worker was started."""
    fakes: dict[str, Any] = {"times_us": times_us, "behaviours": behaviours}
    package = simple_package(*times_us)
    with Worker("tests.tune.fakes:make_fake", fakes, timeout_s=10.0) as worker:
        policy = measure_policy(Target.CPU, Effort.QUICK)
        TuneSession(package, Target.CPU, worker, database, policy).run(tune_points(package))
        return worker.starts
