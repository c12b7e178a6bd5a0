"""Walks from a call back to the line of the spec: decision, table, trials, artifacts, sources, spec."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moegen.core.enums import Target
from moegen.core.errors import MoegenError, StoreError
from moegen.core.package import Package, Pipeline
from moegen.runtime.choice import Choice, matching
from moegen.runtime.decision import Decider, Decision, Evidence, bracket
from moegen.runtime.workspace import plan_arena
from moegen.store.database import DATABASE, Result, TrialDatabase
from moegen.store.trials import Subject

if TYPE_CHECKING:
    from moegen.runtime.package import LoadedPackage

_SPECS = ("spec.yaml", "spec.toml")
_SPEC_KEYS = ("geometry", "epilogues", "numerics", "schedules")
_SHOWN_RIVALS = 6


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """One launch: the variant, its rendered source, and the artifact that runs, if that is known."""

    op: str
    variant: str
    source: Path
    source_digest: str
    artifact: str = ""
    artifact_directory: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a call runs what it runs; ``str()`` is the text for people.

    Attributes:
        package, target, device: what was loaded, and where it runs.
        decision: the choice with its grounds.
        pipeline: the chosen pipeline.
        table: where the table lies and what it was made on; None when none took part.
        trials: ids of the chosen pipeline's trials at the points used, when the trials database is here.
        steps: each launch; without artifacts where no kernel was looked up.
        spec: (file, line, text) of the spec lines that the choice goes back to.
        spec_digest: identity of the spec's content.
        workspace_bytes: bytes of one workspace.
        counts: calls so far by source.
    """

    package: str
    target: str
    device: str
    decision: Decision
    pipeline: Pipeline
    table: Evidence | None
    trials: tuple[str, ...]
    steps: tuple[StepTrace, ...]
    spec: tuple[tuple[Path, int, str], ...]
    spec_digest: str
    workspace_bytes: int
    counts: dict[str, int]

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(loaded: "LoadedPackage", tokens: int) -> Explanation:
    """Explains a call with ``tokens`` >= 1 tokens without running it; raises MoegenError below that."""
    if tokens < 1:
        raise MoegenError(f"{tokens} tokens: such a call launches nothing", "explain", "ask for 1 token or more")
    decision = loaded.decider.decide(tokens)
    pipeline = loaded.decider.pipelines[decision.pipeline]
    evidence = next((item for item in loaded.decider.evidence if item.table.digest == decision.table), None)
    steps = []
    for step in pipeline.steps:
        source, artifact = loaded.book.source(step.variant), loaded.book.artifact(step.variant)
        steps.append(
            StepTrace(
                op=step.op.kind.value,
                variant=step.variant,
                source=loaded.directory / source.path,
                source_digest=source.digest,
                artifact=artifact.key,
                artifact_directory=artifact.directory,
            )
        )
    return Explanation(
        package=loaded.package.name,
        target=loaded.target.value,
        device=loaded.runner.facts.name,
        decision=decision,
        pipeline=pipeline,
        table=evidence,
        trials=_trials(loaded, decision, evidence),
        steps=tuple(steps),
        spec=tuple(_spec_lines(loaded.directory, _SPEC_KEYS)),
        spec_digest=loaded.package.spec_digest,
        workspace_bytes=loaded.workspace_bytes,
        counts={source.value: count for source, count in loaded.decider.counts.items() if count},
    )


def explain_offline(
    package: Package,
    directory: Path,
    target: Target,
    evidence: Sequence[Evidence],
    tokens: int,
    choice: Choice | None = None,
) -> Explanation:
    """What the machine of the tables would run, on a machine that has neither its device nor its kernels.

    Args:
        package: the manifest, in ``directory``.
        evidence: tables of the layer; every pipeline of the manifest is taken as built.
        tokens: T, at least 1.
        choice: routing class whose trials decide, and what else a caller of ``load`` may ask for.

    Raises:
        MoegenError: fewer tokens, or a target without pipelines.
    """
    if tokens < 1:
        raise MoegenError(f"{tokens} tokens: such a call launches nothing", "explain", "ask for 1 token or more")
    offer, choice = package.targets[target], choice or Choice()
    offered = {pipeline.name: pipeline for pipeline in matching(package, offer, choice)}
    if not offered:
        raise MoegenError(f"{package.name} offers no pipeline on {target.value}", str(directory), "moegen plan --why")
    numerics = next(iter(offered.values())).numerics
    mine = [item for item in evidence if item.table.numerics == numerics]
    decider = Decider(pipelines=offered, default=offer.default, evidence=mine, routing=choice.routing, notify=_nothing)
    decision = decider.decide(tokens)
    pipeline, sources = offered[decision.pipeline], {source.variant: source for source in offer.sources}
    steps = [
        StepTrace(
            op=step.op.kind.value,
            variant=step.variant,
            source=directory / sources[step.variant].path,
            source_digest=sources[step.variant].digest,
        )
        for step in pipeline.steps
    ]
    return Explanation(
        package=package.name,
        target=target.value,
        device=mine[0].table.environment.device if mine else "no device: nothing was measured",
        decision=decision,
        pipeline=pipeline,
        table=next((item for item in mine if item.table.digest == decision.table), None),
        trials=(),
        steps=tuple(steps),
        spec=tuple(_spec_lines(directory, _SPEC_KEYS)),
        spec_digest=package.spec_digest,
        workspace_bytes=plan_arena(pipeline, tokens).arena,
        counts={},
    )


