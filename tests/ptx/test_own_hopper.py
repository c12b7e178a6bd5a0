"""Our own sm_90a kernels, compiled as for a GPU and executed by the interpreter, bit for bit against the reference."""

from pathlib import Path

import pytest
import torch
from hopper.cases import HopperCase
from hopper.workshop import Workshop, stream_variant
from kernels.cases import SWIZZLED, buffers
from kernels.compare import DTYPES, same_bytes
from torch import Tensor

from moegen.codegen.catalogs.sm90 import CATALOG
from moegen.codegen.context import entry_arguments
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.enums import OpKind, ScaleLayout, Target
from moegen.numerics.reference import defined_rows, run_op
from moegen.ptx import Options, Policy
from moegen.ptx.runner import InterpreterRunner

SCHEDULES = (Options(seed=1, races=True, resident_clusters=0), Options(policy=Policy.LAZY, resident_clusters=0))
CASE = HopperCase(experts=5, top_k=2, tokens=7, hidden=176, row_scales=SWIZZLED)
POISON = 0xFF


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(Path(tmp_path_factory.mktemp("own_hopper")))


def interpret(workshop: Workshop, variant: Variant, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a kernel writes, over outputs of 0xFF bytes, the same under every schedule."""
    op, dims = variant.op, CASE.dims()
    scratch = CATALOG.scratch(op, variant.schedule)
    written: dict[str, Tensor] = {}
    values: list[Tensor | int] = []
    for argument in entry_arguments(op, Target.SM_90A, scratch):
        if argument.dtype == "int":
            values.append(CASE.first_expert)
            continue
        if argument.name == "scratch":
            tensor = torch.zeros(scratch.fixed, dtype=torch.uint8)
        elif argument.access == "write":
            tensor = torch.empty(dims.shape(argument), dtype=DTYPES[argument.dtype])
            tensor.view(torch.uint8).fill_(POISON)
        else:
            tensor = given[argument.name].clone()
        tensor = _aligned(tensor)
        if argument.access != "read" and argument.name != "scratch":
            written[argument.name] = tensor
        values.append(tensor)
    workshop.prepare([variant])
    runner = InterpreterRunner(Target.SM_90A, SCHEDULES)
    runner.load(workshop.folder / render(variant, CATALOG).source.digest[:32], op.kind.value)(*values)
    assert len(runner.results) == len(SCHEDULES)
    assert [report for result in runner.results for report in result.reports] == []
    return written


def _aligned(tensor: Tensor) -> Tensor:
    """A copy at a 512-byte boundary, as a device allocates it."""
    room = torch.zeros(tensor.nbytes + 512, dtype=torch.uint8)
    start = -room.data_ptr() % 512
    copy = room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


@pytest.mark.parametrize("kind", [OpKind.ROUTE, OpKind.QUANTIZE])
def test_kernels_write_the_bytes_of_the_reference(workshop: Workshop, kind: OpKind) -> None:
    op, given = CASE.ops()[kind], buffers(CASE)
    written = interpret(workshop, stream_variant(op), given)
    expected = run_op(op, given, first_expert=CASE.first_expert)
    assert written.keys() == expected.keys()
    for name, found in written.items():
        rows = torch.arange(len(found))
        if kind is OpKind.QUANTIZE:
            layout = op.scale_layout if name.endswith("_scales") else ScaleLayout.LINEAR
            rows = defined_rows(name, given["totals"], given["row_slot"], layout)
        assert len(rows) > 0
        assert same_bytes(found[rows], expected[name][rows]), name
        untouched = torch.ones(len(found), dtype=torch.bool)
        untouched[rows] = False
        assert (found[untouched].view(torch.uint8) == POISON).all(), name
