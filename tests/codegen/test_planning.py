"""Plans: enough legal schedules, reasons for the rest, a bounded and diverse choice, nothing invented."""

import json
from dataclasses import replace
from typing import Any

import pytest
from codegen.specs import W4A16, quickstart, spec

from moegen.codegen import explain_plan, plan
from moegen.codegen.planning import TargetPlan
from moegen.codegen.prune import Candidate, default_of, prune, rank
from moegen.codegen.registry import parse_variant
from moegen.core.devices import CPU_GENERIC
from moegen.core.enums import Epilogue, OpKind, Target
from moegen.core.errors import SpecError
from moegen.spec import LayerSpec


@pytest.fixture(scope="module")
def quick() -> TargetPlan:
    return plan(quickstart(), Target.CPU)


def test_the_quickstart_has_at_least_24_legal_gemm_schedules_of_each_kind(quick: TargetPlan) -> None:
    for kind in (OpKind.GEMM1, OpKind.GEMM2):
        legal = {
            judged.variant.schedule.name
            for judged in quick.judged
            if judged.variant.op.kind is kind and judged.verdict.legal
        }
        assert len(legal) >= 24, kind


def test_every_refusal_has_a_reason(quick: TargetPlan) -> None:
    refused = [judged for judged in quick.judged if not judged.verdict.legal]
    assert refused
    assert all(judged.verdict.predicate and judged.verdict.reason for judged in refused)
    assert {"output_block"} <= {judged.verdict.predicate for judged in refused}
    assert all(not judged.times_us for judged in refused)


def test_every_name_in_a_plan_parses_back(quick: TargetPlan) -> None:
    for judged in quick.judged:
        assert parse_variant(judged.name) == judged.variant


def test_pipelines_use_legal_variants_of_the_plan_only(quick: TargetPlan) -> None:
    legal = {judged.name for judged in quick.judged if judged.verdict.legal}
    names = {variant.name for variant in quick.variants}
    assert {step.variant for pipeline in quick.pipelines for step in pipeline.steps} == names
    assert names <= legal
    for pipeline in quick.pipelines:
        for step in pipeline.steps:
            assert parse_variant(step.variant).op == step.op


def test_pipelines_are_bounded_and_diverse(quick: TargetPlan) -> None:
    limit = quickstart().tune.pipelines
    assert len(quick.pipelines) == limit
    assert len({pipeline.name for pipeline in quick.pipelines}) == limit
    assert {pipeline.epilogue for pipeline in quick.pipelines} == set(Epilogue)
    assert {pipeline.row_tile for pipeline in quick.pipelines} == {1, 4, 16}
    assert quick.default in {pipeline.name for pipeline in quick.pipelines}
    assert quick.dropped
    assert all(item.slower >= 0 for item in quick.dropped)


def test_one_pack_serves_every_pipeline(quick: TargetPlan) -> None:
    for kind, choice in zip((OpKind.GEMM1, OpKind.GEMM2), quick.packs, strict=True):
        steps = [step for pipeline in quick.pipelines for step in pipeline.steps if step.op.kind is kind]
        assert {step.op.weight_pack for step in steps} == {choice.pack}
    # Codes 320 x 128 B, scales 384 x 16 B, 10 experts; W2: codes 256 x 80 B, scales 256 x 12 B.
    assert [choice.pack_bytes for choice in quick.packs] == [10 * (320 * 128 + 384 * 16), 10 * (256 * 80 + 256 * 12)]


def test_a_limit_below_the_modes_still_keeps_one_of_each() -> None:
    small = plan(spec(tune={"tokens": [1, 64], "pipelines": 1}, schedules={"cpu": {"rows": [2, 8]}}), Target.CPU)
    assert {pipeline.epilogue for pipeline in small.pipelines} == set(Epilogue)
    assert {pipeline.row_tile for pipeline in small.pipelines} == {2, 8}


def test_predictions_rise_with_tokens_and_cover_the_tuned_counts(quick: TargetPlan) -> None:
    for pipeline in quick.pipelines:
        tokens = [point for point, _ in pipeline.model_us]
        times = [time_us for _, time_us in pipeline.model_us]
        assert tokens == sorted(tokens)
        assert set(quickstart().tune.tokens) <= set(tokens)
        assert (tokens[0], tokens[-1]) == (1, 16384)
        assert times == sorted(times)


