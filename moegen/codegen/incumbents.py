"""Pipelines that measurements chose stay in the plan, whatever the time model thinks of them now."""

from collections.abc import Callable, Mapping, Sequence

from moegen.codegen.judging import Judge, Judged
from moegen.codegen.pipelines import Shape, numerics_class, pipeline_ops
from moegen.codegen.prune import Candidate, Kept
from moegen.codegen.registry import parse_variant
from moegen.core.enums import Target
from moegen.core.errors import MoegenError
from moegen.core.package import Package

Incumbents = Mapping[tuple[str, ...], str]
"""Variants of a pipeline's steps in launch order → where it won, in words."""
FindIncumbents = Callable[[Package, Target], Incumbents]
"""Looks winners up by the layer; the package need hold nothing but the layer's facts."""


def nothing_measured(package: Package, target: Target) -> Incumbents:
    """No incumbents."""
    return {}


def keep_incumbents(
    incumbents: Incumbents, shapes: Sequence[Shape], packs: tuple[str, str], judge: Judge, kept: Sequence[Kept]
) -> list[Kept]:
    """``kept`` and the incumbents that it lacks, as far as their variants are still known and legal."""
    found = {item.candidate.name: item for item in kept}
    chains = {tuple(pipeline_ops(judge.spec, shape, packs)): shape for shape in shapes}
    for names, where in incumbents.items():
        steps = _judged(names, judge)
        shape = chains.get(tuple(step.variant.op for step in steps))
        if shape is not None and all(step.verdict.legal for step in steps):
            candidate = Candidate(shape=shape, numerics=numerics_class(judge.spec, shape.epilogue), steps=steps)
            found.setdefault(candidate.name, Kept(candidate=candidate, reason=f"measured: {where}"))
    return list(found.values())


def _judged(names: tuple[str, ...], judge: Judge) -> tuple[Judged, ...]:
    """The variants of these names, judged as any schedule is; none when one is no longer known."""
    try:
        return tuple(judge.judge(parse_variant(name)) for name in names)
    except MoegenError:
        return ()
