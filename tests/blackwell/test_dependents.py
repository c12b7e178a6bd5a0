"""Programmatic dependent launches of a layer's kernels: each may start early, and none reads or writes too early."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blackwell.workshop import Workshop, gemm_variant, row_variant
from kernels.cases import Case, buffers
from kernels.compare import DTYPES, Buffers

from moegen.build.toolchain import PTX
from moegen.codegen.variant import Variant
from moegen.core.abi import arguments
from moegen.core.enums import Epilogue, OpKind, ScaleLayout, Target
from moegen.core.ops import OpSpec
from moegen.core.runner import Kernel
from moegen.numerics.reference import run_op
from moegen.ptx.errors import ExecutionError
from moegen.ptx.options import ADVERSARIES, Options
from moegen.ptx.runner import InterpreterRunner

SWIZZLED = ScaleLayout.SWIZZLE_128X4
CASE = Case(
    hidden=272,
    intermediate=144,
    top_k=2,
    tokens=45,
    row_tile=16,
    epilogue=Epilogue.FUSED_FP4,
    row_scales=SWIZZLED,
    weight_scales=SWIZZLED,
)
TILE = {"rows": 128, "cols": 16, "k": 128, "stages": 3, "acc_stages": 2, "cta_group": 1, "ctas": 2}
#: Every CTA of a grid is resident, so that each lets its dependents start at once.
EARLY = tuple(replace(options, resident_clusters=0) for options in ADVERSARIES)
KINDS = (OpKind.QUANTIZE, OpKind.GEMM1, OpKind.GEMM2, OpKind.COMBINE)


def variant(op: OpSpec) -> Variant:
    if op.kind in (OpKind.GEMM1, OpKind.GEMM2):
        return gemm_variant(op, **TILE, swap_ab=True, bulk_stores=False)
    return row_variant(op)


def run_layer(kernels: dict[OpKind, Kernel], runner: InterpreterRunner) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, the reference's) of the case; what kernels hand on starts as NaN bytes."""
    ops, given, dims = CASE.ops(), dict(buffers(CASE)), CASE.dims()
    bound: dict[str, torch.Tensor] = {}
    for kind in KINDS:
        for argument in arguments(ops[kind]):
            if argument.access == "write":
                bound[argument.name] = torch.empty(dims.shape(argument), dtype=DTYPES[argument.dtype])
                bound[argument.name].view(torch.uint8).fill_(0x7F)
            else:
                bound.setdefault(argument.name, given[argument.name])
    with runner.stream():
        for kind in KINDS:
            kernels[kind](*(bound[argument.name] for argument in arguments(ops[kind])))
    expected: Buffers = given
    for kind in KINDS:
        expected = {**expected, **run_op(ops[kind], expected, first_expert=CASE.first_expert)}
    return bound["y"], expected["y"]


def test_dependents_may_start_early(blackwell_workshop: Workshop) -> None:
    ops, runner = CASE.ops(), InterpreterRunner(Target.SM_100A, (Options(early_dependents=False), *EARLY))
    kernels = {
        kind: runner.load(blackwell_workshop.directory(variant(ops[kind])), ops[kind].kind.value) for kind in KINDS
    }
    found, wanted = run_layer(kernels, runner)
    assert torch.equal(found, wanted)
    assert not [report for result in runner.results for report in result.reports]


@pytest.mark.parametrize("hasty", KINDS[1:])
def test_a_kernel_that_does_not_wait_is_found(hasty: OpKind, blackwell_workshop: Workshop, tmp_path: Path) -> None:
    """The same kernels, one of them without its wait: some schedule shows it."""
    ops, runner = CASE.ops(), InterpreterRunner(Target.SM_100A, EARLY)
    kernels: dict[OpKind, Kernel] = {}
    for kind in KINDS:
        directory = blackwell_workshop.directory(variant(ops[kind]))
        if kind is hasty:
            text, count = re.subn(r"griddepcontrol\.wait;", "", (directory / PTX).read_text())
            assert count
            directory = shutil.copytree(directory, tmp_path / "hasty")
            (directory / PTX).write_text(text)
        kernels[kind] = runner.load(directory, ops[kind].kind.value)
    try:
        found, wanted = run_layer(kernels, runner)
    except ExecutionError:
        return
    assert not torch.equal(found, wanted)
