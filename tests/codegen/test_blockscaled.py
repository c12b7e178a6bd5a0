"""Legality of block-scaled tcgen05 gemms: each predicate at its edge, with the numbers it compared."""

from dataclasses import replace
from typing import Any

import pytest
from codegen.specs import W4A16, quickstart, spec

from moegen.codegen import explain_plan, plan
from moegen.codegen.catalog import judge
from moegen.codegen.catalogs.blockscaled import (
    PREDICATES,
    family,
    shared_memory_bytes,
    tensor_memory_columns,
    token_tile,
)
from moegen.codegen.pipelines import Shape, pipeline_ops
from moegen.codegen.registry import catalog
from moegen.codegen.schedule import Schedule
from moegen.core.devices import B200
from moegen.core.enums import CombineMode, Epilogue, OpKind, ScaleLayout, Target
from moegen.core.errors import SpecError
from moegen.core.ops import OpSpec

FAMILY = family(Target.SM_100A)
SWIZZLED = ScaleLayout.SWIZZLE_128X4
BASE: dict[str, Any] = {
    "rows": 128,
    "cols": 128,
    "k": 256,
    "stages": 3,
    "acc_stages": 2,
    "cta_group": 1,
    "ctas": 148,
    "swap_ab": False,
    "bulk_stores": False,
}


def schedule(**changes: Any) -> Schedule:
    return FAMILY.make(**{**BASE, **changes})


def gemm1(row_tile: int, epilogue: Epilogue = Epilogue.FUSED_FP4, **changes: Any) -> OpSpec:
    shape = Shape(epilogue=epilogue, combine=CombineMode.ORDERED, row_tile=row_tile)
    return next(op for op in pipeline_ops(spec(**changes), shape) if op.kind is OpKind.GEMM1)


def verdict(made: Schedule, op: OpSpec | None = None) -> str:
    return judge(PREDICATES, op or gemm1(token_tile(made)), made, B200).predicate


@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("cols", [64, 128, 192, 256])
def test_every_width_is_legal_plain_and_swapped_alone_and_in_pairs(cols: int, group: int, swap_ab: bool) -> None:
    made = schedule(rows=128 * group, cols=cols, cta_group=group, acc_stages=1, swap_ab=swap_ab)
    assert verdict(made) == ""


@pytest.mark.parametrize(
    ("changes", "predicate"),
    [
        ({"scale_layout": {"activations": "linear", "weights": "swizzle_128x4"}}, "scale_layout"),
        ({"scale_layout": {"activations": "swizzle_128x4", "weights": "linear"}}, "scale_layout"),
    ],
)
def test_a_layer_that_the_kernels_cannot_serve_says_why(changes: dict[str, Any], predicate: str) -> None:
    assert verdict(schedule(), gemm1(128, **changes)) == predicate


@pytest.mark.parametrize("target", [Target.SM_100A, Target.SM_103A])
@pytest.mark.parametrize("layout", ["linear", "swizzle_128x4"])
def test_a_layer_may_declare_any_scale_layout(layout: str, target: Target) -> None:
    """Only kernels see block scales: the plan keeps them in tiles and says so where the spec has another order."""
    declared = {"activations": layout, "weights": layout}
    result = plan(spec(targets=[target.value], schedules={}, scale_layout=declared), target)
    ops = [step.op for pipeline in result.pipelines for step in pipeline.steps]
    gemms = [op for op in ops if op.weight_pack]
    assert gemms
    assert {layout for op in gemms for layout in (op.scale_layout, op.weight_scale_layout)} == {SWIZZLED}
    assert {op.scale_layout for op in ops if op.kind is OpKind.QUANTIZE} == {SWIZZLED}
    assert any("128x4" in note for note in result.notes) == (layout == "linear")


@pytest.mark.parametrize(("ctas", "predicate"), [(0, "ctas"), (1, ""), (148, ""), (149, "ctas")])
def test_a_persistent_grid_fits_the_device(ctas: int, predicate: str) -> None:
    assert verdict(schedule(ctas=ctas)) == predicate


@pytest.mark.parametrize(
    ("changes", "predicate"),
    [
        ({"rows": 64}, "pairing"),
        ({"rows": 256}, "pairing"),
        ({"cta_group": 2}, "pairing"),
        ({"cta_group": 3, "rows": 384}, "cta_group"),
        ({"cols": 264}, "width"),
        ({"cols": 0}, "width"),
        ({"swap_ab": True, "cols": 12}, "width"),
        ({"swap_ab": True, "rows": 256, "cta_group": 2, "cols": 24}, "width"),
        ({"cols": 96}, "scale_width"),
        ({"cols": 224}, "scale_width"),
        ({"cols": 32}, "scale_width"),
        ({"swap_ab": True, "cols": 24}, "scale_width"),
        ({"swap_ab": True, "cols": 32, "rows": 256, "cta_group": 2}, "scale_width"),
        ({"k": 32}, "depth"),
        ({"k": 96}, "depth"),
        ({"k": 192}, "box"),
        ({"cols": 256, "acc_stages": 2, "k": 1024}, "tensor_memory"),
        ({"bulk_stores": True}, "bulk_stores"),
        ({"acc_stages": 3}, "acc_stages"),
        ({"stages": 1}, "stages"),
        ({"stages": 7}, "shared_memory"),
    ],
)
def test_an_illegal_tile_fails_its_predicate(changes: dict[str, Any], predicate: str) -> None:
    assert verdict(schedule(**changes)) == predicate