def test_plans_are_deterministic(quick: TargetPlan) -> None:
    assert plan(quickstart(), Target.CPU) == quick


def test_classes_are_told_apart_and_the_default_has_the_declared_one() -> None:
    layer = spec(numerics={"pre_quant_round": "fp32"})
    result = plan(layer, Target.CPU)
    default = next(pipeline for pipeline in result.pipelines if pipeline.name == result.default)
    assert default.epilogue is Epilogue.FUSED_FP4
    assert default.numerics == layer.numerics.value()
    assert "pre_quant_round differs between modes" in result.notes[0]
    assert plan(spec(), Target.CPU).notes == ()


def test_an_explicit_choice_is_obeyed() -> None:
    choice = {"tile": [{"rows": 2, "cols": 32, "k_chunk": 64}, {"rows": 8, "cols": 64, "k_chunk": 128}], "unroll": [2]}
    result = plan(spec(schedules={"cpu": choice}), Target.CPU)
    gemms = {judged.variant.schedule for judged in result.judged if judged.variant.op.kind is OpKind.GEMM2}
    tiles = {(s.number("rows"), s.number("cols"), s.number("k_chunk"), s.number("unroll")) for s in gemms}
    assert tiles == {(2, 32, 64, 2), (8, 64, 128, 2)}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"columns": [32]}, "unknown schedule field 'columns'"),
        ({"cols": [True]}, "True is no int"),
        ({"tile": [{"depth": 3}]}, "unknown schedule field 'depth'"),
        ({"tile": [3]}, "3 is no tile"),
        ({"cols": [24]}, "no legal pipeline for interleaved, ordered: no legal schedule for gemm1: cols"),
        ({"cols": [16]}, "no legal pipeline for fused_fp4, ordered: no legal schedule for gemm1: output_block"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        plan(spec(schedules={"cpu": choice}), Target.CPU)


def test_modes_that_the_spec_leaves_out_are_explained() -> None:
    rejected = dict(plan(spec(**W4A16), Target.CPU).rejected)
    assert "gemm2 reads bf16 rows" in rejected["fused_fp4"]
    assert dict(plan(spec(epilogues=["compact"]), Target.CPU).rejected) == {
        "interleaved": "legal, but not in the spec's epilogues",
        "fused_fp4": "legal, but not in the spec's epilogues",
    }


def test_a_target_outside_the_spec_is_refused() -> None:
    with pytest.raises(SpecError, match="not in the spec's targets"):
        plan(spec(), Target.SM_90A)


def test_a_slower_device_changes_times_and_not_legality(quick: TargetPlan) -> None:
    slow = plan(quickstart(), Target.CPU, replace(CPU_GENERIC, launch_us=500.0))
    verdicts = [{judged.name: judged.verdict for judged in result.judged} for result in (quick, slow)]
    assert verdicts[0] == verdicts[1]
    assert min(time_us for _, time_us in slow.pipelines[0].model_us) > 5 * 500.0


def test_explanations_are_plain_and_complete(quick: TargetPlan) -> None:
    explained = json.loads(json.dumps(explain_plan(quick)))
    assert explained["default"] == quick.default
    assert {item["name"] for item in explained["pipelines"]} == {pipeline.name for pipeline in quick.pipelines}
    assert sum(len(op["schedules"]) for op in explained["ops"]) == len(quick.judged)
    used = {entry["schedule"] for op in explained["ops"] for entry in op["schedules"] if entry["used"]}
    assert used == {variant.schedule.name for variant in quick.variants}
    assert all(item["slower"] >= 1.0 for item in explained["dropped"])


def candidates(layer: LayerSpec) -> list[Candidate]:
    result = plan(layer, Target.CPU)
    return [item.candidate for item in (*result.kept, *result.dropped)]


@pytest.mark.parametrize("limit", [1, 5, 40, 10_000])
def test_pruning_drops_or_keeps_and_never_invents(limit: int) -> None:
    ranked = rank(candidates(spec(schedules={"cpu": {"rows": [1, 8]}})))
    default = default_of(ranked, ranked[0].numerics)
    points = [str(number) for number in range(len(default.times_us))]
    kept, dropped = prune(ranked, default, limit, points)
    names = [item.candidate.name for item in kept] + [item.candidate.name for item in dropped]
    assert sorted(names) == sorted(candidate.name for candidate in ranked)
    assert kept[0].candidate == default
    assert len(kept) <= max(limit, 1 + 3 + 2)
