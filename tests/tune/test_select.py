"""The laws of selection, on trials written by hand and by hypothesis."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moegen.store.database import Result
from moegen.store.trials import Pin, Subject, TrialStatus
from moegen.tune.policy import SelectPolicy, Stage
from moegen.tune.select import Choice, Reason, challengers, choose, open_duels, races
from tests.tune.records import CLASS, OTHER_CLASS, confirmed, result

POLICY = SelectPolicy()
TIMES = st.floats(1.0, 1e4)
NAMES = st.sampled_from(["a", "b", "c", "d", "default"])


def only(results: list[Result], **pins: Pin) -> Choice:
    (choice,) = choose(results, "default", CLASS, POLICY, pins.values())
    return choice


def test_a_confirmed_challenger_wins() -> None:
    choice = only([result("default", 100.0), result("a", 80.0), *confirmed(100.0, "a", 82.0)])
    assert (choice.winner, choice.reason) == ("a", Reason.CONFIRMED)
    assert choice.gain == pytest.approx(0.18)
    assert [(c.pipeline, c.median_us) for c in choice.candidates] == [("a", 80.0), ("default", 100.0)]
    assert len(choice.trials) == 4


@pytest.mark.parametrize(("rival_us", "winner"), [(97.1, "default"), (96.9, "a"), (110.0, "default")])
def test_the_default_loses_only_by_the_margin(rival_us: float, winner: str) -> None:
    assert only([result("default", 100.0), result("a", 80.0), *confirmed(100.0, "a", rival_us)]).winner == winner


def test_a_fast_final_without_a_duel_changes_nothing() -> None:
    choice = only([result("default", 100.0), result("a", 10.0)])
    assert (choice.winner, choice.reason, choice.gain) == ("default", Reason.UNCONFIRMED, None)


def test_a_duel_of_two_sessions_is_no_duel() -> None:
    halves = [
        result("default", 100.0, stage=Stage.CONFIRM, started=1.0),
        result("a", 10.0, stage=Stage.CONFIRM, started=2.0),
    ]
    assert only([result("default", 100.0), result("a", 10.0), *halves]).reason is Reason.UNCONFIRMED


def test_the_default_wins_ties() -> None:
    choice = only([result("default", 101.9), result("a", 100.0), *confirmed(100.0, "a", 50.0)])
    assert (choice.winner, choice.reason) == ("default", Reason.TIE)


def test_a_wide_interval_widens_the_tie_band() -> None:
    assert only([result("default", 108.0), result("a", 100.0, ci_us=9.0)]).reason is Reason.TIE
    assert only([result("default", 108.0), result("a", 100.0, ci_us=7.0)]).reason is Reason.UNCONFIRMED


@pytest.mark.parametrize(
    "status", [status for status in TrialStatus if status not in (TrialStatus.OK, TrialStatus.NOISY)]
)
def test_failed_candidates_are_never_selected(status: TrialStatus) -> None:
    choice = only([result("default", 100.0), result("a", None, status=status), *confirmed(100.0, "a", 10.0)])
    assert choice.winner == "default"
    assert [c.pipeline for c in choice.candidates] == ["default"]


def test_a_noisy_challenger_cannot_win_and_a_noisy_default_cannot_lose() -> None:
    noisy = TrialStatus.NOISY
    assert (
        only([result("default", 100.0), result("a", 10.0, status=noisy), *confirmed(100.0, "a", 10.0)]).winner
        == "default"
    )
    choice = only([result("default", 100.0, status=noisy), result("a", 10.0), *confirmed(100.0, "a", 10.0)])
    assert (choice.winner, choice.reason) == ("default", Reason.DEFAULT_NOISY)


def test_a_failed_default_leaves_the_place_to_the_fastest() -> None:
    choice = only([result("default", None, status=TrialStatus.WRONG), result("a", 10.0), result("b", 20.0)])
    assert (choice.winner, choice.reason) == ("a", Reason.DEFAULT_FAILED)


def test_no_valid_candidate_gives_no_record() -> None:
    assert choose([result("default", None), result("a", None)], "default", CLASS, POLICY) == []
    assert choose([], "default", CLASS, POLICY) == []


def test_numerics_classes_never_mix() -> None:
    results = [result("default", 100.0), result("a", 10.0, numerics=OTHER_CLASS), *confirmed(100.0, "a", 10.0)]
    choice = only(results)
    assert (choice.winner, [c.pipeline for c in choice.candidates]) == ("default", ["default"])
    assert choose(results, "default", OTHER_CLASS, POLICY) == []


def test_op_trials_choose_no_pipeline() -> None:
    assert choose([result("default", 1.0, subject=Subject.OP)], "default", CLASS, POLICY) == []


def test_the_newest_session_speaks_and_an_interrupted_one_does_not() -> None:
    old = [result("default", 100.0, started=1.0), result("a", 50.0, started=1.0)]
    new = [result("default", 100.0, started=2.0), result("a", 150.0, started=2.0)]
    cut_short = [result("a", 1.0, started=3.0)]
    (race,) = races([*old, *new, *cut_short], "default", CLASS)
    assert race.finals["a"].median_us == 150.0


def test_a_screened_candidate_is_not_interpolated_from_but_a_halved_one_is() -> None:
    results = [
        result("default", 10.0),
        result("a", 90.0, stage=Stage.SCREEN),
        result("b", 20.0, stage=Stage.HALVING),
    ]
    assert [c.pipeline for c in only(results).candidates] == ["b", "default"]


def test_ties_go_to_the_pipeline_that_serves_most_points() -> None:
    results = []
    for tokens, tied in ((1, "ab"), (2, "bc"), (4, "bd"), (8, "a")):
        results += [result("default", 100.0, tokens=tokens), *(result(name, 50.0, tokens=tokens) for name in tied)]
    found = races(results, "default", CLASS)
    assert {point[0]: name for point, name in challengers(found, "default", POLICY).items()} == {
        1: "b",
        2: "b",
        4: "b",
        8: "a",
    }


def test_a_challenger_that_has_not_met_the_default_is_stood_in_for_by_its_equal() -> None:
    results = []
    for tokens, tied in ((1, "ab"), (2, "bc")):
        results += [result("default", 100.0, tokens=tokens), *(result(name, 50.0, tokens=tokens) for name in tied)]
    met = [result(name, us, tokens=1, stage=Stage.CONFIRM) for name, us in (("default", 100.0), ("a", 50.0))]
    assert open_duels([*results, *met], "default", CLASS, POLICY) == {(1, "uniform"): "b", (2, "uniform"): "b"}
    first, second = choose([*results, *met], "default", CLASS, POLICY)
    assert (first.winner, first.reason) == ("a", Reason.CONFIRMED)
    assert (second.winner, second.reason) == ("default", Reason.UNCONFIRMED)
    met += [result(name, us, tokens=1, stage=Stage.CONFIRM) for name, us in (("b", 49.0),)]
    assert choose([*results, *met], "default", CLASS, POLICY)[0].winner == "b"
    assert open_duels([*results, *met], "default", CLASS, POLICY) == {(2, "uniform"): "b"}


@pytest.mark.parametrize("status", [TrialStatus.NOISY, TrialStatus.CRASH])
def test_a_default_without_a_sound_time_is_not_challenged(status: TrialStatus) -> None:
    us = 100.0 if status is TrialStatus.NOISY else None
    assert open_duels([result("default", us, status=status), result("a", 50.0)], "default", CLASS, POLICY) == {}


@pytest.mark.parametrize(
    ("tokens", "routing", "pipeline", "winner"),
    [(0, "", "b", "b"), (8, "uniform", "b", "b"), (9, "", "b", "default"), (0, "", "unmeasured", "default")],
)
def test_pins_override_where_they_apply(tokens: int, routing: str, pipeline: str, winner: str) -> None:
    pin = Pin(package="p", target="cpu", tokens=tokens, routing=routing, pipeline=pipeline, reason="incident")
    assert only([result("default", 100.0), result("b", 500.0)], pin=pin).winner == winner


def test_a_pin_holds_where_its_timing_was_noisy_and_not_where_it_failed() -> None:
    pin = Pin(package="p", target="cpu", pipeline="b", reason="incident")
    noisy = [result("default", 100.0), result("b", 90.0, status=TrialStatus.NOISY)]
    assert (only(noisy, pin=pin).winner, only(noisy, pin=pin).reason) == ("b", Reason.PINNED)
    assert only(noisy).winner == "default"
    assert only([result("default", 100.0), result("b", None)], pin=pin).winner == "default"


@given(
    finals=st.dictionaries(NAMES, TIMES, min_size=1),
    duels=st.dictionaries(NAMES, st.tuples(TIMES, TIMES)),
    seed=st.integers(0, 1000),
)
def test_laws(finals: dict[str, float], duels: dict[str, tuple[float, float]], seed: int) -> None:
    results = [result(name, time) for name, time in finals.items()]
    for started, (name, (default_us, rival_us)) in enumerate(duels.items()):
        if name != "default":
            results += confirmed(default_us, name, rival_us, started=float(started))
    chosen = choose(results, "default", CLASS, POLICY)
    if "default" not in finals:
        assert chosen == []
        return
    (choice,) = chosen
    assert choice.winner in finals
    if choice.winner != "default":
        default_us, rival_us = duels[choice.winner]
        assert rival_us <= default_us * (1 - POLICY.switch_margin) * (1 + 1e-12)
        assert finals[choice.winner] <= min(finals.values()) * (1 + POLICY.tie_band) * (1 + 1e-12)
    random.Random(seed).shuffle(results)
    assert choose(results, "default", CLASS, POLICY) == chosen
