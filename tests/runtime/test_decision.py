"""Decisions are total, legal, explained, and made by the same bracket that tuning uses."""

import logging
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moegen.core.enums import CombineMode, Epilogue, Target
from moegen.core.errors import MoegenError
from moegen.core.ops import Numerics
from moegen.core.package import Pipeline
from moegen.runtime.decision import Decider, Decision, Evidence, Source, bracket, interpolate_us, model_time_us
from moegen.store.tables import Candidate, Fit, Match, Point, Table
from moegen.store.trials import Environment

ENVIRONMENT = Environment(device="machine", target="cpu", arch="x86-64-v3", cores=2, l2_bytes=1 << 20)


def pipeline(name: str, model_us: tuple[tuple[int, float], ...] = ()) -> Pipeline:
    return Pipeline(
        name=name,
        target=Target.CPU,
        epilogue=Epilogue.COMPACT,
        combine=CombineMode.ORDERED,
        numerics=Numerics(),
        row_tile=4,
        steps=(),
        model_us=model_us,
    )


def table(points: dict[tuple[int, str], dict[str, float]], pinned: dict[tuple[int, str], str] | None = None) -> Table:
    """(T, routing) → times; the least time wins unless ``pinned`` names another."""
    pins = pinned or {}
    made = []
    for (tokens, routing), times in sorted(points.items()):
        winner = pins.get((tokens, routing), min(times, key=lambda name: times[name]))
        rivals = tuple(Candidate(pipeline=name, median_us=time_us) for name, time_us in times.items())
        pin = (tokens, routing) in pins
        made.append(Point(tokens=tokens, routing=routing, winner=winner, candidates=rivals, pinned=pin))
    return Table(
        package="p",
        name="n",
        environment=ENVIRONMENT,
        policy={},
        selection={},
        numerics=Numerics(),
        points=tuple(made),
    )


def decider(*names: str, points: Table | None = None, fit: Fit = Fit.EXACT, **options) -> Decider:
    offered = {name: pipeline(name) for name in names}
    evidence = [] if points is None else [Evidence(table=points, match=Match(fit=fit))]
    return Decider(pipelines=offered, default=names[0], evidence=evidence, **options)


UNIFORM = {(4, "uniform"): {"a": 10.0, "b": 20.0}, (64, "uniform"): {"a": 100.0, "b": 50.0, "c": 45.0}}


def test_exact_point_gives_its_winner() -> None:
    decision = decider("a", "b", "c", points=table(UNIFORM)).decide(64)
    assert (decision.pipeline, decision.source, decision.predicted_us) == ("c", Source.EXACT, 45.0)
    assert decision.table == table(UNIFORM).digest
    assert decision.rivals == (("c", 45.0), ("b", 50.0), ("a", 100.0))


def test_between_points_the_least_interpolated_time_wins() -> None:
    """In log-log: at T = 16 (the middle) a is sqrt(10·100) = 31.6, b sqrt(20·50) = 31.6; below it a, above it b."""
    chosen = decider("a", "b", "c", points=table(UNIFORM))
    low, high = chosen.decide(15), chosen.decide(17)
    assert (low.pipeline, high.pipeline) == ("a", "b")
    assert low.source is Source.INTERPOLATED
    assert low.predicted_us == pytest.approx(10 * 10 ** (math.log(15 / 4) / math.log(16)))
    assert "least of 2 interpolated times between T=4 and T=64" in low.reason


def test_a_pipeline_timed_at_one_side_only_never_wins_between() -> None:
    chosen = decider("a", "b", "c", points=table(UNIFORM))
    assert {chosen.decide(tokens).pipeline for tokens in range(5, 64)} == {"a", "b"}


def test_outside_the_points_the_end_is_kept_and_said() -> None:
    chosen = decider("a", "b", "c", points=table(UNIFORM))
    for tokens, winner in ((1, "a"), (3, "a"), (65, "c"), (10_000, "c")):
        decision = chosen.decide(tokens)
        assert (decision.pipeline, decision.source) == (winner, Source.CLAMPED)
        assert f"T={tokens} lies outside" in decision.reason


