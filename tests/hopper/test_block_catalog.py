"""What the sm_90a catalog offers and refuses of whole-layer kernels, and how plans, builds and workspaces take them."""

import json
import re
from dataclasses import replace

import pytest
from codegen.specs import spec
from hopper.blocks import RAGGED, SMALL, block_op, block_variant, numerics
from hopper.cases import HopperCase
from hopper.workshop import Workshop
from kernels.cases import ACTIVATIONS

from moegen.build.nvcc import usage
from moegen.codegen.catalogs.sm90_block import BLOCK, CATALOG, stages
from moegen.codegen.explain import explain_plan
from moegen.codegen.load import expected_load
from moegen.codegen.planning import plan
from moegen.codegen.registry import parse_variant
from moegen.core.abi import arguments, weight_pack_of
from moegen.core.canonical import canonical_json
from moegen.core.devices import H200
from moegen.core.enums import ActFormat, CombineMode, Epilogue, OpKind, RouterWeight, Target, TokenDtype
from moegen.core.ops import OpSpec
from moegen.core.package import pipeline_from_json
from moegen.runtime.decision import Decider
from moegen.runtime.workspace import main_op, plan_arena
from moegen.spec.models import Activations

CASE = HopperCase(**{**SMALL, "hidden": 2880, "intermediate": 704, "experts": 60, "top_k": 4})


def verdict(op: OpSpec, width: int = 8, warpgroups: int = 4, slots: int = 256) -> str:
    schedule = BLOCK.make(width=width, warpgroups=warpgroups, tiles=2, slots=slots)
    return CATALOG.verdict(op, schedule, H200).predicate


def test_names_parse_back() -> None:
    for activation in ("swiglu", "relu2"):
        variant = block_variant(replace(CASE, activation=ACTIVATIONS[activation]))
        assert parse_variant(variant.name) == variant


def test_forms_that_the_kernel_does_not_compute_are_refused() -> None:
    op = block_op(CASE)
    assert verdict(op) == ""
    assert verdict(replace(op, act_format=ActFormat.NVFP4)) == "form"
    assert verdict(replace(op, epilogue=Epilogue.INTERLEAVED)) == "form"
    assert verdict(replace(op, combine=CombineMode.ATOMIC)) == "combine"
    assert verdict(replace(op, rows_layout="")) == "rows_layout"
    assert verdict(replace(op, row_tile=4)) == "row_tile"
    assert verdict(replace(op, weight_pack="rows8")) == "weight_pack"


def test_shapes_that_do_not_fit_are_refused() -> None:
    op = block_op(CASE)
    assert verdict(op, width=12) == "shape"
    assert verdict(op, warpgroups=1) == "shape"
    assert verdict(op, slots=48) == "slots"
    assert verdict(op, slots=2048) == "slots"
    assert verdict(replace(op, top_k=40)) == "top_k"
    assert verdict(op, width=24, warpgroups=4) == "registers"
    assert verdict(op, width=32, warpgroups=4) == "shared_memory"
    weighted = block_op(replace(CASE, activation=ACTIVATIONS["situ"], numerics=numerics(RouterWeight.PRE_QUANT)))
    assert verdict(weighted) == "registers"
    assert verdict(weighted, warpgroups=3) == ""


def test_a_block_reads_the_packs_of_the_separate_gemms() -> None:
    ungated = replace(CASE, activation=ACTIVATIONS["silu"])
    for case in (CASE, ungated, replace(CASE, dtype=TokenDtype.FP16), replace(ungated, dtype=TokenDtype.FP16)):
        op = block_op(case)
        for kind, name in ((OpKind.GEMM1, "w1_packed"), (OpKind.GEMM2, "w2_packed")):
            assert CATALOG.weight_packs(case.ops()[kind]) == (weight_pack_of(op, name),)


def test_time_is_infinite_beyond_the_slots() -> None:
    op, schedule = block_op(CASE), BLOCK.make(width=8, warpgroups=4, tiles=2, slots=256)
    assert CATALOG.most_tokens(op, schedule) == 64
    times = [CATALOG.time_us(op, schedule, H200, expected_load(count, 60, 4, 8)) for count in (1, 8, 64, 65)]
    assert times == sorted(times)
    assert times[2] < times[3] == float("inf")


GEOMETRY = ("hidden", "intermediate", "experts", "top_k")
#: (hidden, intermediate, experts, top_k): microseconds by token count, with one and with two m64 weight tiles an item.
MEASURED = {
    (2048, 768, 128, 8): {1: (14.4, 15.3), 2: (19.4, 21.6), 4: (30.5, 29.0), 8: (49.5, 45.3), 16: (76.0, 69.6)},
    (2880, 2880, 128, 4): {1: (25.6, 27.5), 2: (37.9, 39.8), 4: (65.3, 63.4), 8: (118.9, 112.0), 16: (216.4, 202.2)},
    (7168, 2048, 256, 8): {1: (57.3, 56.5), 2: (107.5, 104.6), 8: (378.7, 362.1), 32: (1143.8, 1085.5)},
}


