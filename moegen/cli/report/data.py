"""Facts of a report, taken from trials, choices and artifacts; nothing is measured here."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moegen.core.enums import Target
from moegen.core.ops import Numerics
from moegen.core.package import Package, Pipeline
from moegen.runtime.decision import Decider, Evidence
from moegen.store.artifacts import ArtifactStore
from moegen.store.bundles import read_bundle
from moegen.store.database import Result
from moegen.store.tables import Fit, Match, Table
from moegen.store.trials import Environment, Pin, Subject, Trial
from moegen.tune.fidelity import Regret, flip_rate, regret, times, winners
from moegen.tune.freeze import choices_by_class, freeze_tables, policy_content, table_view
from moegen.tune.policy import SelectPolicy
from moegen.tune.select import Choice

#: (tokens, trial), rising
Curve = list[tuple[int, Trial]]


@dataclass(frozen=True, kw_only=True)
class ClassReport:
    """One numerics class: its choices, the curves of its pipelines by routing, and how much the choice costs.

    ``flips`` is the share of points whose winner differs between the two newest sessions that measured them; None when
    only one session did.
    """

    numerics: Numerics
    choices: tuple[Choice, ...]
    curves: dict[str, dict[str, Curve]]
    regret: Regret | None
    flips: float | None


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Gate results of one pipeline: statuses counted, and the worst relative errors of the whole output and of a
    row."""

    pipeline: str
    statuses: dict[str, int]
    layer_error: float | None
    row_error: float | None
    note: str


@dataclass(frozen=True, kw_only=True)
class BuiltKernel:
    """One artifact: seconds it took to compile, bytes on disk."""

    variant: str
    seconds: float | None
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything that a report shows.

    ``ops`` maps (op kind, variant) to medians by tokens under the first routing; ``sources`` counts decisions by source
    for every token count up to twice the largest tuned one.
    """

    package: Package
    target: Target
    environment: Environment
    policy: dict[str, object]
    classes: tuple[ClassReport, ...]
    accuracy: tuple[Accuracy, ...]
    ops: dict[tuple[str, str], dict[int, float]]
    kernels: tuple[BuiltKernel, ...]
    sources: dict[str, int]
    sessions: int
    trials: int
    pipelines: dict[str, Pipeline]


def gather(
    results: Iterable[Result],
    package: Package,
    target: Target,
    store: ArtifactStore,
    selection: SelectPolicy,
    pins: Sequence[Pin] = (),
) -> ReportData:
    """Collects a report's facts on the machine of the newest session.

    Raises:
        TuneError: there is no trial, or none that is valid.
    """
    offer = package.offer_digest(target)
    mine = [r for r in results if r.problem.package == offer and r.problem.target == target.value]
    tables = freeze_tables(mine, package, target, selection, pins)
    view = table_view(mine)
    newest = max(view, key=lambda result: (result.session.started, result.session.id))
    pipelines = {pipeline.name: pipeline for pipeline in package.targets[target].pipelines}
    return ReportData(
        package=package,
        target=target,
        environment=newest.environment,
        policy=dict(policy_content(newest.policy)),
        classes=tuple(_classes(view, package, target, selection, pins)),
        accuracy=tuple(_accuracy(view)),
        ops=_ops(view),
        kernels=tuple(_kernels(store, package, newest.environment.arch)),
        sources=_sources(tables, pipelines, package.targets[target].default),
        sessions=len({result.session.id for result in view}),
        trials=len(view),
        pipelines=pipelines,
    )


def _classes(
    view: list[Result], package: Package, target: Target, selection: SelectPolicy, pins: Sequence[Pin]
) -> Iterable[ClassReport]:
    by_session: dict[str, list[Result]] = defaultdict(list)
    for result in view:
        by_session[result.session.id].append(result)
    latest = sorted(by_session.values(), key=lambda group: (group[0].session.started, group[0].session.id))[-2:]
    for numerics, choices in choices_by_class(view, package, target, selection, pins).items():
        if not choices:
            continue
        per_session = [winners(choices_by_class(group, package, target, selection)[numerics]) for group in latest]
        shared = len(per_session) == 2 and bool(per_session[0].keys() & per_session[1].keys())
        yield ClassReport(
            numerics=numerics,
            choices=tuple(choices),
            curves=_curves(view, choices),
            regret=regret(winners(choices), times(choices)),
            flips=flip_rate(*per_session) if shared else None,
        )


def _curves(view: list[Result], choices: list[Choice]) -> dict[str, dict[str, Curve]]:
    """Routing → pipeline → timings that stand in the table."""
    trials = {result.trial.id: result for result in view}
    curves: dict[str, dict[str, Curve]] = {}
    for choice in choices:
        chosen = {candidate.pipeline: candidate.median_us for candidate in choice.candidates}
        for identity in choice.trials:
            trial = trials[identity].trial
            if chosen.get(trial.variant) == trial.median_us:
                curves.setdefault(choice.routing, {}).setdefault(trial.variant, []).append((choice.tokens, trial))
    for by_pipeline in curves.values():
        for curve in by_pipeline.values():
            curve.sort(key=lambda point: (point[0], point[1].id))
    return curves


def _accuracy(view: list[Result]) -> Iterable[Accuracy]:
    groups: dict[str, list[Trial]] = defaultdict(list)
    for result in view:
        if result.problem.subject is Subject.PIPELINE:
            groups[result.trial.variant].append(result.trial)
    for name, trials in sorted(groups.items()):
        layer = [trial.err_rel for trial in trials if trial.err_rel is not None]
        rows = [trial.err_max for trial in trials if trial.err_max is not None]
        yield Accuracy(
            pipeline=name,
            statuses=dict(Counter(trial.status.value for trial in trials)),
            layer_error=max(layer, default=None),
            row_error=max(rows, default=None),
            note=next((trial.note for trial in trials if trial.note), ""),
        )


def _ops(view: list[Result]) -> dict[tuple[str, str], dict[int, float]]:
    ops: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for result in sorted(view, key=lambda result: (result.routing.label == "uniform", result.session.started)):
        if result.problem.subject is Subject.OP and result.trial.median_us is not None:
            ops[(result.problem.op, result.trial.variant)][result.problem.tokens] = result.trial.median_us
    return dict(ops)


def _kernels(store: ArtifactStore, package: Package, arch: str) -> Iterable[BuiltKernel]:
    bundle = read_bundle(store, package.digest, arch)
    for variant, key in sorted(bundle.artifacts.items()) if bundle else ():
        artifact = store.lookup(key)
        if artifact is not None:
            seconds = artifact.manifest.meta.get("compile_s")
            yield BuiltKernel(variant=variant, seconds=seconds, bytes=artifact.manifest.bytes)


def _sources(tables: list[Table], pipelines: dict[str, Pipeline], default: str) -> dict[str, int]:
    """What a serving process would decide from, at every token count up to twice the largest tuned one."""
    table = tables[0]
    evidence = [Evidence(table=table, match=Match(fit=Fit.EXACT))]
    offered = {name: pipeline for name, pipeline in pipelines.items() if pipeline.numerics == table.numerics}
    decider = Decider(pipelines=offered, default=default, evidence=evidence, notify=lambda _: None)
    most = 2 * max(point.tokens for point in table.points)
    return dict(Counter(decider.decide(tokens).source.value for tokens in range(1, most + 1)))
