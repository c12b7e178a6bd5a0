"""Trials recorded on a real machine select exactly what they selected then."""

from dataclasses import replace
from pathlib import Path

import pytest

from moegen.store.database import Result, TrialDatabase
from moegen.store.tables import Candidate, Point, Table, load
from moegen.tune.fidelity import flip_rate, leave_one_out, regret, times, winners
from moegen.tune.freeze import numerics_text, table_view
from moegen.tune.policy import SelectPolicy
from moegen.tune.select import Reason, choose
from tests.tune.packages import fake_pipeline

DATA = Path(__file__).parent / "data"
DEFAULT = "fused_fp4-ordered-rt16-ad2ab34c"


@pytest.fixture
def results(tmp_path: Path) -> list[Result]:
    with TrialDatabase(tmp_path / "trials.db") as database:
        database.import_pack(DATA / "quickstart-cpu.jsonl")
        return database.results()


@pytest.fixture
def table() -> Table:
    return load(DATA / "quickstart-cpu.table.json")


def test_selection_is_what_it_was(results: list[Result], table: Table) -> None:
    choices = choose(table_view(results), DEFAULT, numerics_text(table.numerics), SelectPolicy())
    assert [(c.tokens, c.routing, c.winner, c.candidates) for c in choices] == [
        (point.tokens, point.routing, point.winner, point.candidates) for point in table.points
    ]
    by_tokens = {choice.tokens: choice for choice in choices}
    assert by_tokens[1].reason is Reason.CONFIRMED
    assert by_tokens[1].gain == pytest.approx(0.2468, abs=1e-4)
    assert all(by_tokens[tokens].winner == DEFAULT for tokens in (2, 4, 8))


def test_another_rule_needs_no_device(results: list[Result], table: Table) -> None:
    strict = choose(table_view(results), DEFAULT, numerics_text(table.numerics), SelectPolicy(switch_margin=0.9))
    assert {choice.winner for choice in strict} == {DEFAULT}
    assert [choice.reason for choice in strict if choice.tokens == 1] == [Reason.WITHIN_MARGIN]


def test_two_sessions_agree_and_what_they_chose_costs_little(results: list[Result], table: Table) -> None:
    numerics = numerics_text(table.numerics)
    sessions = sorted({result.session.id: result.session.started for result in results}.items(), key=lambda s: s[1])
    first, second = (
        # A duel stands for both sessions: it was fought once.
        choose(
            [r for r in results if r.session.id == identity or r.policy.parameters["stage"] == "confirm"],
            DEFAULT,
            numerics,
            SelectPolicy(),
        )
        for identity, _ in sessions
    )
    assert flip_rate(winners(first), winners(second)) == 0
    lost = regret(winners(first), times(second))
    assert lost is not None
    assert lost.worst < 0.1


def test_decisions_between_tuned_points_are_held_against_the_points_left_out(table: Table) -> None:
    timed = {
        1: {"a": 10.0, "b": 30.0},
        4: {"a": 40.0, "b": 30.0},  # from 1 and 16: a at 20, b at 60
        16: {"a": 40.0, "b": 120.0},
        64: {"b": 100.0},  # from 16 and 256: a at 80, b at 240
        256: {"a": 160.0, "b": 480.0},
    }
    points = tuple(
        Point(
            tokens=tokens,
            routing="uniform",
            winner=min(times_us, key=lambda name: times_us[name]),
            candidates=tuple(Candidate(pipeline=name, median_us=us) for name, us in times_us.items()),
        )
        for tokens, times_us in timed.items()
    )
    pipelines = {name: fake_pipeline(name, (f"g1-{name}", "g2")) for name in "ab"}
    found = leave_one_out(replace(table, points=points, default="a"), pipelines)
    assert found.decided == {(4, "uniform"): "a", (16, "uniform"): "b", (64, "uniform"): "a"}
    assert found.unknown == ((64, "uniform"),)
    assert found.regret is not None
    assert (found.regret.worst, found.regret.worst_at) == (pytest.approx(2.0), (16, "uniform"))
    assert found.regret.mean == pytest.approx((1 / 3 + 2.0) / 2)
