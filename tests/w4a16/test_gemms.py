"""The W4A16 gemms of the Blackwell targets, compiled without a GPU and interpreted: bit for bit the reference."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blackwell.workshop import Workshop
from kernels.cases import buffers
from kernels.compare import check_op, launch
from w4a16.grid import AXES, PAIRS, GemmCase, allowed, every_epilogue
from w4a16.workshop import SCHEDULES

from moegen.core.enums import ActivationMath, OpKind, Target, TokenDtype
from moegen.numerics.reference import run_op

CASES = every_epilogue()
NAMES = [case.name for case in CASES]
PLAIN = next(case for case in CASES if case.row["tokens"] == 8 and not case.second)


def test_the_cases_hold_every_value_and_every_epilogue_with_every_activation() -> None:
    held = {(name, value) for case in CASES for name, value in case.row.items()}
    assert held == {(name, value) for name, values in AXES.items() for value in values}
    pairs = {(case.row["epilogue"], case.row["activation"]) for case in CASES if not case.second}
    first = {name: values[0] for name, values in AXES.items()}
    assert pairs == {
        (epilogue, activation)
        for epilogue, activation in PAIRS
        if allowed(first | {"epilogue": epilogue, "activation": activation})
    }


@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_gemm_equals_the_reference(number: int, w4a16_workshop: Workshop) -> None:
    case, schedules = CASES[number], SCHEDULES[number % len(SCHEDULES) :][:1]
    kernel = w4a16_workshop.kernel(case.variant(), schedules)
    check_op(kernel, case.variant().op, case.case, buffers(case.case))
    dtype = "f16" if case.row["dtype"] is TokenDtype.FP16 else "bf16"
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32" in w4a16_workshop.ptx(case.variant())


def test_no_tokens_and_no_routes_write_what_they_must(w4a16_workshop: Workshop) -> None:
    kernel = w4a16_workshop.kernel(PLAIN.variant(), SCHEDULES[:1])
    for odd in (replace(PLAIN.case, tokens=0), replace(PLAIN.case, routing="none")):
        check_op(kernel, PLAIN.variant().op, odd, buffers(odd))


def test_sums_of_several_rows_are_near_the_reference(w4a16_workshop: Workshop) -> None:
    added = next(case for case in CASES if case.added)
    kernel = w4a16_workshop.kernel(added.variant(), SCHEDULES[:1])
    case = replace(added.case, routing="uniform")
    op, given = added.variant().op, buffers(case)
    found = launch(kernel, op, given, case.dims())["y_acc"]
    torch.testing.assert_close(found, run_op(op, given)["y_acc"], rtol=1e-5, atol=1e-4)


def test_fast_activations_are_near_the_exact_ones(w4a16_workshop: Workshop) -> None:
    row = PLAIN.row | {"activation": "swiglu_oai", "gate_round": AXES["gate_round"][0], "routing": "uniform"}
    plain = GemmCase(row)
    case = replace(plain.case, numerics=replace(plain.case.numerics, activation_math=ActivationMath.FAST))
    variant = replace(plain.variant(), op=case.ops()[OpKind.GEMM1])
    given = buffers(case)
    name = "h_pair" if case.epilogue.value == "interleaved" else "h_rows"
    found = launch(w4a16_workshop.kernel(variant, SCHEDULES[:1]), variant.op, given, case.dims())[name]
    real = given["row_slot"] >= 0
    wanted = run_op(variant.op, given)[name]
    torch.testing.assert_close(found[real], wanted[real], rtol=2**-7, atol=1e-6)
    assert "ex2.approx" in w4a16_workshop.ptx(variant)


def test_sm_103a_runs_the_same_templates(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, Target.SM_103A)
    variant = PLAIN.variant(Target.SM_103A)
    check_op(workshop.kernel(variant, SCHEDULES[:1]), variant.op, PLAIN.case, buffers(PLAIN.case))
    assert ".target sm_103a" in workshop.ptx(variant)