def test_a_winner_that_is_not_built_is_replaced_by_the_next_candidate() -> None:
    decision = decider("a", "b", points=table(UNIFORM)).decide(64)
    assert decision.pipeline == "b"
    assert "the winner c is not available" in decision.reason


def test_pinned_winner_is_kept_though_slower() -> None:
    decision = decider("a", "b", points=table(UNIFORM, pinned={(4, "uniform"): "b"})).decide(4)
    assert (decision.pipeline, decision.source) == ("b", Source.PINNED)


def test_routing_class_picks_its_own_trials() -> None:
    points = table(UNIFORM | {(4, "one_hot"): {"a": 9.0, "b": 3.0}})
    assert decider("a", "b", points=points, routing="one_hot").decide(4).pipeline == "b"
    assert decider("a", "b", points=points).decide(4).pipeline == "a"
    other = decider("a", "b", points=points, routing="zipf=1.2").decide(4)
    assert other.pipeline == "a"
    assert "no trials under zipf=1.2, uniform used" in other.reason


def test_a_sister_devices_table_is_flagged() -> None:
    decision = decider("a", "b", "c", points=table(UNIFORM), fit=Fit.FAMILY).decide(64)
    assert (decision.pipeline, decision.source) == ("c", Source.FAMILY)
    assert "measured on machine" in decision.reason


def test_without_trials_the_model_ranks_what_is_built() -> None:
    offered = {
        "slow": pipeline("slow", ((1, 5.0), (16, 80.0))),
        "fast": pipeline("fast", ((1, 8.0), (16, 20.0))),
    }
    chosen = Decider(pipelines=offered, default="slow")
    assert chosen.decide(1).pipeline == "slow"
    assert chosen.decide(16).pipeline == "fast"
    assert chosen.decide(16).source is Source.MODEL
    assert chosen.decide(4).predicted_us == pytest.approx(math.sqrt(8 * 20))
    assert chosen.decide(32).predicted_us == pytest.approx(40.0)
    assert chosen.decide(16).table is None


def test_with_nothing_known_the_default_serves() -> None:
    decision = Decider(pipelines={"b": pipeline("b"), "a": pipeline("a")}, default="a").decide(7)
    assert (decision.pipeline, decision.source, decision.predicted_us) == ("a", Source.REFERENCE, None)
    gone = Decider(pipelines={"b": pipeline("b")}, default="a").decide(7)
    assert gone.pipeline == "b"


def test_each_degraded_source_is_told_once() -> None:
    told: list[Decision] = []
    chosen = decider("a", "b", "c", points=table(UNIFORM), notify=told.append)
    for tokens in (4, 9, 64, 65, 66, 2, 65):
        chosen.decide(tokens)
    assert [item.source for item in told] == [Source.CLAMPED]


def test_degraded_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="moegen.runtime"):
        chosen = decider("a", "b", "c", points=table(UNIFORM))
        chosen.decide(100)
        chosen.decide(101)
    assert len(caplog.records) == 1
    assert "T=100 is served by c from source clamped" in caplog.text


def test_equal_times_are_broken_by_name_on_every_rank() -> None:
    times = {"b": 10.0, "a": 10.0}
    points = table({(1, "uniform"): times, (16, "uniform"): dict(reversed(times.items()))})
    assert decider("b", "a", points=points).decide(4).pipeline == decider("a", "b", points=points).decide(4).pipeline


def test_reachable_names_exactly_what_decisions_choose() -> None:
    chosen = decider("a", "b", "c", "d", points=table(UNIFORM))
    assert chosen.reachable(40) == {chosen.decide(tokens).pipeline for tokens in range(1, 41)} == {"a", "b"}
    assert chosen.reachable(64) == {"a", "b", "c"}


