"""Runs one kernel on the GPU over poisoned outputs and compares every byte with the reference op."""

from collections.abc import Mapping

import torch
from hopper.cases import HopperCase, public
from kernels.compare import DTYPES, same_bytes
from torch import Tensor

from moegen.codegen.catalogs.sm90 import CATALOG
from moegen.codegen.context import entry_arguments
from moegen.codegen.variant import Variant
from moegen.core.abi import Argument
from moegen.core.enums import OpKind, ScaleLayout, Target
from moegen.core.runner import Kernel
from moegen.numerics.reference import defined_rows, run_op

Buffers = Mapping[str, Tensor]


def launch(kernel: Kernel, variant: Variant, case: HopperCase, given: Buffers, byte: int) -> dict[str, Tensor]:
    """Calls a kernel; returns on the CPU what it wrote or updated. Inputs and scratch must come out unchanged."""
    op, dims = variant.op, case.dims()
    scratch = CATALOG.scratch(op, variant.schedule)
    written: dict[str, Tensor] = {}
    unchanged: dict[str, tuple[Tensor, Tensor]] = {}
    values: list[Tensor | int] = []
    for argument in entry_arguments(op, Target.SM_90A, scratch):
        if argument.dtype == "int":
            values.append(case.first_expert)
            continue
        if argument.name == "scratch":
            before = torch.zeros(scratch.fixed, dtype=torch.uint8)
        elif argument.access == "write":
            before = torch.empty(dims.shape(argument), dtype=DTYPES[argument.dtype])
            before.view(torch.uint8).fill_(byte)
        else:
            before = given[argument.name]
        tensor = before.cuda()
        if argument.access == "read" or argument.name == "scratch":
            unchanged[argument.name] = (before, tensor)
        else:
            written[argument.name] = tensor
        values.append(tensor)
    kernel(*values)
    torch.cuda.synchronize()
    for name, (before, tensor) in unchanged.items():
        assert same_bytes(before, tensor.cpu()), f"{op.kind.value} changed {name}"
    return {name: tensor.cpu() for name, tensor in written.items()}


def check_op(kernel: Kernel, variant: Variant, case: HopperCase, given: Buffers, *, byte: int = 0xFF) -> None:
    """Launches, then demands the reference's bytes where the ABI defines them, and untouched bytes elsewhere."""
    op = variant.op
    written = launch(kernel, variant, case, given, byte)
    expected = run_op(public(op), given, first_expert=case.first_expert)
    assert written.keys() == expected.keys()
    for argument in entry_arguments(op, Target.SM_90A, CATALOG.scratch(op, variant.schedule)):
        name = argument.name
        if name == "y_acc" and name in written:  # atomic adds: any order
            assert torch.allclose(written[name], expected[name], rtol=1e-5, atol=1e-4), name
        elif name in written:
            _check_buffer(name, written[name], expected[name], _defined(argument, variant, given, written[name]), byte)


def _defined(argument: Argument, variant: Variant, given: Buffers, written: Tensor) -> Tensor:
    if variant.op.kind is OpKind.ROUTE or argument.shape[0] not in ("R", "R128"):
        return torch.arange(len(written))
    swizzled = argument.name.endswith("_scales") and variant.op.scale_layout is ScaleLayout.SWIZZLE_128X4
    layout = ScaleLayout.SWIZZLE_128X4 if swizzled else ScaleLayout.LINEAR
    return defined_rows(argument.name, given["totals"], given["row_slot"], layout)


def _check_buffer(name: str, written: Tensor, expected: Tensor, rows: Tensor, byte: int) -> None:
    assert written.shape == expected.shape, f"{name}: {tuple(written.shape)} against {tuple(expected.shape)}"
    if not same_bytes(written[rows], expected[rows]):
        found, wanted = (t[rows].contiguous().view(torch.uint8).flatten(1) for t in (written, expected))
        wrong = (found != wanted).nonzero()
        row, column = wrong[0].tolist()
        place = f"first in row {int(rows[row])} of {len(rows)} at byte {column}"
        values = f"{int(found[row, column]):#x}, not {int(wanted[row, column]):#x}"
        raise AssertionError(f"{name}: {len(wrong)} of {found.numel()} bytes wrong, {place}: {values}")
    untouched = torch.ones(len(written), dtype=torch.bool)
    untouched[rows] = False
    assert (written[untouched].view(torch.uint8) == byte).all(), f"{name}: wrote rows that it must not define"
