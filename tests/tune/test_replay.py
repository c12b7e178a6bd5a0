"""Trials recorded on a real machine select exactly what they selected then."""

from pathlib import Path

import pytest

from moegen.store.database import Result, TrialDatabase
from moegen.store.tables import Table, load
from moegen.tune.fidelity import flip_rate, regret, times, winners
from moegen.tune.freeze import numerics_text, table_view
from moegen.tune.policy import SelectPolicy
from moegen.tune.select import Reason, choose

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