TIMES = st.floats(min_value=0.5, max_value=1e6)
NAMES = ("a", "b", "c", "d")


@st.composite
def tables(draw: st.DrawFn) -> Table:
    counts = draw(st.lists(st.integers(1, 8192), min_size=1, max_size=6, unique=True))
    points = {}
    for tokens in counts:
        timed = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
        points[(tokens, "uniform")] = {name: draw(TIMES) for name in timed}
    return table(points)


@given(
    evidence=tables(),
    built=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    fit=st.sampled_from(Fit),
    data=st.data(),
)
def test_every_t_has_a_legal_answer(evidence: Table, built: list[str], fit: Fit, data: st.DataObject) -> None:
    last = max(point.tokens for point in evidence.points)
    chosen = decider(*built, points=evidence, fit=fit, notify=lambda decision: None)
    for tokens in {1, last, last + 1, 2 * last, data.draw(st.integers(1, 2 * last))}:
        decision = chosen.decide(tokens)
        assert decision.pipeline in built
        assert decision.tokens == tokens
        assert decision.reason
        assert decision is chosen.decide(tokens)
        usable = any(name in built for point in evidence.points for name in (c.pipeline for c in point.candidates))
        if decision.source not in (Source.REFERENCE,):
            assert usable
            assert decision.predicted_us is not None
            assert decision.predicted_us > 0
            assert decision.pipeline in dict(decision.rivals)


@given(points=st.lists(st.integers(1, 10_000), min_size=1, max_size=12, unique=True), tokens=st.integers(1, 20_000))
def test_bracket_holds_t_or_says_that_it_does_not(points: list[int], tokens: int) -> None:
    rising = sorted(points)
    place = bracket(tokens, rising)
    assert {place.low, place.high} <= set(rising)
    if place.outside:
        assert place.low == place.high == (rising[0] if tokens < rising[0] else rising[-1])
    elif tokens in rising:
        assert place.low == place.high == tokens
    else:
        assert place.low < tokens < place.high
        assert not [point for point in rising if place.low < point < place.high]


@given(a=st.integers(1, 1000), gap=st.integers(1, 1000), low=TIMES, high=TIMES, data=st.data())
def test_interpolation_stays_between_its_ends(a: int, gap: int, low: float, high: float, data: st.DataObject) -> None:
    tokens = data.draw(st.integers(a, a + gap))
    value = interpolate_us(tokens, (a, low), (a + gap, high))
    assert min(low, high) * (1 - 1e-9) <= value <= max(low, high) * (1 + 1e-9)


def test_a_table_that_measured_round_t_beats_a_clamp_of_a_better_fit() -> None:
    near = table({(1, "uniform"): {"a": 1.0}, (4, "uniform"): {"a": 2.0}})
    far = table({(1, "uniform"): {"b": 1.0}, (64, "uniform"): {"b": 9.0}})
    made = decider("a", "b", points=near)
    made.evidence = [Evidence(table=item, match=Match(fit=Fit.SOFT)) for item in (near, far)]
    made.__post_init__()
    assert [(made.decide(t).pipeline, made.decide(t).source) for t in (2, 9, 640)] == [
        ("a", Source.INTERPOLATED),
        ("b", Source.INTERPOLATED),
        ("b", Source.CLAMPED),
    ]


def test_far_outside_the_points_a_model_that_disagrees_decides() -> None:
    points = table({(1, "uniform"): {"small": 1.0, "large": 2.0}, (8, "uniform"): {"small": 4.0, "large": 5.0}})
    curves = {"small": ((1, 1.0), (512, 900.0)), "large": ((1, 2.0), (512, 90.0))}
    made = Decider(
        pipelines={name: pipeline(name, curve) for name, curve in curves.items()},
        default="small",
        evidence=[Evidence(table=points, match=Match(fit=Fit.EXACT))],
        notify=lambda decision: None,
    )
    assert (made.decide(8).pipeline, made.decide(8).source) == ("small", Source.EXACT)
    assert (made.decide(512).pipeline, made.decide(512).source) == ("large", Source.MODEL)
    made.pipelines["large"].__dict__["model_us"] = ((1, 2.0), (512, 850.0))
    assert made._resolve(512).source is Source.CLAMPED


