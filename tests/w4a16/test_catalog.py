"""What the Blackwell catalog offers for W4A16, and each refusal with its numbers."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codegen.specs import W4A16, spec
from kernels.cases import LINEAR, SWIZZLED, Case

from moegen.build.gxx import find_gxx
from moegen.codegen import plan
from moegen.codegen.catalogs.sm100 import CATALOGS
from moegen.codegen.catalogs.sm100_w4a16 import family, gemm_us, row_tiles, shared_memory_bytes
from moegen.codegen.load import UNIFORM, expected_load
from moegen.codegen.registry import parse_variant
from moegen.codegen.schedule import Schedule
from moegen.codegen.variant import Variant
from moegen.core.devices import B200
from moegen.core.enums import Epilogue, OpKind, RouterWeight, ScaleLayout, Target, TokenDtype
from moegen.core.errors import SpecError
from moegen.core.ops import Numerics, OpSpec
from moegen.core.paths import data_root

CATALOG = CATALOGS[Target.SM_100A]
FAMILY = family(Target.SM_100A)
BASE: dict[str, Any] = {"tokens": 16, "rows": 64, "k": 256, "stages": 3, "warps": 4}
LAYER = Case(hidden=272, intermediate=176, row_tile=16, w4a4=False, weight_scales=SWIZZLED)
SWIZZLED_W4A16 = W4A16 | {"scale_layout": {"weights": "swizzle_128x4"}}


def schedule(**changes: int) -> Schedule:
    return FAMILY.make(**{**BASE, **changes})


def gemm1(**changes: Any) -> OpSpec:
    return replace(LAYER, **changes).ops()[OpKind.GEMM1]


@pytest.mark.parametrize(
    ("changes", "layer", "refusal"),
    [
        ({"tokens": 12}, {}, "tokens: a tile has whole groups of 8 tokens (tokens = 12)"),
        ({"tokens": 32}, {}, "row_tile: the token tile is not the layer's row tile (tokens = 32, row_tile = 16)"),
        ({}, {"w4a4": True, "row_scales": SWIZZLED}, "operand: this layer's rows are FP4"),
        ({}, {"weight_scales": LINEAR}, "scale_layout: weight scales are copied as 128x4 tiles"),
        ({"rows": 32}, {}, "rows: a tile takes a scale unit of 128 rows, or half of it (rows = 32)"),
        ({"warps": 8}, {}, "warps: 4 or 8 warps share the tile's fragments (warps = 8, rows = 64)"),
        ({"warps": 2}, {}, "warps: 4 or 8 warps"),
        ({"k": 64}, {}, "depth: a stage holds 128 or 256 of K (k = 64)"),
        (
            {"tokens": 128, "rows": 128},
            {"row_tile": 128},
            "registers: a lane holds more (accumulators = 128, limit = 64)",
        ),
        ({"stages": 1}, {}, "stages: copies and MMAs overlap from two stages up (stages = 1)"),
        ({"stages": 14}, {}, "shared_memory: the ring exceeds shared memory (bytes = 243712, limit = 232448)"),
    ],
)
def test_an_illegal_schedule_fails_its_predicate(changes: dict[str, int], layer: dict[str, Any], refusal: str) -> None:
    assert CATALOG.verdict(gemm1(), schedule(), B200).legal
    assert str(CATALOG.verdict(gemm1(**layer), schedule(**changes), B200)).startswith(refusal)


@pytest.mark.parametrize("n", [96, 144, 176, 352, 2880])
@pytest.mark.parametrize("rows", [64, 128])
def test_planning_and_kernels_count_tiles_and_bytes_alike(n: int, rows: int, tmp_path: Path) -> None:
    """Each fragment of 16 weight rows belongs to exactly one tile."""
    program = tmp_path / "shape.cc"
    program.write_text(
        '#include "sm_100a/device/w4a16_shape.h"\n#include <cstdio>\n'
        f"using Shape = moegen::W4A16Shape<16, {rows}, 256, 3, 4, {n}, 272>;\n"
        "int main() {\n"
        '  std::printf("%d %d", Shape::kSharedBytes, Shape::kRowTiles);\n'
        "  for (int tile = 0; tile < Shape::kRowTiles; tile++)\n"
        "    for (int f = 0; f < Shape::kRows / 16; f++) "
        'std::printf(" %d", Shape::fragment_row(tile, f));\n'
        "}\n"
    )
    binary = tmp_path / "shape"
    gxx = find_gxx()[0]
    subprocess.run([gxx, "-std=c++20", "-I", str(data_root("templates")), str(program), "-o", str(binary)], check=True)
    size, tiles, *first = map(int, subprocess.run([binary], capture_output=True, text=True, check=True).stdout.split())
    op = replace(LAYER, hidden=n).ops()[OpKind.GEMM2]
    assert (size, tiles) == (shared_memory_bytes(schedule(rows=rows)), row_tiles(op, schedule(rows=rows)))
    assert sorted(row for row in first if row < n) == list(range(0, n, 16))


def test_every_legal_cell_of_a_w4a16_layer_has_pipelines() -> None:
    result = plan(spec(targets=["sm_100a"], schedules={}, **SWIZZLED_W4A16), Target.SM_100A)
    assert {pipeline.epilogue for pipeline in result.pipelines} == {Epilogue.INTERLEAVED, Epilogue.COMPACT}
    for pipeline in result.pipelines:
        kinds = [step.op.kind for step in pipeline.steps]
        assert (OpKind.DEINTERLEAVE in kinds) == (pipeline.epilogue is Epilogue.INTERLEAVED)
        assert all(step.op.weight_pack in ("", "rows8") for step in pipeline.steps)
    assert [mode for mode, _ in result.rejected] == ["fused_fp4"]


def test_fp16_tokens_are_served_by_every_op_of_a_layer() -> None:
    fp16 = SWIZZLED_W4A16 | {"activations": {"format": "bf16", "dtype": "fp16"}, "numerics": {}}
    result = plan(spec(targets=["sm_100a"], schedules={}, **fp16), Target.SM_100A)
    ops = [step.op for pipeline in result.pipelines for step in pipeline.steps if step.op.kind is not OpKind.ROUTE]
    assert {op.dtype for op in ops} == {TokenDtype.FP16}


def test_linear_weight_scales_are_reordered_at_load() -> None:
    linear = W4A16 | {"scale_layout": {"weights": "linear"}}
    result = plan(spec(targets=["sm_100a"], schedules={}, **linear), Target.SM_100A)
    gemms = [step.op for pipeline in result.pipelines for step in pipeline.steps if step.op.weight_pack]
    assert {op.weight_scale_layout for op in gemms} == {ScaleLayout.SWIZZLE_128X4}
    assert any("reordered at load" in note for note in result.notes)


def test_a_specs_own_values_are_checked_against_the_family() -> None:
    chosen = {"sm_100a": {"tokens": [8], "rows": [128], "k": [128], "stages": [4], "warps": [8]}}
    result = plan(spec(targets=["sm_100a"], schedules=chosen, **SWIZZLED_W4A16), Target.SM_100A)
    assert {pipeline.row_tile for pipeline in result.pipelines} == {8}
    with pytest.raises(SpecError, match="unknown schedule field 'cta_group'"):
        plan(spec(targets=["sm_100a"], schedules={"sm_100a": {"cta_group": [1]}}, **SWIZZLED_W4A16), Target.SM_100A)


@pytest.mark.parametrize("target", [Target.SM_100A, Target.SM_103A])
def test_names_parse_back(target: Target) -> None:
    variant = Variant(op=gemm1(), schedule=family(target).make(**BASE))
    assert parse_variant(variant.name) == variant


def test_the_time_model_prefers_narrow_tiles_for_few_tokens_and_a_gather_for_many_weighted_ones() -> None:
    def modelled(op: OpSpec, tokens: int, width: int) -> float:
        load = expected_load(tokens, 128, 8, width, UNIFORM)
        return gemm_us(replace(op, row_tile=width), schedule(tokens=width), B200, load)

    wide = replace(LAYER, hidden=4096, intermediate=1536)
    op = wide.ops()[OpKind.GEMM2]
    assert modelled(op, 1, 8) < modelled(op, 1, 64)
    assert modelled(op, 8192, 64) < modelled(op, 8192, 8)
    weighted = replace(wide, numerics=Numerics(router_weight=RouterWeight.INPUT))
    fused, apart = (replace(weighted, fused_gather=gather).ops()[OpKind.GEMM1] for gather in (True, False))
    assert modelled(apart, 8192, 64) < modelled(fused, 8192, 64)
