"""gather and deinterleave of the Blackwell targets in the interpreter: bit for bit the reference."""

from dataclasses import replace

import pytest
from blackwell.workshop import Workshop
from kernels.cases import Case, buffers
from kernels.compare import check_op
from w4a16.workshop import SCHEDULES, variant_of

from moegen.core.enums import Epilogue, OpKind, RouterWeight, TokenDtype
from moegen.core.ops import Numerics

BASE = Case(hidden=272, intermediate=176, tokens=21, row_tile=16, w4a4=False, fused_gather=False)
ON_INPUT = replace(BASE, numerics=Numerics(router_weight=RouterWeight.INPUT))
CASES = {
    "gather": (BASE, OpKind.GATHER),
    "gather, weight on input": (ON_INPUT, OpKind.GATHER),
    "gather, weight on input, fp16": (replace(ON_INPUT, dtype=TokenDtype.FP16), OpKind.GATHER),
    "deinterleave": (replace(BASE, epilogue=Epilogue.INTERLEAVED), OpKind.DEINTERLEAVE),
}


@pytest.mark.parametrize("name", CASES)
def test_copies_equal_the_reference(name: str, w4a16_workshop: Workshop) -> None:
    case, kind = CASES[name]
    op = case.ops()[kind]
    kernel = w4a16_workshop.kernel(variant_of(op), SCHEDULES)
    check_op(kernel, op, case, buffers(case))
    for odd in (replace(case, tokens=0), replace(case, routing="none"), replace(case, routing="hot")):
        check_op(kernel, op, odd, buffers(odd))
