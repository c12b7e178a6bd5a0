"""Estimates: they grow with what there is to do, and know what a policy leaves out."""

from dataclasses import replace

from moegen.core.devices import CPU_GENERIC
from moegen.core.enums import Round, Target
from moegen.core.ops import Numerics
from moegen.tune.explore import choose_finalists, covering, shortlist
from moegen.tune.freeze import class_defaults
from moegen.tune.planning import Estimate, estimate, tune_points
from moegen.tune.policy import Cache, Effort, measure_policy
from tests.tune.packages import fake_package, fake_pipeline, simple_package

POLICY = measure_policy(Target.CPU, Effort.QUICK)


def guess(names: int, tokens: tuple[int, ...] = (4,), **policy: object) -> Estimate:
    package = simple_package("default", *(f"p{number}" for number in range(names - 1)))
    offer = package.targets[Target.CPU]
    return estimate(
        tune_points(package, tokens=tokens),
        offer.pipelines,
        class_defaults(offer),
        replace(POLICY, **policy),  # pyright: ignore[reportArgumentType]
        CPU_GENERIC,
    )


def test_nothing_costs_nothing() -> None:
    package = simple_package("default")
    found = estimate([], package.targets[Target.CPU].pipelines, {}, POLICY, CPU_GENERIC)
    assert (found.points, found.calls, found.seconds, found.disk_bytes) == (0, 0, 0.0, 0)


def test_every_point_counts() -> None:
    one, two = guess(3), guess(3, (4, 8))
    assert (two.points, two.calls, two.disk_bytes) == (2, 2 * one.calls, 2 * one.disk_bytes)
    assert two.seconds > 1.9 * one.seconds


def test_a_cold_cache_costs_flushes() -> None:
    cold, hot = guess(3), guess(3, cache=Cache.HOT)
    assert cold.calls == hot.calls
    flush_s = 3 * CPU_GENERIC.l2_bytes / CPU_GENERIC.read_bytes_s
    assert cold.seconds - hot.seconds >= 0.99 * cold.calls * flush_s


def test_ops_spare_most_of_the_races_of_many_pipelines() -> None:
    few, many = guess(4), guess(40)
    assert few.calls < many.calls < 5 * few.calls


def test_a_cover_times_every_variant_once() -> None:
    pipelines = [
        fake_pipeline("a", ("g1-a", "g2-x")),
        fake_pipeline("b", ("g1-b", "g2-x")),
        fake_pipeline("c", ("g1-b", "g2-y")),
    ]
    cover = covering(pipelines)
    timed = [pipeline.steps[index].variant for pipeline, chosen in cover for index in chosen]
    assert sorted(timed) == ["g1-a", "g1-b", "g2-x", "g2-y"]


def test_the_model_lets_in_what_is_near_the_fastest_here_or_next_door_and_the_default() -> None:
    curves = {
        "default": ((1, 90.0), (64, 90.0)),
        "small": ((1, 1.0), (64, 99.0)),
        "middling": ((1, 2.0), (64, 98.0)),
        "large": ((1, 99.0), (64, 1.0)),
        "poor": ((1, 95.0), (64, 97.0)),
    }
    pipelines = [replace(fake_pipeline(name, (f"g1-{name}", "g2")), model_us=curve) for name, curve in curves.items()]
    other = replace(
        fake_pipeline("other", ("g1-o", "g2"), numerics=replace(Numerics(), pre_quant_round=Round.BF16)),
        model_us=((1, 500.0), (64, 500.0)),
    )
    defaults = {pipelines[0].numerics: "default"}

    def names(neighbours: tuple[int, ...], ratio: float = 2.0) -> list[str]:
        return [p.name for p in shortlist([*pipelines, other], 1, neighbours, defaults, ratio)]

    assert names(()) == ["default", "small", "middling", "other"]
    assert names((64,)) == ["default", "small", "middling", "large", "other"]
    assert names((), 1.0) == ["default", "small", "other"]
    assert [p.name for p in shortlist([replace(p, model_us=()) for p in pipelines], 1, (), {}, 0)] == list(curves)


def test_without_op_timings_everyone_is_a_finalist() -> None:
    package = fake_package([fake_pipeline(name, (f"g1-{name}", "g2")) for name in ("default", "a")])
    pipelines = package.targets[Target.CPU].pipelines
    assert choose_finalists(pipelines, {}, {}, 1) == list(pipelines)
