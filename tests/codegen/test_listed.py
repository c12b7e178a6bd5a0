"""Specs that list tiles: every one of them comes to be measured, beside its like."""

import pytest

from moegen.codegen.planning import TargetPlan, plan
from moegen.core.enums import OpKind, Target
from moegen.core.paths import data_root
from moegen.spec.load import load_spec

MODELS = ("dsv3", "gpt_oss_120b")


def schedules(made: TargetPlan, kind: OpKind) -> set[str]:
    mode = next(pipeline.epilogue for pipeline in made.pipelines if pipeline.name == made.default)
    return {
        judged.variant.schedule.name
        for judged in made.judged
        if judged.variant.op.kind is kind
        and judged.verdict.legal
        and judged.variant.op.epilogue in (None, mode)
        and not judged.variant.op.gather
    }


@pytest.mark.parametrize("model", MODELS)
def test_every_listed_tile_is_in_a_pipeline_with_itself(model: str) -> None:
    made = plan(load_spec(data_root("specs") / "models" / f"{model}.yaml"), Target.SM_90A)
    pairs = set()
    for kept in made.kept:
        gemms = [s.variant for s in kept.candidate.steps if s.variant.op.kind in (OpKind.GEMM1, OpKind.GEMM2)]
        if len({gemm.schedule for gemm in gemms}) == 1:
            pairs |= {gemm.schedule.name for gemm in gemms}
    both = schedules(made, OpKind.GEMM1) & schedules(made, OpKind.GEMM2)
    assert len(both) >= 7
    assert pairs >= both
    routes = {s.name for kept in made.kept for s in kept.candidate.steps if s.variant.op.kind is OpKind.ROUTE}
    assert len(routes) == 2
    assert len(made.kept) <= 64
