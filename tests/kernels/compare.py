"""Runs one kernel on poisoned outputs and compares every byte with the reference op."""

from collections.abc import Mapping

import torch
from kernels.cases import Case
from torch import Tensor

from moegen.core.abi import Argument, Dims, arguments
from moegen.core.enums import OpKind, ScaleLayout
from moegen.core.ops import OpSpec
from moegen.core.runner import Kernel
from moegen.numerics.reference import defined_rows, run_op

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}
#: What stale memory may hold: NaN as a scale, all ones, and the largest finite scale.
POISONS = (0x7F, 0xFF, 0x7E)
Buffers = Mapping[str, Tensor]


def stale(argument: Argument, dims: Dims, byte: int) -> Tensor:
    """A tensor for ``argument`` whose every byte is ``byte``."""
    tensor = torch.empty(dims.shape(argument), dtype=DTYPES[argument.dtype])
    tensor.view(torch.uint8).fill_(byte)
    return tensor


def launch(
    kernel: Kernel, op: OpSpec, given: Buffers, dims: Dims, *, first_expert: int = 0, byte: int = 0xFF, threads: int = 1
) -> dict[str, Tensor]:
    """Calls a kernel; returns what it wrote or updated. Inputs must come out unchanged."""
    written: dict[str, Tensor] = {}
    read: dict[str, Tensor] = {}
    values: list[Tensor | int] = []
    for argument in arguments(op):
        if argument.dtype == "int":
            values.append(first_expert)
        elif argument.access == "read":
            read[argument.name] = given[argument.name].clone()
            values.append(read[argument.name])
        else:
            fresh = argument.access == "write"
            tensor = stale(argument, dims, byte) if fresh else given[argument.name].clone()
            written[argument.name] = tensor
            values.append(tensor)
    kernel(*values, threads)
    for name, tensor in read.items():
        assert same_bytes(tensor, given[name]), f"{op.kind.value} changed its input {name}"
    return written


def check_op(kernel: Kernel, op: OpSpec, case: Case, given: Buffers, *, byte: int = 0xFF, threads: int = 1) -> None:
    """Launches, then demands the reference's bytes where the ABI defines them, and untouched bytes elsewhere."""
    dims = case.dims()
    written = launch(kernel, op, given, dims, first_expert=case.first_expert, byte=byte, threads=threads)
    expected = run_op(op, given, first_expert=case.first_expert)
    assert written.keys() == expected.keys()
    for argument in arguments(op):
        if argument.name in written:
            rows = _defined(argument, op, given, written[argument.name])
            _check_buffer(argument.name, written[argument.name], expected[argument.name], rows, byte)


def _defined(argument: Argument, op: OpSpec, given: Buffers, written: Tensor) -> Tensor:
    if op.kind is OpKind.ROUTE or argument.shape[0] not in ("R", "R128"):
        return torch.arange(len(written))
    swizzled = argument.name.endswith("_scales") and op.scale_layout is ScaleLayout.SWIZZLE_128X4
    row_slot = given["row_slot"]
    return defined_rows(
        argument.name,
        given["totals"],
        row_slot,
        ScaleLayout.SWIZZLE_128X4 if swizzled else ScaleLayout.LINEAR,
    )


def _check_buffer(name: str, written: Tensor, expected: Tensor, rows: Tensor, byte: int) -> None:
    assert written.shape == expected.shape, f"{name}: {tuple(written.shape)} against {tuple(expected.shape)}"
    for row in rows.tolist():
        if not same_bytes(written[row], expected[row]):
            columns = (raw(written[row]) != raw(expected[row])).nonzero()
            column = int(columns[0])
            found, wanted = raw(written[row])[column].item(), raw(expected[row])[column].item()
            raise AssertionError(f"{name}[{row}] byte {column} of {len(columns)} wrong: {found:#x}, not {wanted:#x}")
    untouched = torch.ones(len(written), dtype=torch.bool)
    untouched[rows] = False
    assert (written[untouched].view(torch.uint8) == byte).all(), f"{name}: wrote rows that it must not define"


def raw(tensor: Tensor) -> Tensor:
    """A tensor's bytes in order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """True when two tensors agree bit for bit, NaN included."""
    return torch.equal(raw(a), raw(b))
