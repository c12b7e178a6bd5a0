"""The sm_100a gemms, compiled without a GPU and interpreted: bit for bit the reference, and nothing reported."""

import pytest
from blackwell.grid import AXES, GemmCase, every_value
from blackwell.workshop import Workshop
from kernels.cases import buffers
from kernels.compare import check_op

CASES = {f"{'gemm2 ' if case.second else ''}{case.name}": case for case in every_value()}


def test_the_cases_hold_every_value() -> None:
    held = {(name, value) for case in CASES.values() for name, value in case.row.items()}
    assert held == {(name, value) for name, values in AXES.items() for value in values}


@pytest.mark.parametrize("name", CASES)
def test_gemm_equals_the_reference(name: str, blackwell_workshop: Workshop) -> None:
    case: GemmCase = CASES[name]
    variant = case.variant
    check_op(blackwell_workshop.kernel(variant), variant.op, case.case, buffers(case.case))
