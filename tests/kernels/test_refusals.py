"""Refusals of an entry: a ValueError that names argument, found and expected, before anything is written."""

from collections.abc import Callable

import pytest
import torch
from kernels.cases import Case, buffers
from kernels.compare import DTYPES, Buffers
from kernels.harness import Workshop, gemm_variant, stream_variant
from torch import Tensor

from moegen.core.abi import arguments
from moegen.core.enums import OpKind
from moegen.core.ops import OpSpec

CASE = Case()


def call(workshop: Workshop, op: OpSpec, given: Buffers, *extra: object, **replaced: object) -> None:
    """Calls with the given inputs and zeroed outputs, some of them replaced; nothing may be written."""
    outputs: dict[str, Tensor] = {}
    values: list[object] = []
    for argument in arguments(op):
        if argument.access != "read":
            outputs[argument.name] = torch.zeros(CASE.dims().shape(argument), dtype=DTYPES[argument.dtype])
        value = 3 if argument.dtype == "int" else outputs.get(argument.name, given.get(argument.name))
        values.append(replaced.get(argument.name, value))
    variant = gemm_variant(op) if op.kind in (OpKind.GEMM1, OpKind.GEMM2) else stream_variant(op)
    try:
        workshop.kernel(variant)(*values, *(extra or (1,)))
    finally:
        assert all(not tensor.any() for tensor in outputs.values())


WRONG: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "dtype": (lambda t: t.float(), "x_codes: found dtype float32, expected uint8"),
    "shape": (lambda t: t[:, :-1].contiguous(), r"x_codes: found shape \[\d+, 47\], expected \[\d+, 48\]"),
    "rank": (lambda t: t[None], r"x_codes: found shape \[1, \d+, 48\], expected"),
    "strides": (lambda t: t.t().contiguous().t(), r"x_codes: found strides \[1, \d+\], expected a contiguous"),
    "kind": (lambda t: 5, "x_codes: found no tensor, expected one"),
    "scalar": (lambda t: t[0, 0], "x_codes: found 0 dimensions, expected more than 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_gemm1_refuses_a_wrong_tensor(workshop: Workshop, name: str) -> None:
    given = buffers(CASE)
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call(workshop, CASE.ops()[OpKind.GEMM1], given, x_codes=change(given["x_codes"]))


def test_every_tensor_of_every_op_is_checked(workshop: Workshop) -> None:
    given = buffers(CASE)
    for op in CASE.ops().values():
        for argument in arguments(op):
            if argument.dtype != "int":
                wrong = torch.zeros((*CASE.dims().shape(argument), 1), dtype=torch.float64)
                with pytest.raises(ValueError, match=rf"{argument.name}: found dtype float64, expected"):
                    call(workshop, op, given, **{argument.name: wrong})


@pytest.mark.parametrize(
    ("name", "position", "value", "message"),
    [
        ("totals", 1, 10**6, r"totals\[1\]: found 1000000, expected at most the rows of the buffers"),
        ("totals", 1, -4, r"totals\[1\]: found -4"),
        ("totals", 0, 0, r"totals\[0\]: found 0, expected the padded rows over the row tile"),
        ("tile_expert", 0, 99, r"tile_expert\[0\]: found 99, expected the expert whose rows the tile holds"),
        ("tile_expert", 0, -1, r"tile_expert\[0\]: found -1"),
        ("expert_rows", 0, 10**6, r"expert_rows\[0\]: found 1000000, expected no more than its tiles hold"),
        ("expert_rows", 2, -1, r"expert_rows\[2\]: found -1"),
        ("expert_offsets", 1, 3, r"expert_offsets\[1\]: found 3, expected whole tiles"),
        ("expert_offsets", 0, 4, r"expert_offsets\[0\]: found 4, expected 0"),
    ],
)
@pytest.mark.parametrize("kind", [OpKind.GEMM1, OpKind.GEMM2])
def test_gemms_refuse_index_buffers_that_route_did_not_write(
    workshop: Workshop, kind: OpKind, name: str, position: int, value: int, message: str
) -> None:
    given = buffers(CASE)
    damaged = given[name].clone()
    damaged[position] = value
    with pytest.raises(ValueError, match=message):
        call(workshop, CASE.ops()[kind], given, **{name: damaged})


@pytest.mark.parametrize(("kind", "name"), [(OpKind.QUANTIZE, "row_slot"), (OpKind.COMBINE, "slot_row")])
@pytest.mark.parametrize("value", [10**6, -2])
def test_streams_refuse_slots_and_rows_out_of_range(workshop: Workshop, kind: OpKind, name: str, value: int) -> None:
    given = buffers(CASE)
    damaged = given[name].clone()
    damaged[0] = value
    with pytest.raises(ValueError, match=rf"{name}\[0\]: found {value}, expected -1 or a"):
        call(workshop, CASE.ops()[kind], given, **{name: damaged})


def test_route_refuses_buffers_that_a_routing_could_overrun(workshop: Workshop) -> None:
    op = CASE.ops()[OpKind.ROUTE]
    short = {"row_slot": torch.zeros(40, dtype=torch.int32), "tile_expert": torch.zeros(10, dtype=torch.int32)}
    with pytest.raises(ValueError, match="row_slot: found 40 rows for 33 slots, expected 48 to 2147483647"):
        call(workshop, op, buffers(CASE), **short)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ((0,), "threads: found 0, expected 1 to 4096"),
        ((-(2**63),), "threads: found -9223372036854775808"),
        (("two",), "argument 6: found no integer, expected a 64-bit integer"),
        ((1, 1), "found 8 arguments, expected 7"),
    ],
)
def test_calls_of_another_form_are_refused(workshop: Workshop, extra: tuple[object, ...], message: str) -> None:
    op = CASE.ops()[OpKind.QUANTIZE]
    with pytest.raises(ValueError, match=message):
        call(workshop, op, buffers(CASE), *extra)
