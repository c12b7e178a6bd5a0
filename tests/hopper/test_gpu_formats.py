"""fp16 tokens and products of code and scale on the GPU, bit for bit: the ops around the gemms and whole layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hopper.blocks import RAGGED, block_variant, check_call, given_buffers, make_call
from hopper.cases import HopperCase
from hopper.compare import check_op
from hopper.fp16 import FP16, stream_cases
from hopper.products import quantizing_cases
from hopper.workshop import Workshop
from kernels.cases import ACTIVATIONS
from kernels.compare import POISONS
from runtime.packages import gpu_package
from torch import Tensor

from moegen.codegen.variant import Variant
from moegen.core.enums import RouterWeight, Target
from moegen.core.ops import Numerics
from moegen.runtime import load
from moegen.tune.verify import verify_pipelines

pytestmark = pytest.mark.gpu
STREAMS = {
    **{f"fp16_{name}": case for name, case in stream_cases().items()},
    **{f"products_{name}": case for name, case in quantizing_cases().items()},
}
LAYER: dict[str, Any] = {
    "geometry": {"hidden": 144, "intermediate": 208, "experts": 7, "top_k": 3},
    "tune": {"pipelines": 3, "tokens": [40], "routing": ["uniform"]},
    "epilogues": ["interleaved", "compact"],
}
W4A16: dict[str, Any] = {
    **LAYER,
    "activations": {"format": "bf16", "dtype": "fp16"},
    "scale_layout": {"weights": "swizzle_128x4"},
    "numerics": {"gate_round": "fp32"},
}
W4A4: dict[str, Any] = {
    **LAYER,
    "activations": {
        "format": "nvfp4",
        "dtype": "fp16",
        "activation_scale": {"gemm1": "static", "gemm2": "dynamic_tensor"},
    },
    "numerics": {"pre_quant_round": "fp32"},
}
PACKAGES = [W4A16, W4A4]
"""Every package that these tests build."""


def block_cases() -> dict[str, HopperCase]:
    """The whole-layer kernel with each place of the router weight, gated and not."""
    names = ("swiglu_oai", "relu2", "swiglu")
    return {
        place.value: HopperCase(
            **RAGGED,
            activation=ACTIVATIONS[name],
            bias=True,
            numerics=Numerics(router_weight=place),
            dtype=FP16,
        )
        for place, name in zip(RouterWeight, names, strict=True)
    }


BLOCKS = block_cases()


def variants() -> list[Variant]:
    """Every kernel that these tests launch, packages apart."""
    return [*(case.variant() for case in STREAMS.values()), *map(block_variant, BLOCKS.values())]


@pytest.fixture(scope="module", autouse=True)
def compiled(hopper_workshop: Workshop) -> None:
    hopper_workshop.prepare(variants())


@pytest.mark.parametrize("routing", ["mixed", "hot", "none"])
@pytest.mark.parametrize("name", STREAMS)
def test_ops_around_the_gemms(hopper_workshop: Workshop, name: str, routing: str) -> None:
    stream = replace(STREAMS[name], case=replace(STREAMS[name].case, routing=routing))
    variant = stream.variant()
    for byte in POISONS:
        check_op(hopper_workshop.kernel(variant), variant, stream.case, stream.given(), byte=byte)


@pytest.mark.parametrize("place", BLOCKS)
def test_the_whole_layer_kernel(hopper_workshop: Workshop, place: str) -> None:
    case = BLOCKS[place]
    variant, given = block_variant(case), given_buffers(case)
    for byte in POISONS:
        call = make_call(variant, case, given, byte, Tensor.cuda)
        hopper_workshop.kernel(variant)(*call.values)
        torch.cuda.synchronize()
        check_call(variant, case, given, call, byte)


@pytest.mark.parametrize("changes", PACKAGES, ids=["w4a16", "w4a4"])
def test_every_pipeline_of_a_layer_passes_verification(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = gpu_package(tmp_path, **changes)
    book = load(made.directory, target=Target.SM_90A, store=made.store).book
    checks = list(verify_pipelines(book))
    assert len(checks) >= len(changes["epilogues"])
    assert not [f"{check.pipeline}: {check.reason}" for check in checks if not check.passed]
