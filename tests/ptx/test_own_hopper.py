"""Our own sm_90a kernels, compiled as for a GPU and executed by the interpreter, bit for bit against the reference."""

from pathlib import Path

import pytest
import torch
from hopper.cases import HopperCase, private_buffers, public
from hopper.workshop import Workshop, ladder_variant, stream_variant
from kernels.cases import SWIZZLED, buffers
from kernels.compare import DTYPES, same_bytes
from torch import Tensor

from moegen.codegen.catalogs.sm90 import CATALOG
from moegen.codegen.context import entry_arguments
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.enums import OpKind, ScaleLayout, Target
from moegen.numerics.reference import defined_rows, run_op
from moegen.ptx import Check, Options, Policy, Severity
from moegen.ptx.runner import InterpreterRunner

# A gemm decodes whole blocks of K: past the end of K it loads codes that no copy wrote.
PADDING = {Check.UNINITIALISED: Severity.WARNING}
SCHEDULES = (
    Options(seed=1, races=True, severity=PADDING, resident_clusters=0),
    Options(policy=Policy.LAZY, resident_clusters=0),
)
CASE = HopperCase(experts=5, top_k=2, tokens=7, hidden=176, row_scales=SWIZZLED)
POISON = 0xFF


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(Path(tmp_path_factory.mktemp("own_hopper")))


def interpret(workshop: Workshop, variant: Variant, case: HopperCase, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a kernel writes, over outputs of 0xFF bytes, the same under every schedule."""
    op, dims = variant.op, case.dims()
    scratch = CATALOG.scratch(op, variant.schedule)
    written: dict[str, Tensor] = {}
    values: list[Tensor | int] = []
    for argument in entry_arguments(op, Target.SM_90A, scratch):
        if argument.dtype == "int":
            values.append(case.first_expert)
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
    allowed = {Check.UNINITIALISED} if op.kind is OpKind.GEMM2 else set()
    assert {report.check for result in runner.results for report in result.reports} <= allowed
    return written


def _aligned(tensor: Tensor) -> Tensor:
    """A copy at a 512-byte boundary, as a device allocates it."""
    room = torch.zeros(tensor.nbytes + 512, dtype=torch.uint8)
    start = -room.data_ptr() % 512
    copy = room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


def check(workshop: Workshop, variant: Variant, case: HopperCase, given: dict[str, Tensor]) -> None:
    """Demands the reference's bytes where rows are defined, and untouched bytes elsewhere."""
    op = variant.op
    written = interpret(workshop, variant, case, given)
    expected = run_op(public(op), given, first_expert=case.first_expert)
    assert written.keys() == expected.keys()
    for name, found in written.items():
        rows = torch.arange(len(found))
        if op.kind is not OpKind.ROUTE:
            layout = op.scale_layout if name.endswith("_scales") else ScaleLayout.LINEAR
            rows = defined_rows(name, given["totals"], given["row_slot"], layout)
        assert len(rows) > 0
        assert same_bytes(found[rows], expected[name][rows]), name
        untouched = torch.ones(len(found), dtype=torch.bool)
        untouched[rows] = False
        assert (found[untouched].view(torch.uint8) == POISON).all(), name


@pytest.mark.parametrize("kind", [OpKind.ROUTE, OpKind.QUANTIZE])
def test_routing_and_quantizing_write_the_bytes_of_the_reference(workshop: Workshop, kind: OpKind) -> None:
    check(workshop, stream_variant(CASE.ops()[kind]), CASE, buffers(CASE))


@pytest.mark.parametrize("kind", [OpKind.GEMM1, OpKind.GEMM2])
def test_gemms_write_the_bytes_of_the_reference(workshop: Workshop, kind: OpKind) -> None:
    """Bulk copies, decoding producers and wgmma; sums are small enough to be exact."""
    case = HopperCase(hidden=80, intermediate=144, experts=3, top_k=1, tokens=9)
    variant = ladder_variant(case.ops()[kind], "n8", warpgroups=1)
    check(workshop, variant, case, private_buffers(case, buffers(case)))
