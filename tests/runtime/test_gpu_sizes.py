"""Sizes that 16 and 32 bits do not hold, on a GPU: grids, rows and weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.packages import TestPackage, gpu_package, reference_output

from moegen.core.enums import OpKind, Target
from moegen.runtime import LoadedPackage, load
from moegen.tune.gate import gate_tolerance, judge
from moegen.tune.inputs import TokenInputs, make_tokens, make_weights, package_shape
from moegen.tune.routing import parse_routing
from moegen.tune.verify import exact_inputs, exact_weights

pytestmark = pytest.mark.gpu
UNIFORM = parse_routing("uniform")
WIDE: dict[str, Any] = {
    "activations": {"format": "bf16"},
    "scale_layout": {"weights": "swizzle_128x4"},
    "numerics": {"gate_round": "fp32"},
    "epilogues": ["compact"],
}
SCHEDULE = {"warpgroups": [4], "tiles": [1], "blocks": [1]}
TALL: dict[str, Any] = {
    **WIDE,
    "geometry": {"hidden": 7168, "intermediate": 64, "experts": 8, "top_k": 8},
    "schedules": {"sm_90a": {"ladder": ["n16", "n64_128"], **SCHEDULE}},
    "tune": {"pipelines": 12, "tokens": [4, 4096]},
}
BANK: dict[str, Any] = {
    **WIDE,
    "geometry": {"hidden": 7168, "intermediate": 2048, "experts": 256, "top_k": 1},
    "schedules": {"sm_90a": {"ladder": ["n16"], **SCHEDULE}},
    "tune": {"pipelines": 12, "tokens": [8]},
}
PACKAGES: list[dict[str, Any]] = [{}, TALL, BANK]
"""Every package that these tests build."""


def loaded(made: TestPackage, **options: object) -> LoadedPackage:
    return load(made.directory, target=Target.SM_90A, store=made.store, **options)


def with_ops(made: TestPackage, *wanted: OpKind, without: OpKind | None = None) -> str:
    """A built pipeline that has these kinds of op, and none of another kind."""
    kinds = {pipeline.name: {step.op.kind for step in pipeline.steps} for pipeline in loaded(made).book.built()}
    return next(name for name, found in kinds.items() if found >= set(wanted) and without not in found)


def test_fr_11_more_slots_and_tokens_than_a_grid_axis_holds(tmp_path: Path) -> None:
    """On exact sums a call of 210,003 slots gives the bytes of short ones, whichever pipelines serve them."""
    tokens = 70_001
    package = loaded(gpu_package(tmp_path), max_tokens=tokens)
    shape = package_shape(package.book)
    layer = package.from_tensors(exact_weights(shape, 3))
    inputs = exact_inputs(shape, tokens, UNIFORM, 3).to("cuda")
    whole = layer(inputs.x, inputs.topk_ids, inputs.topk_weights)
    for start in range(0, tokens, 20_000):
        part = slice(start, start + 20_000)
        short = layer(inputs.x[part], inputs.topk_ids[part], inputs.topk_weights[part])
        assert torch.equal(whole[part], short), start
    few = inputs.rows(torch.tensor([0, tokens // 2, tokens - 1], device="cuda"))
    name = layer.engine.decide(tokens).pipeline
    assert torch.equal(
        whole[[0, tokens // 2, -1]].cpu(), reference_output(layer, name, few.x, few.topk_ids, few.topk_weights)
    )


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    """H = 7168 with eight routes a token: from token 37,450 on, row · H passes 2^31 elements."""
    return gpu_package(tmp_path_factory.mktemp("tall"), **TALL)


@pytest.mark.parametrize("gathers", [True, False], ids=["gather op", "gathering gemm"])
def test_fr_12_rows_beyond_2_31_elements(tall: TestPackage, gathers: bool) -> None:
    tokens = 37_600
    gather = (OpKind.GATHER,) if gathers else ()
    name = with_ops(tall, OpKind.GEMM1, *gather, without=None if gathers else OpKind.GATHER)
    package = loaded(tall, max_tokens=tokens, pipeline=name)
    shape = package_shape(package.book)
    layer = package.from_tensors(exact_weights(shape, 4))
    last = exact_inputs(shape, 16, UNIFORM, 4).to("cuda")
    x = torch.zeros(tokens, shape.hidden, dtype=last.x.dtype, device="cuda")
    ids = last.topk_ids[:1].expand(tokens, -1).clone()
    weights = torch.ones(tokens, shape.top_k, device="cuda")
    x[-16:], ids[-16:], weights[-16:] = last.x, last.topk_ids, last.topk_weights
    long, short = layer(x, ids, weights)[-16:], layer(last.x, last.topk_ids, last.topk_weights)
    assert short.any()
    assert torch.equal(long, short)


def test_fr_12_weight_bank_beyond_2_31_bytes(tmp_path: Path) -> None:
    """256 experts of 4096 x 7168 are 4.2e9 packed bytes; every token goes to the last one."""
    made = gpu_package(tmp_path, **BANK)
    package = loaded(made, pipeline=with_ops(made, OpKind.GEMM1))
    shape = package_shape(package.book)
    layer = package.from_tensors(make_weights(shape, 5, torch.device("cuda")))
    assert layer.weight_bytes > 5 * 2**30
    inputs: TokenInputs = make_tokens(shape, 8, UNIFORM, 5, torch.device("cuda"))
    ids = torch.full_like(inputs.topk_ids, 255)
    name = layer.engine.decide(8).pipeline
    got = layer(inputs.x, ids, inputs.topk_weights)
    wanted = reference_output(layer, name, inputs.x, ids, inputs.topk_weights)
    verdict = judge(got.cpu(), wanted, gate_tolerance(False, shape.intermediate), seed=5)
    assert verdict.passed, verdict.reason