def _nothing(decision: Decision) -> None:
    """An explanation says where a decision came from; a log line need not."""


def _trials(loaded: "LoadedPackage", decision: Decision, evidence: Evidence | None) -> tuple[str, ...]:
    database = loaded.store.home / DATABASE
    if evidence is None or not database.is_file():
        return ()
    points = sorted({point.tokens for point in evidence.table.points if point.routing == decision.routing})
    place = bracket(decision.tokens, points)
    found: list[Result] = []
    try:
        with TrialDatabase(database) as trials:
            for tokens in sorted({place.low, place.high}):
                found += trials.results(
                    package=evidence.table.package, target=loaded.target.value, subject=Subject.PIPELINE, tokens=tokens
                )
    except StoreError:  # serving machines may mount the store read-only; the table has the figures
        return ()
    return tuple(
        result.trial.id
        for result in found
        if result.trial.variant == decision.pipeline and result.routing.label == decision.routing
    )


def _spec_lines(directory: Path, keys: tuple[str, ...]) -> Iterator[tuple[Path, int, str]]:
    """Top-level lines of the package's spec that decide which pipelines exist."""
    pattern = re.compile(rf"^\[?({'|'.join(keys)})\b")
    for name in _SPECS:
        path = directory / name
        if path.is_file():
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                if pattern.match(line):
                    yield path, number, line.split("#", 1)[0].rstrip()


def _lines(it: Explanation) -> Iterator[str]:
    decision = it.decision
    expected = "unknown" if decision.predicted_us is None else f"{decision.predicted_us:.1f} µs"
    yield f"{it.package} on {it.target} ({it.device}): T = {decision.tokens}, routing {decision.routing}"
    yield f"decision   {decision.source.value}: {decision.reason}"
    modes = f"{it.pipeline.epilogue.value}, {it.pipeline.combine.value}"
    yield f"pipeline   {it.pipeline.name} ({modes}), expected {expected}"
    for name, time_us in decision.rivals[:_SHOWN_RIVALS]:
        yield f"  {'→' if name == decision.pipeline else ' '} {time_us:10.1f} µs  {name}"
    if len(decision.rivals) > _SHOWN_RIVALS:
        yield f"    … and {len(decision.rivals) - _SHOWN_RIVALS} more"
    if it.table is None:
        yield "table      none took part"
    else:
        table = it.table.table
        yield f"table      {table.digest[:16]}… in {it.table.path}, measured on {table.environment.device}"
        differing = ", ".join(f"{name} {theirs} → {ours}" for name, theirs, ours in it.table.match.differing)
        yield f"           fit {it.table.match.fit.value}{': ' + differing if differing else ''}"
        ids = ", ".join(trial[:16] for trial in it.trials) or "not readable on this machine"
        yield f"trials     {ids} (table made from {table.trials[:16]}…)"
    for number, step in enumerate(it.steps, start=1):
        yield f"step {number}     {step.op}: {step.variant}"
        if step.artifact:
            yield f"           artifact {step.artifact[:16]}… in {step.artifact_directory}"
        yield f"           source {step.source} (sha256 {step.source_digest[:16]}…)"
    yield f"spec       digest {it.spec_digest[:16]}…"
    for path, line, text in it.spec:
        yield f"           {path}:{line}  {text}"
    yield f"workspace  {it.workspace_bytes} bytes; calls so far: {it.counts or 'none'}"
