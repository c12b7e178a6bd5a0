"""Specs that list tiles: every one of them comes to be measured, beside its like."""

import pytest

from moegen.codegen.planning import TargetPlan, plan
from moegen.core.enums import OpKind, Target
from moegen.core.ops import OpSpec
from moegen.core.paths import data_root
from moegen.spec.load import load_spec

MODELS = ("dsv3", "gpt_oss_120b")


GEMMS = (OpKind.GEMM1, OpKind.GEMM2)


def paired_schedules(made: TargetPlan) -> set[str]:
    """Schedules that both gemms of some pipeline of the default's mode could have."""
    mode = next(pipeline.epilogue for pipeline in made.pipelines if pipeline.name == made.default)
    legal: dict[OpSpec, set[str]] = {}
    for judged in made.judged:
        if judged.variant.op.kind in GEMMS and judged.verdict.legal:
            legal.setdefault(judged.variant.op, set()).add(judged.variant.schedule.name)
    chains = {
        tuple(step.op for step in pipeline.steps if step.op.kind in GEMMS)
        for pipeline in made.pipelines
        if pipeline.epilogue is mode
    }
    separate = [chain for chain in chains if chain and not chain[0].gather]
    return set().union(*(legal[first] & legal[second] for first, second in separate))


@pytest.mark.parametrize("model", MODELS)
def test_every_listed_tile_is_in_a_pipeline_with_itself(model: str) -> None:
    made = plan(load_spec(data_root("specs") / "models" / f"{model}.yaml"), Target.SM_90A)
    pairs = set()
    for kept in made.kept:
        gemms = [s.variant for s in kept.candidate.steps if s.variant.op.kind in GEMMS]
        if len({gemm.schedule for gemm in gemms}) == 1:
            pairs |= {gemm.schedule.name for gemm in gemms}
    both = paired_schedules(made)
    assert len(both) >= 7
    assert pairs >= both
    routes = {s.name for kept in made.kept for s in kept.candidate.steps if s.variant.op.kind is OpKind.ROUTE}
    assert len(routes) == 2
    assert len(made.kept) <= 64
