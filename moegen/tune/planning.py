"""What a session is going to do, and about how long it takes, before it starts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from moegen.codegen.judging import spread
from moegen.core.canonical import canonical_json
from moegen.core.devices import DeviceFacts
from moegen.core.enums import Target
from moegen.core.errors import TuneError
from moegen.core.ops import Numerics
from moegen.core.package import Package, Pipeline
from moegen.runtime.workspace import main_op
from moegen.store.database import Result
from moegen.store.trials import Environment
from moegen.tune.explore import covering, finalists_at_most, shortlist
from moegen.tune.freeze import class_defaults, numerics_text, policy_content
from moegen.tune.judging import REFERENCE_TOKENS
from moegen.tune.policy import Cache, MeasurePolicy, Stage
from moegen.tune.routing import Routing, parse_routing
from moegen.tune.select import Point, fastest, races

_TRIAL_BYTES = 900
"""Bytes of one trial with its share of the records that it refers to, as measured on a database of 10,000."""
_REQUEST_US = 150.0
"""Cost of one request to the worker and of one untimed call's host work, microseconds."""
_POINT_S = 0.5
"""Making an input and running a small reference, seconds."""
_REFERENCE_WEIGHTS_S, _REFERENCE_FLOPS_S = 5e8, 2e10
"""Weights that the reference dequantises a second, and flops that it does, on two cores: orders of magnitude."""


@dataclass(frozen=True, kw_only=True)
class TunePoint:
    """One input that candidates are tried on."""

    tokens: int
    routing: Routing

    @property
    def key(self) -> Point:
        """The form in which trials and tables name the point."""
        return self.tokens, self.routing.label


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Expected cost of a session. ``calls`` counts timed and untimed pipeline calls."""

    points: int
    calls: int
    seconds: float
    disk_bytes: int


def tune_points(package: Package, tokens: Sequence[int] = (), routing: Sequence[str] = ()) -> list[TunePoint]:
    """Points to tune: those given, else those that the package's spec names.

    Token counts come so that any first few of them cover the range (the ends, the middle, the quarters), each with all
    routings, uniform first: a session that ends early leaves tables that reach from end to end.

    Raises:
        TuneError: a token count below 1, an unknown routing profile, or nothing to do.
    """
    counts = sorted(set(tokens or package.layer["tune"]["tokens"]))
    profiles = [parse_routing(item) for item in (routing or package.layer["tune"]["routing"])]
    if counts and counts[0] < 1:
        raise TuneError(f"token count {counts[0]}", "--tokens", "give counts of 1 and more")
    profiles.sort(key=lambda profile: profile.label != "uniform")
    ordered = [counts[index] for index in spread(len(counts))]
    points = [TunePoint(tokens=count, routing=profile) for count in ordered for profile in dict.fromkeys(profiles)]
    if not points:
        raise TuneError("no point to tune", f"package {package.name}", "name token counts and routings in the spec")
    return points


def fastest_by_point(
    results: Iterable[Result], package: Package, target: Target, environment: Environment, policy: MeasurePolicy
) -> dict[Point, set[str]]:
    """Points that an earlier session explored to the end, on this machine under this policy, in every numerics class →
    the fastest finalist of each class there."""
    wanted = canonical_json(policy_content(policy.record(Stage.FINAL)))
    content = cache(lambda policy_id: canonical_json(policy_content(policies[policy_id])))
    results = list(results)
    policies = {result.policy.id: result.policy for result in results}
    view = [
        result
        for result in results
        if (result.environment.device, result.environment.arch) == (environment.device, environment.arch)
        and content(result.policy.id) == wanted
    ]
    explored = [
        {race.point: fastest(race.finals) for race in races(view, default, numerics_text(numerics))}
        for numerics, default in class_defaults(package.targets[target]).items()
    ]
    everywhere = set.intersection(*map(set, explored)) if explored else set()
    return {point: set().union(*(found[point] for found in explored)) for point in everywhere}


def estimate(
    points: Sequence[TunePoint],
    pipelines: Sequence[Pipeline],
    defaults: dict[Numerics, str],
    policy: MeasurePolicy,
    facts: DeviceFacts,
) -> Estimate:
    """Expected cost of exploring ``points`` and confirming one challenger at each; the time model supplies call
    times."""
    flush_us = 3 * facts.l2_bytes / facts.read_bytes_s * 1e6 if policy.cache is Cache.COLD else 0.0
    per_call_us = flush_us + _REQUEST_US
    most = max((point.tokens for point in points), default=1)
    offered = shortlist(pipelines, most, (), defaults, policy.model_ratio)
    races_held = min(finalists_at_most(policy, defaults), len(offered))
    cover = covering(offered) if len(offered) > races_held else []
    steps = sum(len(chosen) for _, chosen in cover)
    calls_each = (
        policy.warmup_calls
        + policy.screen_calls
        + (policy.min_rounds + policy.max_rounds) // 2 * policy.calls_per_round
    )
    op_calls = steps * policy.halving_rounds * policy.calls_per_round
    duel_calls = 2 * policy.confirm_rounds * policy.calls_per_round
    calls_at_point = races_held * calls_each + op_calls + duel_calls
    seconds = 0.0
    for point in points:
        call_us = _model_us(pipelines, point.tokens)
        seconds += calls_at_point * (call_us + per_call_us) / 1e6
        seconds += _POINT_S + len(defaults) * _reference_s(pipelines, point.tokens)
    trials = len(points) * (races_held + 2 + steps)
    return Estimate(
        points=len(points),
        calls=len(points) * calls_at_point,
        seconds=seconds,
        disk_bytes=trials * _TRIAL_BYTES,
    )


def _reference_s(pipelines: Sequence[Pipeline], tokens: int) -> float:
    """Seconds of one reference evaluation of the layer."""
    if not pipelines:
        return 0.0
    op = main_op(pipelines[0])
    matrices = (3 if op.gated else 2) * op.hidden * op.intermediate
    sample = min(tokens, REFERENCE_TOKENS)
    hit = min(op.experts, sample * op.top_k)
    return hit * matrices / _REFERENCE_WEIGHTS_S + 2 * sample * op.top_k * matrices / _REFERENCE_FLOPS_S


def _model_us(pipelines: Sequence[Pipeline], tokens: int) -> float:
    """Mean over the pipelines of the model's time at the nearest modelled point at or above ``tokens``."""
    times = []
    for pipeline in pipelines:
        curve = pipeline.model_us
        at_or_above = [time_us for count, time_us in curve if count >= tokens]
        times.append(at_or_above[0] if at_or_above else curve[-1][1] if curve else 0.0)
    return sum(times) / len(times) if times else 0.0
