"""The sm_100a gemms, compiled without a GPU and interpreted: bit for bit the reference, and nothing reported."""

from pathlib import Path

import pytest
from blackwell.grid import AXES, GemmCase, every_value
from blackwell.workshop import SCHEDULES, Workshop
from kernels.cases import buffers
from kernels.compare import check_op

from moegen.codegen.variant import Variant
from moegen.core.devices import PLANNING_DEVICE
from moegen.core.enums import Target

CASES = {f"{'gemm2 ' if case.second else ''}{case.name}": case for case in every_value()}


def test_the_cases_hold_every_value() -> None:
    held = {(name, value) for case in CASES.values() for name, value in case.row.items()}
    assert held == {(name, value) for name, values in AXES.items() for value in values}


@pytest.mark.parametrize("name", CASES)
def test_gemm_equals_the_reference(name: str, blackwell_workshop: Workshop) -> None:
    case: GemmCase = CASES[name]
    variant = case.variant
    check_op(blackwell_workshop.kernel(variant), variant.op, case.case, buffers(case.case))


def test_sm_103a_runs_the_same_templates(tmp_path: Path) -> None:
    case = next(case for case in CASES.values() if not case.second)
    workshop = Workshop(tmp_path, Target.SM_103A)
    schedule = workshop.catalog.gemm.make(**case.variant.schedule.as_dict())
    variant = Variant(op=case.variant.op, schedule=schedule)
    assert workshop.catalog.verdict(variant.op, schedule, PLANNING_DEVICE[Target.SM_103A]).legal
    check_op(workshop.kernel(variant, SCHEDULES[:1]), variant.op, case.case, buffers(case.case))
    assert ".target sm_103a" in workshop.ptx(variant)
