"""Specs that list tiles: every one of them comes to be measured, beside its like."""

from functools import cache

import pytest

from moegen.codegen.planning import TargetPlan, plan
from moegen.codegen.prune import Candidate
from moegen.codegen.schedule import Value
from moegen.codegen.variant import Variant
from moegen.core.enums import OpKind, Target
from moegen.core.ops import OpSpec
from moegen.core.paths import data_root
from moegen.spec.load import load_spec
from moegen.spec.models import LayerSpec

MODELS = ("dsv3", "deepseek_v4_flash", "gpt_oss_120b", "qwen3_30b_a3b")
GEMMS = (OpKind.GEMM1, OpKind.GEMM2)
Fields = tuple[tuple[str, Value], ...]


@cache
def spec_of(model: str) -> LayerSpec:
    return load_spec(data_root("specs") / "models" / f"{model}.yaml")


@cache
def made(model: str) -> TargetPlan:
    return plan(spec_of(model), Target.SM_90A)


def gemms_of(candidate: Candidate) -> tuple[Variant, ...]:
    return tuple(step.variant for step in candidate.steps if step.variant.op.kind in GEMMS)


def legal_fields(result: TargetPlan) -> dict[OpSpec, set[Fields]]:
    legal: dict[OpSpec, set[Fields]] = {}
    for judged in result.judged:
        if judged.variant.op.kind in GEMMS and judged.verdict.legal:
            legal.setdefault(judged.variant.op, set()).add(judged.variant.schedule.values)
    return legal


@pytest.mark.parametrize("model", MODELS)
def test_every_listed_tile_that_both_gemms_can_have_is_in_a_pipeline_with_its_like(model: str) -> None:
    result = made(model)
    legal = legal_fields(result)
    for numerics in {item.candidate.numerics for item in result.kept}:
        chains = [gemms_of(k.candidate) for k in result.kept if k.candidate.numerics == numerics]
        pairs = [chain for chain in chains if len(chain) == 2]
        here = {first.schedule.values for first, second in pairs if first.schedule.values == second.schedule.values}
        ops = {(first.op, second.op) for first, second in pairs}
        assert here == set().union(*(legal[first] & legal[second] for first, second in ops))
        assert len(here) >= 7


@pytest.mark.parametrize("model", MODELS)
def test_every_listed_tile_is_measured_for_each_gemm_that_can_have_it(model: str) -> None:
    result = made(model)
    legal = legal_fields(result)
    for place, kind in enumerate(GEMMS):
        used = {gemms_of(k.candidate)[place].schedule.values for k in result.kept if len(gemms_of(k.candidate)) == 2}
        assert used == set().union(*(fields for op, fields in legal.items() if op.kind is kind))


@pytest.mark.parametrize("model", MODELS)
def test_a_list_is_pruned_to_few_pipelines_with_routing_for_few_and_for_many_slots(model: str) -> None:
    result = made(model)
    routes = {s.name for kept in result.kept for s in kept.candidate.steps if s.variant.op.kind is OpKind.ROUTE}
    assert len(routes) == 2
    assert len(result.kept) <= spec_of(model).tune.pipelines


def test_a_tile_may_say_whether_blocks_claim_their_items_or_cut_the_last_of_them() -> None:
    names = {v.schedule.name for kept in made("dsv3").kept for v in gemms_of(kept.candidate) if v.op.decoded}
    assert "sm_90a-claims-w_n8_16_32_64_128-g4-m1-b1" in names
    assert "sm_90a-ladder-w_n8_16_32_64_128-g4-m1-b1" not in names
    assert "sm_90a-ladder-w_n64_96_128-g4-m1-b1" in names
    assert {f"sm_90a-{family}-w_n120_128_136_144_152-g4-m1-b1" for family in ("ladder", "claims")} <= names
    assert {"sm_90a-even-w_n8-g4-m1-b1-p4", "sm_90a-ladder-w_n8-g4-m1-b1"} <= names


def test_rows_of_codes_are_not_claimed_whatever_a_tile_says() -> None:
    result = made("qwen3_30b_a3b")
    coded = {v.schedule.name for k in result.kept for v in gemms_of(k.candidate) if v.op.reads_codes}
    assert "sm_90a-ladder-w_n8_16_32-g4-m1-b1" in coded
    assert not any("claims" in name for name in coded)
