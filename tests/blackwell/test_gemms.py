"""The sm_100a gemms, compiled without a GPU and interpreted: bit for bit the reference, and nothing reported."""

from itertools import product
from pathlib import Path

import pytest
from blackwell.grid import FIRST_AXES, FORMS, SCHEDULE_AXES, SECOND_AXES, GemmCase, every_pair
from blackwell.workshop import FOUR_SCHEDULES, SCHEDULES, Workshop
from kernels.cases import buffers
from kernels.compare import check_op

from moegen.codegen.catalogs.sm100 import CATALOGS
from moegen.codegen.variant import Variant
from moegen.core.devices import PLANNING_DEVICE
from moegen.core.enums import Contract, Epilogue, OpKind, Target

CASES = {case.name: case for case in every_pair()}
NAMES = list(CASES)
MOST = 200
TOGETHER = 8
"""Neighbours that one compiler process makes when the first of them is needed."""


def test_the_cases_are_few_and_hold_every_value() -> None:
    assert len(CASES) == len(every_pair()) <= MOST
    for kind, axes in ((OpKind.GEMM1, FIRST_AXES), (OpKind.GEMM2, SECOND_AXES)):
        held = {item for case in CASES.values() if case.kind is kind for item in case.row.items()}
        assert held == {(name, value) for name, values in axes.items() for value in values}


@pytest.mark.parametrize(("first", "second"), [("epilogue", "activation"), ("activation", "contract")])
def test_the_cases_hold_pairs_that_matter_most(first: str, second: str) -> None:
    """Each of the two with each other, and with every form of a tile."""
    rows = [case.row for case in CASES.values() if case.kind is OpKind.GEMM1]
    for one, other in ((first, second), (first, "form"), (second, "form")):
        held = {(row[one], row[other]) for row in rows}
        possible = set(product(FIRST_AXES[one], FIRST_AXES[other]))
        if (one, other) == ("epilogue", "activation"):
            possible -= {(Epilogue.INTERLEAVED, "relu2"), (Epilogue.INTERLEAVED, "silu")}
        assert held == possible
    assert {row["contract"] for row in rows if row["epilogue"] is Epilogue.FUSED_FP4} == set(Contract)


def test_schedules_have_no_field_that_the_cases_leave_out() -> None:
    fields = {field.name for field in CATALOGS[Target.SM_100A].gemm.fields}
    assert fields == {"rows", "cta_group", "swap_ab", "ctas", *SCHEDULE_AXES}
    assert {case.row["form"] for case in CASES.values()} == set(FORMS)


@pytest.mark.parametrize("name", CASES)
def test_gemm_equals_the_reference(name: str, blackwell_workshop: Workshop) -> None:
    case: GemmCase = CASES[name]
    assert case.wraps
    block = NAMES.index(name) // TOGETHER * TOGETHER
    blackwell_workshop.prepare([CASES[other].variant for other in NAMES[block : block + TOGETHER]])
    kernel = blackwell_workshop.kernel(case.variant, FOUR_SCHEDULES)
    check_op(kernel, case.variant.op, case.case, buffers(case.case))


def test_sm_103a_runs_the_same_templates(tmp_path: Path) -> None:
    case = next(case for case in CASES.values() if case.kind is OpKind.GEMM1)
    workshop = Workshop(tmp_path, Target.SM_103A)
    schedule = workshop.catalog.gemm.make(**case.variant.schedule.as_dict())
    variant = Variant(op=case.variant.op, schedule=schedule)
    assert workshop.catalog.verdict(variant.op, schedule, PLANNING_DEVICE[Target.SM_103A]).legal
    check_op(workshop.kernel(variant, SCHEDULES[:1]), variant.op, case.case, buffers(case.case))
    assert ".target sm_103a" in workshop.ptx(variant)
