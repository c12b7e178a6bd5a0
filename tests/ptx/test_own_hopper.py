"""Our own sm_90a kernels, compiled as for a GPU and executed by the interpreter, bit for bit against the reference."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hopper.cases import HopperCase, private_buffers, public
from hopper.compare import parameters
from hopper.workshop import Workshop, ladder_variant, stream_variant
from kernels.cases import SWIZZLED, buffers
from kernels.compare import check_written, make_call
from torch import Tensor

from moegen.codegen.catalogs.sm90 import CATALOG, CLAIMS
from moegen.codegen.catalogs.sm90_even import EVEN
from moegen.codegen.variant import Variant
from moegen.core.enums import OpKind, Target
from moegen.numerics.reference import run_op
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


def interpret(
    workshop: Workshop, variant: Variant, case: HopperCase, given: dict[str, Tensor], padded: bool
) -> dict[str, Tensor]:
    """What a kernel writes, over outputs of 0xFF bytes, the same under every schedule.

    ``padded``: token tiles have groups without rows, which are multiplied as they lie in shared memory.
    """
    op, scratch = variant.op, CATALOG.scratch(variant.op, variant.schedule)
    call = make_call(
        parameters(variant),
        given,
        case.dims(),
        first_expert=case.first_expert,
        byte=POISON,
        scratch_bytes=scratch.fixed,
        place=_aligned,
    )
    runner = InterpreterRunner(Target.SM_90A, SCHEDULES)
    runner.load(workshop.directory(variant), op.kind.value)(*call.values)
    assert len(runner.results) == len(SCHEDULES)
    allowed = {Check.UNINITIALISED} if padded or op.kind is OpKind.GEMM2 else set()
    assert {report.check for result in runner.results for report in result.reports} <= allowed
    call.check_kept(op.kind.value)
    return call.written


def _aligned(tensor: Tensor) -> Tensor:
    """A copy at a 512-byte boundary, as a device allocates it."""
    room = torch.zeros(tensor.nbytes + 512, dtype=torch.uint8)
    start = -room.data_ptr() % 512
    copy = room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


def check(
    workshop: Workshop, variant: Variant, case: HopperCase, given: dict[str, Tensor], *, padded: bool = False
) -> None:
    """Demands the reference's bytes where rows are defined, and untouched bytes elsewhere."""
    op = variant.op
    written = interpret(workshop, variant, case, given, padded)
    expected = run_op(public(op), given, first_expert=case.first_expert)
    assert all(len(tensor) for tensor in expected.values())
    check_written(op, parameters(variant), given, written, expected, POISON)


@pytest.mark.parametrize("kind", [OpKind.ROUTE, OpKind.QUANTIZE])
def test_routing_and_quantizing_write_the_bytes_of_the_reference(workshop: Workshop, kind: OpKind) -> None:
    check(workshop, stream_variant(CASE.ops()[kind]), CASE, buffers(CASE))


def test_tokens_are_arranged_once(workshop: Workshop) -> None:
    """Columns past K, up to a whole unit, become zeros; two blocks share the tokens."""
    case = HopperCase(hidden=1104, tokens=9, w4a4=False, arranged=True)
    check(workshop, stream_variant(case.ops()[OpKind.ARRANGE]), case, buffers(case))


@pytest.mark.parametrize("kind", [OpKind.GEMM1, OpKind.GEMM2])
def test_gemms_write_the_bytes_of_the_reference(workshop: Workshop, kind: OpKind) -> None:
    """Bulk copies, decoding producers and wgmma; sums are small enough to be exact."""
    case = HopperCase(hidden=80, intermediate=144, experts=3, top_k=1, tokens=9)
    variant = ladder_variant(case.ops()[kind], "n8", warpgroups=1)
    check(workshop, variant, case, private_buffers(case, buffers(case)))


@pytest.mark.parametrize("form", ["rows", "x", "pieces"])
def test_blocks_claim_items_and_gather_rows(workshop: Workshop, form: str) -> None:
    """Two kernels of a ladder share the items by counters; rows come by bulk copies, or one by one through row_slot."""
    forms = HopperCase(hidden=128, intermediate=144, experts=4, top_k=1, tokens=19, w4a4=False)
    case = replace(forms, fused_gather=form != "rows", arranged=form == "pieces")
    fixed = ladder_variant(case.ops()[OpKind.GEMM1], "n8_24", warpgroups=1)
    claims = Variant(op=fixed.op, schedule=CLAIMS.make(**fixed.schedule.as_dict()))
    check(workshop, claims, case, private_buffers(case, buffers(case)), padded=True)


@pytest.mark.parametrize("form", ["rows", "pieces"])
def test_units_of_k_come_in_pairs(workshop: Workshop, form: str) -> None:
    """A turn of the main loop takes two stages of a ring that wraps; rows come by bulk copies, or as pieces."""
    forms = HopperCase(hidden=512, intermediate=80, experts=4, top_k=1, tokens=19, w4a4=False)
    case = replace(forms, fused_gather=form == "pieces", arranged=form == "pieces")
    variant = ladder_variant(case.ops()[OpKind.GEMM1], "n8_24", warpgroups=1)
    check(workshop, variant, case, private_buffers(case, buffers(case)), padded=True)


@pytest.mark.parametrize("kind", [OpKind.GEMM1, OpKind.GEMM2])
def test_the_last_items_are_cut_into_parts(workshop: Workshop, kind: OpKind) -> None:
    """Two or three warpgroups share an item or have one each, beside others that give its stages back unread."""
    case = HopperCase(hidden=192, intermediate=128, experts=4, top_k=1, tokens=19, w4a4=False)
    groups = 2 if kind is OpKind.GEMM1 else 3
    schedule = EVEN.make(ladder="n8_24", warpgroups=groups, tiles=1, blocks=1, parts=groups)
    variant = Variant(op=case.ops()[kind], schedule=schedule)
    check(workshop, variant, case, private_buffers(case, buffers(case)), padded=True)