def test_model_below_its_first_point_keeps_the_first_time() -> None:
    assert model_time_us(pipeline("a", ((8, 5.0), (16, 6.0))), 2) == 5.0
    assert model_time_us(pipeline("a"), 2) is None


def test_tables_of_another_class_or_package_are_not_evidence(tiny, private_home, tmp_path) -> None:
    """Only the table of the loaded numerics class, for this package and this machine, takes part."""
    from moegen.core.enums import Round
    from moegen.runtime.environment import current_environment
    from moegen.store.tables import freeze, table_path

    loaded = tiny.load()
    names = list(loaded.decider.pipelines)
    numerics = loaded.pipelines[next(iter(loaded.pipelines))].numerics
    base = replace(
        table({(1, "uniform"): {names[-1]: 1.0, names[0]: 2.0}}),
        package=loaded.package.offer_digest(loaded.target),
        environment=current_environment(loaded.runner.facts),
        numerics=numerics,
    )
    other = replace(base, numerics=replace(numerics, gate_round=Round.BF16))
    foreign = replace(base, package="0" * 64)
    store = type(tiny.store)(tmp_path / "tables")
    for item in (other, foreign):
        freeze(item, table_path(store.home, item))
    assert tiny_with(tiny, store).load().decider.decide(1).source is Source.MODEL
    freeze(base, table_path(store.home, base))
    decision = tiny_with(tiny, store).load().decider.decide(1)
    assert (decision.source, decision.pipeline, decision.table) == (Source.EXACT, names[-1], base.digest)


def tiny_with(tiny, store):
    """The tiny package, its artifacts from the shared store, its tables from another."""
    from runtime.packages import TestPackage

    from moegen.store.artifacts import ArtifactStore

    return TestPackage(directory=tiny.directory, store=ArtifactStore(store.home, (tiny.store.home,)))


def limited(points: Table | None = None, **options) -> Decider:
    """``small`` serves 8 tokens at most, ``any`` any number."""
    offered = {"small": replace(pipeline("small"), most_tokens=8), "any": pipeline("any")}
    evidence = [] if points is None else [Evidence(table=points, match=Match(fit=Fit.EXACT))]
    return Decider(pipelines=offered, default="small", evidence=evidence, **options)


def test_a_limited_pipeline_serves_no_larger_batch() -> None:
    """Not beyond its last tuned point, not between points, not as the default."""
    alone = table({(4, "uniform"): {"small": 1.0, "any": 2.0}})
    both = table({(8, "uniform"): {"small": 1.0, "any": 2.0}, (16, "uniform"): {"any": 4.0}})
    for made in (limited(alone), limited(both), limited()):
        for tokens in (1, 8):
            assert made.decide(tokens).pipeline == "small"
        for tokens in (9, 12, 16, 4000):
            assert made.decide(tokens).pipeline == "any"


def test_a_limited_pipeline_alone_is_refused_before_any_call() -> None:
    only = {"small": replace(pipeline("small"), most_tokens=8)}
    pinned = Decider(pipelines=only, default="small", pinned=True)
    assert pinned.reachable(8) == {"small"}
    with pytest.raises(MoegenError, match="serves at most 8"):
        pinned.reachable(9)


def test_the_model_of_a_limited_pipeline_ends_with_it() -> None:
    offered = {
        "small": replace(pipeline("small", ((1, 1.0), (8, 2.0))), most_tokens=8),
        "any": pipeline("any", ((1, 5.0), (8, 6.0), (64, 7.0))),
    }
    made = Decider(pipelines=offered, default="any")
    assert [made.decide(tokens).pipeline for tokens in (1, 8, 9, 64)] == ["small", "small", "any", "any"]