@pytest.mark.parametrize("cols", [8, 16, 32])
def test_narrow_tiles_are_tiles_of_tokens_of_one_cta(cols: int) -> None:
    assert verdict(schedule(cols=cols, swap_ab=True)) == ""


def test_the_width_rule_names_the_operand_role() -> None:
    """The predicate is the same, the reason names who would be cut."""
    for swap_ab, role in ((False, "weight"), (True, "token")):
        found = judge(PREDICATES, gemm1(96 if swap_ab else 128), schedule(cols=96, swap_ab=swap_ab), B200)
        assert found.predicate == "scale_width"
        assert role in found.reason


def test_pairs_need_enough_weight_rows_when_swapped() -> None:
    pair = schedule(rows=256, cta_group=2, cols=64, swap_ab=True)
    assert verdict(pair) == ""
    narrow: dict[str, Any] = {"geometry": {"hidden": 256, "intermediate": 112, "experts": 10, "top_k": 3}}
    assert verdict(pair, gemm1(64, **narrow)) == "pairing"


def test_token_tile_and_row_format_must_be_the_ops() -> None:
    assert verdict(schedule(), gemm1(64)) == "row_tile"
    assert verdict(schedule(), gemm1(128, Epilogue.COMPACT, **W4A16)) == "operand"


def test_boxes_of_rows_lie_within_a_token_tile() -> None:
    rows = gemm1(32, Epilogue.COMPACT)
    assert verdict(schedule(bulk_stores=True, cols=32, swap_ab=True), rows) == ""
    assert verdict(schedule(bulk_stores=True, cols=16, swap_ab=True), gemm1(16, Epilogue.COMPACT)) == "bulk_stores"
    boxes = shared_memory_bytes(schedule(bulk_stores=True)) - shared_memory_bytes(schedule())
    assert boxes == 4 * 2 * 32 * 64


def test_accumulators_of_256_columns_share_some() -> None:
    """512 columns hold 2 · 256 and 12 of scales for each 64 of depth only when the accumulators overlap."""
    for k in (64, 128, 256):
        wide = schedule(cols=256, k=k, stages=2)
        assert tensor_memory_columns(wide) == 512 + 12 * k // 64
        assert verdict(wide) == ""


def test_tensor_memory_is_accumulators_and_scales() -> None:
    """N 128 twice, and per K 64 four columns for each operand's 128 rows: 256 + 4 · 8; N 256: 512 + 4 · 12."""
    assert tensor_memory_columns(schedule()) == 288
    assert tensor_memory_columns(schedule(cols=256, acc_stages=1)) == 256 + 48
    assert tensor_memory_columns(schedule(cols=256)) == 560
    assert tensor_memory_columns(schedule(rows=256, cta_group=2)) == 288


def test_shared_memory_counts_alignment_and_barriers() -> None:
    """A stage of 128 x 128 x 256: 2 · 16 KiB of codes, 2 · 2 KiB of scales; 1 KiB of barriers."""
    assert shared_memory_bytes(schedule()) == 3 * 36 * 1024 + 1024
    swapped = schedule(swap_ab=True, cols=64, k=64)
    assert shared_memory_bytes(swapped) == 3 * (4096 + 2048 + 1024 + 1024) + 32 * 132 * 4 + 1024
    narrow = schedule(swap_ab=True, cols=8, k=64)
    assert shared_memory_bytes(narrow) == 3 * (4096 + 1024 + 1024 + 1024) + 8 * 132 * 4 + 1024


@pytest.mark.parametrize("spare", [0, -1])
def test_shared_memory_is_compared_with_the_device(spare: int) -> None:
    device = replace(B200, smem_bytes=shared_memory_bytes(schedule()) + spare)
    found = judge(PREDICATES, gemm1(128), schedule(), device)
    assert found.legal == (spare == 0)
    if not found.legal:
        assert dict(found.numbers) == {"bytes": 111616, "limit": 111615}


def test_sm_100a_offers_every_mode_of_a_w4a4_layer() -> None:
    result = plan(quickstart(), Target.SM_100A)
    assert {pipeline.epilogue for pipeline in result.pipelines} == set(Epilogue)
    refused = {name for op in explain_plan(result)["ops"] for name in op["refused"]}
    assert {"pairing", "shared_memory", "bulk_stores"} <= refused


def test_explicit_tiles_of_a_spec_are_checked_against_the_family() -> None:
    sm_100a: dict[str, Any] = {"targets": ["sm_100a"]}
    tiles = {"tile": [{"rows": 128, "cols": 256, "k": 256}], "cta_group": [1, 2], "swap_ab": [False, True]}
    result = plan(spec(**sm_100a, schedules={"sm_100a": tiles}), Target.SM_100A)
    judged = {j.variant.schedule.number("cols") for j in result.judged if j.variant.op.kind is OpKind.GEMM1}
    assert judged == {256}
    with pytest.raises(SpecError, match="unknown schedule field 'warps'"):
        plan(spec(**sm_100a, schedules={"sm_100a": {"warps": [4]}}), Target.SM_100A)


def test_both_blackwell_targets_share_templates_and_differ_in_names() -> None:
    one, other = catalog(Target.SM_100A), catalog(Target.SM_103A)
    shape = Shape(epilogue=Epilogue.FUSED_FP4, combine=CombineMode.ORDERED, row_tile=128)
    op = next(op for op in pipeline_ops(spec(), shape) if op.kind is OpKind.QUANTIZE)
    schedules = [item.schedules(op, B200, None) for item in (one, other)]
    assert one.template(op, schedules[0][0]) == other.template(op, schedules[1][0])
    assert {s.name for s in schedules[0]}.isdisjoint({s.name for s in schedules[1]})