@pytest.mark.parametrize("sizes", MEASURED, ids=str)
def test_modelled_times_follow_the_measured_ones(sizes: tuple[int, int, int, int]) -> None:
    """Figures of benchmarks/hopper/NOTES_BLOCK.md, within a tenth."""
    experts, top_k = sizes[2:]
    op = block_op(HopperCase(**{**SMALL, **dict(zip(GEOMETRY, sizes, strict=True))}))
    for tokens, measured in MEASURED[sizes].items():
        load = expected_load(tokens, experts, top_k, 8)
        for tiles, wanted_us in zip((1, 2), measured, strict=True):
            schedule = BLOCK.make(width=8, warpgroups=4, tiles=tiles, slots=256)
            assert CATALOG.time_us(op, schedule, H200, load) == pytest.approx(wanted_us, rel=0.1), (tokens, tiles)


@pytest.mark.parametrize("sizes", MEASURED, ids=str)
def test_untuned_layers_take_one_kernel_where_it_is_faster(sizes: tuple[int, int, int, int]) -> None:
    layer = spec(
        geometry=dict(zip(GEOMETRY, sizes, strict=True)),
        activations=Activations(format=ActFormat.BF16),
        epilogues=("compact",),
        targets=("sm_90a",),
        schedules={},
        tune={"tokens": [1, 32, 512], "routing": ["uniform"], "pipelines": 12},
    )
    made = plan(layer, Target.SM_90A)
    offered = {pipeline.name: pipeline for pipeline in made.pipelines}
    decider = Decider(pipelines=offered, default=made.default, notify=lambda _: None)
    taken = {tokens: main_op(offered[decider.decide(tokens).pipeline]).kind for tokens in (1, 2, 16, 32, 64, 4096)}
    assert {tokens for tokens, kind in taken.items() if kind is OpKind.BLOCK} == {1, 2}


def test_plans_offer_blocks_beside_separate_ops() -> None:
    """Never as the default, with their limit, and only where one kernel can compute the mode."""
    layer = spec(
        activations=Activations(format=ActFormat.BF16), epilogues=("interleaved", "compact"), targets=("sm_90a", "cpu")
    )
    made = plan(layer, Target.SM_90A)
    blocks = [pipeline for pipeline in made.pipelines if pipeline.steps[0].op.kind is OpKind.BLOCK]
    assert blocks
    for pipeline in blocks:
        assert len(pipeline.steps) == 1
        assert pipeline.name != made.default
        assert pipeline.most_tokens is not None
        assert max(tokens for tokens, _ in pipeline.model_us) <= pipeline.most_tokens
        assert (pipeline.epilogue, pipeline.combine) == (Epilogue.COMPACT, CombineMode.ORDERED)
        assert main_op(pipeline) == pipeline.steps[0].op
        assert plan_arena(pipeline, 10**6) == plan_arena(pipeline, pipeline.most_tokens)
    canonical_json(explain_plan(made))
    assert all(OpKind.BLOCK is not step.op.kind for item in plan(layer, Target.CPU).pipelines for step in item.steps)


def test_a_limit_is_part_of_a_manifest_and_its_absence_is_not() -> None:
    layer = spec(
        activations=Activations(format=ActFormat.BF16), epilogues=("compact",), targets=("sm_90a",), schedules={}
    )
    for pipeline in plan(layer, Target.SM_90A).pipelines:
        text = canonical_json(pipeline)
        assert (b"most_tokens" in text) == (pipeline.most_tokens is not None)
        assert pipeline_from_json(json.loads(text)) == pipeline


@pytest.mark.parametrize(("width", "warpgroups"), [(8, 4), (16, 3)])
def test_kernels_neither_spill_nor_serialise(hopper_workshop: Workshop, width: int, warpgroups: int) -> None:
    log = hopper_workshop.log(
        block_variant(HopperCase(**{**RAGGED, "hidden": 528}), width=width, warpgroups=warpgroups)
    )
    assert usage(log)["spill_bytes"] == 0
    assert not re.findall(r"C75\d\d", log), log


def test_scratch_and_stages_fit() -> None:
    """The source computes the same numbers: its static assertion and its scratch check hold them to these."""
    op = block_op(CASE)
    for width, warpgroups, slots in ((8, 4, 256), (16, 4, 512), (8, 5, 1024)):
        schedule = BLOCK.make(width=width, warpgroups=warpgroups, tiles=2, slots=slots)
        count, stage, fixed = stages(op, schedule, H200)
        assert 2 * warpgroups <= count <= 32
        assert count * stage + fixed <= H200.smem_bytes
        assert CATALOG.scratch(op, schedule).fixed % 4 == 0
    assert {argument.name for argument in arguments(op) if argument.access == "write"} == {"h_rows", "out_rows", "y"}
