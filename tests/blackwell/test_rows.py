"""Row-wise sm_100a kernels in the interpreter: bit for bit the reference, and nothing reported."""

from dataclasses import replace

import pytest
import torch
from blackwell.workshop import SCHEDULES, Workshop, gemm_variant, row_variant
from kernels.cases import Case, buffers
from kernels.compare import Buffers, check_op, launch, same_bytes

from moegen.core.enums import (
    ActivationMath,
    ActScale,
    CombineMode,
    Contract,
    Epilogue,
    OpKind,
    RouterWeight,
    ScaleLayout,
    TokenDtype,
)
from moegen.core.ops import Numerics, OpSpec
from moegen.core.runner import Kernel
from moegen.numerics.reference import run_op

SWIZZLED = ScaleLayout.SWIZZLE_128X4
BASE = Case(hidden=272, intermediate=176, top_k=2, tokens=45, row_tile=64, row_scales=SWIZZLED, weight_scales=SWIZZLED)
PAIRED = replace(BASE, epilogue=Epilogue.INTERLEAVED)
UNWEIGHTED = Numerics(router_weight=RouterWeight.PRE_QUANT)
ATOMIC = replace(BASE, combine=CombineMode.ATOMIC)
TILE = {
    "rows": 128,
    "cols": 64,
    "k": 128,
    "stages": 3,
    "acc_stages": 2,
    "cta_group": 1,
    "ctas": 3,
    "swap_ab": True,
    "bulk_stores": False,
}
CASES = {
    "deinterleave_quantize": (PAIRED, OpKind.DEINTERLEAVE_QUANTIZE),
    "deinterleave_quantize, one scale a tensor": (
        replace(PAIRED, h_scale=ActScale.DYNAMIC_TENSOR, numerics=Numerics(contract=Contract.MODELOPT)),
        OpKind.DEINTERLEAVE_QUANTIZE,
    ),
    "combine": (BASE, OpKind.COMBINE),
    "combine, fp16, weights applied before": (
        replace(BASE, dtype=TokenDtype.FP16, numerics=UNWEIGHTED),
        OpKind.COMBINE,
    ),
    "combine of sums": (ATOMIC, OpKind.COMBINE),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_equal_the_reference(name: str, blackwell_workshop: Workshop) -> None:
    case, kind = CASES[name]
    op = case.ops()[kind]
    kernel = blackwell_workshop.kernel(row_variant(op))
    check_op(kernel, op, case, buffers(case))
    empty = replace(case, tokens=0)
    check_op(kernel, op, empty, buffers(empty))


def test_atomic_sums_equal_the_reference_where_a_token_has_one_row(blackwell_workshop: Workshop) -> None:
    """One slot a token: no order of the additions is left open. Without tokens nothing is launched."""
    case = replace(ATOMIC, top_k=1)
    op = case.ops()[OpKind.GEMM2]
    kernel = blackwell_workshop.kernel(gemm_variant(op, **TILE))
    check_op(kernel, op, case, buffers(case))


def test_sums_of_several_rows_are_near_the_reference(blackwell_workshop: Workshop) -> None:
    op, given = ATOMIC.ops()[OpKind.GEMM2], buffers(ATOMIC)
    kernel = blackwell_workshop.kernel(gemm_variant(op, **TILE), SCHEDULES[:1])
    found, wanted = _both(op, ATOMIC, given, kernel, "y_acc")
    assert not torch.equal(wanted, given["y_acc"])
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


def test_fast_activations_are_near_the_exact_ones(blackwell_workshop: Workshop) -> None:
    case = replace(BASE, numerics=Numerics(activation_math=ActivationMath.FAST))
    op = case.ops()[OpKind.GEMM1]
    variant = gemm_variant(op, **TILE)
    given = {**buffers(case), "x_scale": torch.tensor([[4096.0, 2.0**-12]])}
    found, wanted = _both(op, case, given, blackwell_workshop.kernel(variant, SCHEDULES[:1]), "h_rows")
    real = given["row_slot"] >= 0
    torch.testing.assert_close(found[real], wanted[real], rtol=2**-7, atol=1e-6)
    assert "ex2.approx" in blackwell_workshop.ptx(variant)


def _both(op: OpSpec, case: Case, given: Buffers, kernel: Kernel, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    written = launch(kernel, op, given, case.dims(), first_expert=case.first_expert)
    return written[name].float(), run_op(op, given, first_expert=case.first_expert)[name].float()


def test_without_tokens_a_gemm_writes_nothing(blackwell_workshop: Workshop) -> None:
    """Row buffers have no bytes then, and no tensor map can be made of them."""
    case = replace(ATOMIC, top_k=1)
    op, empty = case.ops()[OpKind.GEMM2], replace(case, tokens=0)
    given = buffers(empty)
    kernel = blackwell_workshop.kernel(gemm_variant(op, **TILE), SCHEDULES[:1])
    written = launch(kernel, op, given, empty.dims(), first_expert=empty.first_expert)
    assert same_bytes(written["y_acc"], given["y_acc"])
