"""fp16 tokens in the interpreter: the decoder's every product, rows through each kind of producer, the whole layer."""

from dataclasses import replace
from pathlib import Path

import pytest
from hopper.blocks import SMALL, block_variant, given_buffers
from hopper.cases import HopperCase, private_buffers
from hopper.fp16 import FP16, ON_INPUT, every_product, stream_cases
from hopper.test_block_interpreted import interpret as check_block
from hopper.workshop import Workshop, ladder_variant
from kernels.cases import ACTIVATIONS, buffers
from ptx.test_own_hopper import check

from moegen.core.enums import Epilogue, OpKind, Round


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(Path(tmp_path_factory.mktemp("fp16")))


def test_every_code_and_scale_is_exact(workshop: Workshop) -> None:
    variant, case, given = every_product()
    rows = given["h_rows"].float().abs()
    assert rows[rows > 0].min() < 1 < rows[rows.isfinite()].max()
    check(workshop, variant, case, given, padded=True)


@pytest.mark.parametrize("epilogue", [Epilogue.INTERLEAVED, Epilogue.COMPACT])
def test_gemm1_writes_the_bytes_of_the_reference(workshop: Workshop, epilogue: Epilogue) -> None:
    """Interleaved rows come weighted through registers, compact ones of an ungated W1 by asynchronous copies.

    The interleaved buffer holds the gate itself, not what the product took of it.
    """
    case = HopperCase(
        hidden=144, intermediate=80, experts=4, top_k=1, tokens=9, w4a4=False, dtype=FP16, bias=True, epilogue=epilogue
    )
    if epilogue is Epilogue.INTERLEAVED:
        made = replace(case, numerics=replace(ON_INPUT, gate_round=Round.BF16))
    else:
        made = replace(case, activation=ACTIVATIONS["relu2"])
    variant = ladder_variant(made.ops()[OpKind.GEMM1], "n8", warpgroups=2)
    check(workshop, variant, made, private_buffers(made, buffers(made)), padded=True)


@pytest.mark.parametrize("name", ["gather_weighted", "combine"])
def test_ops_around_the_gemms(workshop: Workshop, name: str) -> None:
    """Values of every exponent, subnormals included; products and sums that round, and that overflow to infinity."""
    stream = stream_cases()[name]
    check(workshop, stream.variant(), stream.case, stream.given())


def test_the_whole_layer_kernel(workshop: Workshop) -> None:
    case = HopperCase(**{**SMALL, "tokens": 3}, dtype=FP16)
    check_block(workshop, block_variant(case, warpgroups=2), case, given_buffers(case))
