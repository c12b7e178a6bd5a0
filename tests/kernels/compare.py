"""Runs one kernel on poisoned outputs and compares every byte with the reference op."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Call:
    """Arguments of one launch. ``written`` are those that the kernel writes or updates; ``kept`` are (as they were, as
    they are) of those that it must leave alone."""

    values: list[Tensor | int]
    written: dict[str, Tensor]
    kept: dict[str, tuple[Tensor, Tensor]]

    def check_kept(self, what: str) -> None:
        """Fails when an input or the scratch changed."""
        for name, (before, after) in self.kept.items():
            assert same_bytes(before, after.cpu()), f"{what} changed {name}"


def make_call(
    parameters: Iterable[Argument],
    given: Buffers,
    dims: Dims,
    *,
    first_expert: int = 0,
    byte: int = 0xFF,
    scratch_bytes: int = 0,
    place: Callable[[Tensor], Tensor] = Tensor.clone,
) -> Call:
    """Arguments by parameter: outputs full of ``byte``, scratch of zeros, the rest from ``given``; ``place`` copies
    each to where the kernel runs."""
    call = Call(values=[], written={}, kept={})
    for parameter in parameters:
        if parameter.dtype == "int":
            call.values.append(first_expert)
            continue
        if parameter.name == "scratch":
            before = torch.zeros(scratch_bytes, dtype=torch.uint8)
        elif parameter.access == "write":
            before = stale(parameter, dims, byte)
        else:
            before = given[parameter.name]
        tensor = place(before)
        if parameter.access == "read" or parameter.name == "scratch":
            call.kept[parameter.name] = before, tensor
        else:
            call.written[parameter.name] = tensor
        call.values.append(tensor)
    return call


def stale(argument: Argument, dims: Dims, byte: int) -> Tensor:
    """A tensor for ``argument`` whose every byte is ``byte``."""
    tensor = torch.empty(dims.shape(argument), dtype=DTYPES[argument.dtype])
    tensor.view(torch.uint8).fill_(byte)
    return tensor


def launch(
    kernel: Kernel, op: OpSpec, given: Buffers, dims: Dims, *, first_expert: int = 0, byte: int = 0xFF, threads: int = 1
) -> dict[str, Tensor]:
    """Calls a kernel; returns what it wrote or updated. Inputs must come out unchanged."""
    call = make_call(arguments(op), given, dims, first_expert=first_expert, byte=byte)
    kernel(*call.values, threads)
    call.check_kept(op.kind.value)
    return call.written


def check_op(kernel: Kernel, op: OpSpec, case: Case, given: Buffers, *, byte: int = 0xFF, threads: int = 1) -> None:
    """Launches, then demands the reference's bytes where the ABI defines them, and untouched bytes elsewhere."""
    dims = case.dims()
    written = launch(kernel, op, given, dims, first_expert=case.first_expert, byte=byte, threads=threads)
    check_written(op, arguments(op), given, written, run_op(op, given, first_expert=case.first_expert), byte)


def check_written(
    op: OpSpec, parameters: Iterable[Argument], given: Buffers, written: Buffers, expected: Buffers, byte: int
) -> None:
    """Demands the expected bytes in defined rows, and ``byte`` in every other row."""
    assert written.keys() == expected.keys()
    for parameter in parameters:
        name = parameter.name
        if name in written:
            rows = _defined(parameter, op, given, written[name])
            _check_buffer(name, written[name], expected[name], rows, byte)


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
    if not same_bytes(written[rows], expected[rows]):
        found, wanted = (t[rows].contiguous().view(torch.uint8).reshape(len(rows), -1) for t in (written, expected))
        wrong = (found != wanted).nonzero()
        row, column = wrong[0].tolist()
        place = f"first in row {int(rows[row])} of {len(rows)} at byte {column}"
        values = f"{int(found[row, column]):#x}, not {int(wanted[row, column]):#x}"
        raise AssertionError(f"{name}: {len(wrong)} of {found.numel()} bytes wrong, {place}: {values}")
    untouched = torch.ones(len(written), dtype=torch.bool)
    untouched[rows] = False
    assert (written[untouched].view(torch.uint8) == byte).all(), f"{name}: wrote rows that it must not define"


def raw(tensor: Tensor) -> Tensor:
    """A tensor's bytes in order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """True when two tensors agree bit for bit, NaN included."""
    return torch.equal(raw(a), raw(b))
