"""Findings to records: what one session writes into the trial database."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from moegen.core.enums import Target
from moegen.core.package import Package, Pipeline
from moegen.runtime.workspace import main_op
from moegen.store.trials import Environment, Policy, Problem, Record, Session, Subject, Trial, TrialStatus
from moegen.store.trials import Routing as RoutingRecord
from moegen.tune.explore import PointFindings
from moegen.tune.freeze import numerics_text
from moegen.tune.measure import Measured
from moegen.tune.policy import MeasurePolicy, Stage
from moegen.tune.routing import Routing
from moegen.tune.statistics import Timing, quantile
from moegen.tune.subject import Checked

_NOTE_LIMIT = 500


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Writes trials of one session for one package and target.

    ``artifacts``: variant → artifact digest.
    """

    package: Package
    target: Target
    environment: Environment
    policy: MeasurePolicy
    session: Session
    artifacts: Mapping[str, str]
    _pipelines: dict[str, Pipeline] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pipelines.update({p.name: p for p in self.package.targets[self.target].pipelines})

    @cached_property
    def offer(self) -> str:
        """What every problem record refers to: the digest of a whole manifest, which is too dear to take per record."""
        return self.package.offer_digest(self.target)

    @cached_property
    def policies(self) -> Mapping[Stage, Policy]:
        """The measurement policy as trials of each stage refer to it."""
        return {stage: self.policy.record(stage) for stage in Stage}

    def point(
        self,
        tokens: int,
        routing: RoutingRecord,
        found: PointFindings,
        clocks_mhz: Mapping[str, list[float]],
    ) -> list[Record]:
        """All records of one explored point, context included."""
        place = _Place(recorder=self, tokens=tokens, routing=routing)
        for name, checked in found.checked.items():
            if name in found.measured:
                place.timed(found.measured[name], checked, clocks_mhz)
            elif checked.status is not TrialStatus.OK:
                place.refused(name, checked)
        for op in found.ops.values():
            place.op(op.kind.value, op.variant, op.timing)
        return place.records

    def duel(
        self,
        tokens: int,
        routing: RoutingRecord,
        sides: Iterable[Measured],
        clocks_mhz: Mapping[str, list[float]],
    ) -> list[Record]:
        """Records of a confirming pairing, or of the side that failed in it."""
        place = _Place(recorder=self, tokens=tokens, routing=routing)
        for side in sides:
            place.timed(side, None, clocks_mhz)
        return place.records

    def problem(self, tokens: int, pipeline: Pipeline, subject: Subject, op: str = "") -> Problem:
        """The problem record of a pipeline, or of one of its ops, at a token count."""
        main = main_op(pipeline)
        return Problem(
            package=self.offer,
            name=self.package.name,
            target=self.target.value,
            subject=subject,
            op=op,
            tokens=tokens,
            top_k=main.top_k,
            experts=main.experts,
            hidden=main.hidden,
            intermediate=main.intermediate,
            numerics=numerics_text(pipeline.numerics),
        )

    def pipeline(self, name: str) -> Pipeline:
        """A pipeline of the target by name."""
        return self._pipelines[name]

    def pipeline_with(self, variant: str) -> Pipeline:
        """The first pipeline that uses a variant."""
        return next(p for p in self._pipelines.values() if any(step.variant == variant for step in p.steps))


def routing_record(routing: Routing, seed: int, active_experts: int) -> RoutingRecord:
    """The record of a profile as it came out for one input."""
    parameters = {} if routing.value is None else {routing.kind.value: routing.value}
    return RoutingRecord(label=routing.label, parameters=dict(parameters), seed=seed, active_experts=active_experts)


@dataclass(kw_only=True)
class _Place:
    """Collects the records of one point."""

    recorder: Recorder
    tokens: int
    routing: RoutingRecord
    records: list[Record] = field(default_factory=list)

    def timed(self, measured: Measured, checked: Checked | None, clocks_mhz: Mapping[str, list[float]]) -> None:
        clocks = sorted(clocks_mhz.get(measured.candidate, ()))
        self._pipeline_trial(
            measured.candidate,
            measured.stage,
            measured.status,
            measured.timing,
            note=measured.note,
            checked=checked,
            clock_mhz=quantile(clocks, 0.5) if clocks else None,
            clock_ratio=measured.clock_ratio,
        )

    def refused(self, name: str, checked: Checked) -> None:
        self._pipeline_trial(name, Stage.GATE, checked.status, None, note=checked.note, checked=checked)

    def op(self, kind: str, variant: str, timing: Timing) -> None:
        pipeline = self.recorder.pipeline_with(variant)
        problem = self.recorder.problem(self.tokens, pipeline, Subject.OP, kind)
        self._trial(problem, variant, (variant,), Stage.OPS, TrialStatus.OK, timing)

    def _pipeline_trial(
        self,
        name: str,
        stage: Stage,
        status: TrialStatus,
        timing: Timing | None,
        *,
        note: str,
        checked: Checked | None,
        clock_mhz: float | None = None,
        clock_ratio: float | None = None,
    ) -> None:
        pipeline = self.recorder.pipeline(name)
        problem = self.recorder.problem(self.tokens, pipeline, Subject.PIPELINE)
        if timing and stage in (Stage.FINAL, Stage.CONFIRM) and timing.relative_ci > self.recorder.policy.noisy_ci:
            status = TrialStatus.NOISY
        variants = tuple(step.variant for step in pipeline.steps)
        self._trial(
            problem,
            name,
            variants,
            stage,
            status,
            timing,
            note=note,
            checked=checked,
            clock_mhz=clock_mhz,
            clock_ratio=clock_ratio,
        )

    def _trial(
        self,
        problem: Problem,
        variant: str,
        variants: tuple[str, ...],
        stage: Stage,
        status: TrialStatus,
        timing: Timing | None,
        *,
        note: str = "",
        checked: Checked | None = None,
        clock_mhz: float | None = None,
        clock_ratio: float | None = None,
    ) -> None:
        recorder, policy = self.recorder, self.recorder.policies[stage]
        known = recorder.artifacts
        trial = Trial(
            problem=problem.id,
            routing=self.routing.id,
            environment=recorder.environment.id,
            policy=policy.id,
            session=recorder.session.id,
            variant=variant,
            artifacts=tuple(known[name] for name in variants if name in known),
            status=status,
            median_us=timing.median_us if timing else None,
            p20_us=timing.p20_us if timing else None,
            p80_us=timing.p80_us if timing else None,
            ci_us=timing.ci_us if timing and timing.has_interval else None,
            n=timing.n if timing else 0,
            rounds=timing.rounds if timing else 0,
            clock_mhz=clock_mhz,
            clock_ratio=clock_ratio,
            err_max=checked.err_max if checked else None,
            err_rel=checked.err_rel if checked else None,
            note=note[:_NOTE_LIMIT],
        )
        self.records += [problem, self.routing, recorder.environment, policy, recorder.session, trial]
