"""Field cases that a spec, a plan or a variant's name must make impossible."""

from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codegen.specs import QUICKSTART, spec

from moegen.codegen import plan
from moegen.codegen.catalog import Verdict
from moegen.codegen.pipelines import Shape, pipeline_ops
from moegen.codegen.registry import catalog
from moegen.codegen.variant import Variant, op_name
from moegen.core.abi import arguments
from moegen.core.devices import B200, H200, DeviceFacts
from moegen.core.enums import CombineMode, Epilogue, OpKind, Target
from moegen.core.errors import SpecError
from moegen.core.ops import OpSpec
from moegen.spec import load_spec


def gemm1(**changes: Any) -> OpSpec:
    shape = Shape(epilogue=Epilogue.COMPACT, combine=CombineMode.ORDERED, row_tile=4)
    return next(op for op in pipeline_ops(spec(**changes), shape) if op.kind is OpKind.GEMM1)


def geometry(folder: Path, values: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(QUICKSTART.read_text().replace("experts: 10, top_k: 3", values))
    return path


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ("experts: 4, top_k: 5", ("geometry.top_k", "top_k is 5", "experts is 4")),
        ("experts: 4, top_k: 0", ("geometry.top_k", "top_k is 0")),
        ("experts: 0, top_k: 1", ("geometry.experts", "experts is 0")),
    ],
)
def test_fr_14_impossible_routing_fails_in_the_spec(tmp_path: Path, values: str, named: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(geometry(tmp_path, values))
    assert all(part in str(caught.value) for part in named)
    assert ":5" in str(caught.value) or "line 5" in str(caught.value)


def test_fr_14_one_expert_works(tmp_path: Path) -> None:
    result = plan(load_spec(geometry(tmp_path, "experts: 1, top_k: 1")), Target.CPU)
    assert result.pipelines


@pytest.mark.parametrize(("experts", "top_k"), [(512, 10), (896, 16), (60, 4), (7, 7), (16384, 256)])
def test_fr_13_many_experts_and_any_top_k_are_planned(experts: int, top_k: int) -> None:
    result = plan(spec(geometry={"hidden": 256, "intermediate": 160, "experts": experts, "top_k": top_k}), Target.CPU)
    assert result.pipelines


@pytest.mark.parametrize(("experts", "top_k"), [(16385, 8), (512, 257)])
def test_fr_13_counts_beyond_the_bounds_are_refused_by_the_spec(tmp_path: Path, experts: int, top_k: int) -> None:
    with pytest.raises(SpecError, match="less than or equal to"):
        load_spec(geometry(tmp_path, f"experts: {experts}, top_k: {top_k}"))


@pytest.mark.parametrize(
    "changes",
    [
        {"scale_layout": {"activations": "linear", "weights": "swizzle_128x4"}},
        {"scale_layout": {"activations": "swizzle_128x4", "weights": "linear"}},
        {"activation": {"kind": "geglu_tanh"}},
        {"activation": {"kind": "swiglu_clamp", "limit": 7.0}},
        {"activation": {"kind": "swiglu_clamp", "limit": 10.0}},
        {"activation": {"kind": "swiglu_oai", "alpha": 1.702, "limit": 7.0, "beta": 1.0}},
        {"activation": {"kind": "swiglu_oai", "alpha": 1.702, "limit": 7.0, "beta": 0.0}},
        {"activations": {"format": "bf16"}, "epilogues": ["compact"]},
        {"weights": {"bias": True}},
        {"numerics": {"gate_round": "bf16"}},
    ],
)
def test_fr_33_layers_of_one_shape_that_differ_otherwise_have_different_kernels(changes: dict[str, Any]) -> None:
    """Also FR-44: the constants of an activation are part of a kernel's name."""
    base = gemm1()
    other = gemm1(**changes)
    assert (base.hidden, base.intermediate, base.experts) == (other.hidden, other.intermediate, other.experts)
    assert op_name(base) != op_name(other)


def test_fr_33_gate_up_order_is_part_of_the_package() -> None:
    """Kernels read one packed order; the checkpoint's own is applied at load and is part of the package's identity."""
    assert spec().digest != spec(weights={"gate_up_order": "up_gate"}).digest


def test_fr_44_constants_cannot_be_dropped(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(QUICKSTART.read_text().replace("{kind: swiglu}", "{kind: swiglu_oai, alpha: 1.702, beta: 1.0}"))
    with pytest.raises(SpecError, match="swiglu_oai needs limit"):
        load_spec(path)


def test_fr_45_router_weight_on_the_input_reaches_exactly_one_op() -> None:
    """k > 1 is one scaled copy per route: quantize (or gather) applies the weight, nothing later does."""
    shape = Shape(epilogue=Epilogue.COMPACT, combine=CombineMode.ORDERED, row_tile=4)
    for changes in ({}, {"activations": {"format": "bf16"}, "epilogues": ["compact"]}):
        for fused_gather in (True, False):
            layer = spec(numerics={"router_weight": "input"}, **changes)
            ops = pipeline_ops(layer, replace(shape, fused_gather=fused_gather))
            readers = [op.kind for op in ops if any(a.name == "topk_weights" for a in arguments(op))]
            assert len(readers) == 1
            assert readers[0] in (OpKind.QUANTIZE, OpKind.GATHER, OpKind.GEMM1)


@pytest.mark.parametrize(("target", "device"), [(Target.SM_90A, H200), (Target.SM_100A, B200)])
def test_fr_40_shared_memory_is_checked_against_the_device_before_any_compile(
    target: Target, device: DeviceFacts
) -> None:
    """There is a size below which a tile is refused for its shared memory, and it does not exceed the device's."""
    layer = spec(targets=[target.value], schedules={})
    gemms = (OpKind.GEMM1, OpKind.GEMM2)
    judged = plan(layer, target, device).judged
    legal = [item.variant for item in judged if item.verdict.legal and item.variant.op.kind in gemms]
    assert legal
    for variant in legal[:: max(1, len(legal) // 20)]:
        sizes = range(device.smem_bytes + 1)

        def verdict(size: int, variant: Variant = variant) -> Verdict:
            smaller = replace(device, smem_bytes=size, smem_sm_bytes=device.smem_sm_bytes - device.smem_bytes + size)
            return catalog(target).verdict(variant.op, variant.schedule, smaller)

        needed = bisect_left(sizes, True, key=lambda size: verdict(size).legal)
        assert 0 < needed <= device.smem_bytes
        assert verdict(needed - 1).predicate == "shared_memory"
        assert "limit" in dict(verdict(needed - 1).numbers)
