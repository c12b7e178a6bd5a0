"""The arena: what lives together never overlaps, nothing superfluous is there, and sizes keep to their bound."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runtime.packages import generate_package, spec_with

from moegen.core.abi import arguments, round_up
from moegen.core.enums import Epilogue, OpKind, Target
from moegen.core.errors import StoreError
from moegen.core.package import Package, Pipeline, read_manifest
from moegen.runtime.workspace import ALIGN, DTYPES, Workspace, pipeline_dims, plan_arena

ORDERED = {"pipelines": 12}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    spec = spec_with(combine=["ordered", "atomic"], tune=ORDERED)
    return read_manifest(generate_package(spec, tmp_path_factory.mktemp("arena")).directory)


def pipelines(package: Package) -> tuple[Pipeline, ...]:
    return package.targets[Target.CPU].pipelines


@given(tokens=st.integers(1, 3000), index=st.integers(0, 5))
def test_buffers_needed_together_never_overlap(package: Package, tokens: int, index: int) -> None:
    pipeline = pipelines(package)[index]
    plan = plan_arena(pipeline, tokens)
    regions = list(plan.regions.values())
    for region in regions:
        assert region.offset % ALIGN == 0
        assert region.offset + region.size <= plan.arena
    for number, one in enumerate(regions):
        for other in regions[number + 1 :]:
            if one.overlaps(other):
                apart = one.offset + one.size <= other.offset or other.offset + other.size <= one.offset
                assert apart, (one.argument.name, other.argument.name)


def test_every_buffer_outlives_its_last_reader(package: Package) -> None:
    for pipeline in pipelines(package):
        plan = plan_arena(pipeline, 37)
        for index, step in enumerate(pipeline.steps):
            for argument in arguments(step.op):
                if argument.name in plan.regions:
                    region = plan.regions[argument.name]
                    assert region.first <= index <= region.last


def test_sharing_bytes_saves_memory(package: Package) -> None:
    for pipeline in pipelines(package):
        plan = plan_arena(pipeline, 512)
        assert plan.arena < sum(region.size for region in plan.regions.values())


def test_fused_pipelines_have_no_buffer_of_activated_rows(package: Package) -> None:
    """No bf16 [R, I] (or larger) buffer between the products: codes and scales alone."""
    fused = [pipeline for pipeline in pipelines(package) if pipeline.epilogue is Epilogue.FUSED_FP4]
    assert fused
    for pipeline in fused:
        plan, dims = plan_arena(pipeline, 300), pipeline_dims(pipeline, 300)
        between = [r for name, r in plan.regions.items() if name not in ("out_rows", "y_acc")]
        assert all(dims.shape(region.argument) != (dims["R"], dims["I"]) for region in between)
        assert all(region.argument.dtype not in ("bf16", "f16") for region in between)


def test_a_fused_pipeline_with_such_a_buffer_is_refused(package: Package) -> None:
    compact = next(pipeline for pipeline in pipelines(package) if pipeline.epilogue is Epilogue.COMPACT)
    with pytest.raises(StoreError, match="activated rows"):
        plan_arena(replace(compact, epilogue=Epilogue.FUSED_FP4), 4)


def test_a_read_before_any_write_is_refused(package: Package) -> None:
    pipeline = pipelines(package)[0]
    with pytest.raises(StoreError, match="which no step wrote"):
        plan_arena(replace(pipeline, steps=pipeline.steps[1:]), 4)
    without = tuple(step for step in pipeline.steps if step.op.kind is not OpKind.GEMM1)
    with pytest.raises(StoreError, match="without gemm1"):
        plan_arena(replace(pipeline, steps=without), 4)


@given(tokens=st.integers(1, 63))
def test_smaller_calls_use_the_front_of_each_buffer(package: Package, tokens: int) -> None:
    pipeline = pipelines(package)[0]
    plan = plan_arena(pipeline, 64)
    workspace = Workspace({pipeline.name: plan}, torch.device("cpu"))
    dims, largest = pipeline_dims(pipeline, tokens), pipeline_dims(pipeline, 64)
    for region in plan.regions.values():
        small = workspace.view(pipeline.name, region.argument, dims.shape(region.argument))
        large = workspace.view(pipeline.name, region.argument, largest.shape(region.argument))
        assert small.data_ptr() == large.data_ptr()
        assert small.numel() <= large.numel()
        assert small.is_contiguous()
        assert small.dtype is DTYPES[region.argument.dtype]


def test_scratch_starts_at_zero_and_the_launches_share_it(package: Package) -> None:
    """Kernels leave scratch zeroed, so one region of the largest demand serves all of them."""
    light, heavy = {"scratch_fixed": 700}, {"scratch_fixed": 100, "scratch_per_row": 30}
    plain = pipelines(package)[0]
    first, second, *rest = plain.steps
    pipeline = replace(plain, steps=(replace(first, **light), replace(second, **heavy), *rest))
    plan = plan_arena(pipeline, 8)
    assert plan.scratch == round_up(100 + 30 * pipeline_dims(pipeline, 8)["R"], ALIGN)
    workspace = Workspace({pipeline.name: plan}, torch.device("cpu"))
    assert workspace.bytes == plan.total == plan_arena(plain, 8).total + plan.scratch
    workspace.poison(0x7F)
    assert torch.count_nonzero(workspace.scratch(plan.scratch)) == 0
    assert torch.count_nonzero(workspace.view(pipeline.name, plan.regions["totals"].argument, (4,))) == 4
