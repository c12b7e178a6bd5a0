"""fp16 tokens on the GPU, bit for bit against the reference: gemms, the ops around them, whole layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hopper.blocks import RAGGED, block_variant, check_call, given_buffers, make_call
from hopper.cases import HopperCase, private_buffers
from hopper.compare import check_op
from hopper.fp16 import (
    FP16,
    GEMM1_ROWS,
    GEMM2_ROWS,
    every_product,
    stream_cases,
)
from hopper.grids import case_of, row_name, variant_of
from hopper.workshop import Workshop
from kernels.cases import ACTIVATIONS, buffers
from kernels.compare import POISONS
from kernels.pairwise import Row
from runtime.packages import gpu_package
from torch import Tensor

from moegen.codegen.variant import Variant
from moegen.core.enums import RouterWeight, Target
from moegen.core.ops import Numerics
from moegen.runtime import load
from moegen.tune.verify import verify_pipelines

pytestmark = pytest.mark.gpu
ROWS = [*GEMM1_ROWS, *GEMM2_ROWS]
STREAMS = stream_cases()
W4A16: dict[str, Any] = {
    "activations": {"format": "bf16", "dtype": "fp16"},
    "scale_layout": {"weights": "swizzle_128x4"},
    "numerics": {"gate_round": "fp32"},
    "epilogues": ["interleaved", "compact"],
}
W4A4: dict[str, Any] = {
    "activations": {
        "format": "nvfp4",
        "dtype": "fp16",
        "activation_scale": {"gemm1": "static", "gemm2": "dynamic_tensor"},
    },
    "numerics": {"pre_quant_round": "fp32"},
    "epilogues": ["interleaved", "compact"],
}


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


@pytest.fixture(scope="module", autouse=True)
def compiled(hopper_workshop: Workshop) -> None:
    variants = [variant_of(row) for row in ROWS] + [case.variant() for case in STREAMS.values()]
    hopper_workshop.prepare([*variants, every_product()[0], *(block_variant(case) for case in BLOCKS.values())])


def check(workshop: Workshop, variant: Variant, case: HopperCase, given: dict[str, Tensor], byte: int) -> None:
    check_op(workshop.kernel(variant), variant, case, given, byte=byte)


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_gemms_write_the_bytes_of_the_reference(hopper_workshop: Workshop, row: Row) -> None:
    case = case_of(row)
    check(hopper_workshop, variant_of(row), case, private_buffers(case, buffers(case)), row["poison"])


def test_every_code_and_scale_is_exact(hopper_workshop: Workshop) -> None:
    variant, case, given = every_product()
    check(hopper_workshop, variant, case, given, 0xFF)


@pytest.mark.parametrize("routing", ["mixed", "hot", "none"])
@pytest.mark.parametrize("name", STREAMS)
def test_ops_around_the_gemms(hopper_workshop: Workshop, name: str, routing: str) -> None:
    stream = replace(STREAMS[name], case=replace(STREAMS[name].case, routing=routing))
    for byte in POISONS:
        check(hopper_workshop, stream.variant(), stream.case, stream.given(), byte)


@pytest.mark.parametrize("place", BLOCKS)
def test_the_whole_layer_kernel(hopper_workshop: Workshop, place: str) -> None:
    case = BLOCKS[place]
    variant, given = block_variant(case), given_buffers(case)
    for byte in POISONS:
        call = make_call(variant, case, given, byte, Tensor.cuda)
        hopper_workshop.kernel(variant)(*call.values)
        torch.cuda.synchronize()
        check_call(variant, case, given, call, byte)


@pytest.mark.parametrize("formats", [W4A16, W4A4], ids=["w4a16", "w4a4"])
def test_every_pipeline_of_a_layer_passes_verification(tmp_path: Path, formats: dict[str, Any]) -> None:
    geometry = {"hidden": 144, "intermediate": 208, "experts": 7, "top_k": 3}
    made = gpu_package(
        tmp_path, geometry=geometry, tune={"pipelines": 3, "tokens": [40], "routing": ["uniform"]}, **formats
    )
    book = load(made.directory, target=Target.SM_90A, store=made.store).book
    checks = list(verify_pipelines(book))
    assert len(checks) >= len(formats["epilogues"])
    assert not [f"{check.pipeline}: {check.reason}" for check in checks if not check.passed]
