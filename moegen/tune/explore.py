"""One point of a session: gate, ops, finals. Nothing is timed that has not passed the gate."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from moegen.core.enums import OpKind
from moegen.core.ops import Numerics
from moegen.core.package import Pipeline
from moegen.runtime.decision import model_time_us
from moegen.store.trials import TrialStatus
from moegen.tune.measure import CandidateFailed, Measured, race
from moegen.tune.policy import MeasurePolicy
from moegen.tune.statistics import Timing, summarise
from moegen.tune.subject import Bench, Checked


@dataclass(frozen=True, kw_only=True)
class OpTiming:
    """One op's variant timed alone, within a pipeline that passed the gate."""

    kind: OpKind
    variant: str
    timing: Timing


@dataclass(kw_only=True)
class PointFindings:
    """Everything learnt at one point: the gate's outcome and the race's result by pipeline, op timings by variant."""

    checked: dict[str, Checked] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)
    ops: dict[str, OpTiming] = field(default_factory=dict)


def explore(
    bench: Bench,
    pipelines: Sequence[Pipeline],
    defaults: dict[Numerics, str],
    policy: MeasurePolicy,
    say: Callable[[str], None] = lambda _: None,
    *,
    seeded: Iterable[str] = (),
) -> PointFindings:
    """Gates and times the candidates of one point.

    When there are more pipelines than finalists, ops come first: a few pipelines that cover every variant are timed
    step by step, and the sums choose the finalists, besides those ``seeded``. Each numerics class runs a race of its
    own.
    """
    found = PointFindings()
    if len(pipelines) > finalists_at_most(policy, defaults):
        say("ops")
        _time_ops(bench, covering(pipelines), policy, found)
    chosen = choose_finalists(pipelines, found.ops, defaults, policy.finalists)
    wanted = {pipeline.name for pipeline in chosen} | set(seeded)
    finalists = [pipeline for pipeline in pipelines if pipeline.name in wanted]
    say("gate")
    sound = [pipeline for pipeline in finalists if _passes(bench, pipeline, found)]
    found.checked.update(bench.withdrawn)
    sound = [pipeline for pipeline in sound if pipeline.name not in bench.withdrawn]
    say("race")
    for numerics, default in defaults.items():
        names = [pipeline.name for pipeline in sound if pipeline.numerics == numerics]
        for measured in race(names, bench.sample, policy, pinned={default}, clock=bench.clock_mhz):
            found.measured[measured.candidate] = measured
    return found


def finalists_at_most(policy: MeasurePolicy, defaults: dict[Numerics, str]) -> int:
    """Pipelines that op timings leave over at a point, without those that only lead their mode."""
    return (policy.finalists + 1) * len(defaults)


def shortlist(
    pipelines: Sequence[Pipeline], tokens: int, neighbours: Iterable[int], defaults: dict[Numerics, str], ratio: float
) -> list[Pipeline]:
    """The pipelines that the time model lets into a point, in their own order.

    Of each numerics class: those modelled within ``ratio`` times the best, here or at a neighbouring token count (a
    decision in between compares what was timed at both), and the default. Pipelines without a model stay.
    """
    wanted = set(defaults.values()) | {pipeline.name for pipeline in pipelines if not pipeline.model_us}
    for numerics in {pipeline.numerics for pipeline in pipelines}:
        rivals = [pipeline for pipeline in pipelines if pipeline.numerics == numerics and pipeline.model_us]
        for where in (tokens, *neighbours):
            times_us = {pipeline.name: _model_us(pipeline, where) for pipeline in rivals}
            limit = ratio * min(times_us.values(), default=0.0)
            wanted |= {name for name, time_us in times_us.items() if time_us <= limit}
    return [pipeline for pipeline in pipelines if pipeline.name in wanted]


def _model_us(pipeline: Pipeline, tokens: int) -> float:
    time_us = model_time_us(pipeline, tokens)
    return math.inf if time_us is None else time_us


def covering(pipelines: Sequence[Pipeline]) -> list[tuple[Pipeline, tuple[int, ...]]]:
    """Few pipelines that together use every variant, each with the steps to time in it (greedy set cover, ties to the
    earlier): every variant is timed once."""
    missing = {step.variant for pipeline in pipelines for step in pipeline.steps}
    chosen: list[tuple[Pipeline, tuple[int, ...]]] = []
    while missing:
        best = max(pipelines, key=lambda pipeline: len(missing & {step.variant for step in pipeline.steps}))
        chosen.append((best, tuple(i for i, step in enumerate(best.steps) if step.variant in missing)))
        missing -= {step.variant for step in best.steps}
    return chosen


def choose_finalists(
    pipelines: Sequence[Pipeline], ops: dict[str, OpTiming], defaults: dict[Numerics, str], count: int
) -> list[Pipeline]:
    """Of each numerics class the ``count`` pipelines with the least sum of op times, and its default; of each epilogue
    mode the best.

    Without op timings all pipelines are finalists. A pipeline with a variant that could not be timed is left out,
    unless it is a default.
    """
    if not ops:
        return list(pipelines)
    sums = {
        pipeline.name: sum(ops[step.variant].timing.median_us for step in pipeline.steps)
        for pipeline in pipelines
        if all(step.variant in ops for step in pipeline.steps)
    }
    ranked = sorted((p for p in pipelines if p.name in sums), key=lambda p: (sums[p.name], p.name))
    leaders = {pipeline.epilogue: pipeline.name for pipeline in reversed(ranked)}
    wanted = set(leaders.values()) | set(defaults.values())
    for numerics in defaults:
        wanted |= {pipeline.name for pipeline in [p for p in ranked if p.numerics == numerics][:count]}
    return [pipeline for pipeline in pipelines if pipeline.name in wanted]


def _passes(bench: Bench, pipeline: Pipeline, found: PointFindings) -> bool:
    if pipeline.name not in found.checked:
        found.checked[pipeline.name] = bench.check(pipeline.name)
    return found.checked[pipeline.name].status is TrialStatus.OK


def _time_ops(
    bench: Bench, cover: Iterable[tuple[Pipeline, tuple[int, ...]]], policy: MeasurePolicy, found: PointFindings
) -> None:
    """Times the chosen steps of the covering pipelines in interleaved rounds, the first of one call each."""
    running = [(pipeline, chosen) for pipeline, chosen in cover if _passes(bench, pipeline, found)]
    samples: dict[str, list[list[float]]] = {}
    kinds = {step.variant: step.op.kind for pipeline, _ in running for step in pipeline.steps}
    slowest_us: dict[str, float] = {}
    for _ in range(policy.halving_rounds):
        for pipeline, chosen in list(running):
            fitting = int(policy.turn_us / slowest_us[pipeline.name]) if pipeline.name in slowest_us else 1
            try:
                times = bench.sample_steps(pipeline.name, chosen, max(1, min(policy.calls_per_round, fitting)))
            except CandidateFailed as failure:
                running.remove((pipeline, chosen))
                found.checked[pipeline.name] = Checked(status=failure.status, note=failure.note)
                continue
            slowest_us[pipeline.name] = max(min(calls) for calls in times)
            for index, calls in zip(chosen, times, strict=True):
                samples.setdefault(pipeline.steps[index].variant, []).append(calls)
    for variant, rounds in samples.items():
        found.ops[variant] = OpTiming(kind=kinds[variant], variant=variant, timing=summarise(rounds))
