"""Schedules change the code and never the result; threads and repeats change nothing at all."""

from dataclasses import replace

import pytest
import torch
from kernels.cases import SWIZZLED, Case, buffers
from kernels.compare import Buffers, check_op, launch, same_bytes
from kernels.harness import Workshop, gemm_variant

from moegen.codegen.catalogs.cpu import CATALOG, ROW_TILES
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.devices import CPU_GENERIC
from moegen.core.enums import CombineMode, Epilogue, OpKind
from moegen.core.ops import OpSpec
from moegen.numerics.reference import run_op

CASE = Case(hidden=528, intermediate=144, epilogue=Epilogue.FUSED_FP4, row_scales=SWIZZLED, bias=True, tokens=29)


def legal_variants(op: OpSpec) -> list[Variant]:
    schedules = CATALOG.schedules(op, CPU_GENERIC, None)
    return [Variant(op=op, schedule=item) for item in schedules if CATALOG.verdict(op, item, CPU_GENERIC).legal]


def test_every_schedule_field_changes_the_rendered_code() -> None:
    bodies: dict[str, str] = {}
    for row_tile in ROW_TILES:
        for variant in legal_variants(replace(CASE, row_tile=row_tile).ops()[OpKind.GEMM1]):
            body = render(variant, CATALOG).text.split("\n", 1)[1]
            assert body not in bodies, f"{variant.name} renders as {bodies.get(body)}"
            bodies[body] = variant.name
    assert len(bodies) == len(ROW_TILES) * 3 * 4 * 3


def test_extreme_schedules_give_the_same_bytes(workshop: Workshop) -> None:
    """Smallest, largest and mixed values of each field; the pairwise set of test_gemms covers what lies between."""
    op = CASE.ops()[OpKind.GEMM1]
    given = buffers(CASE)
    schedules = [(32, 64, 1), (128, 512, 4), (32, 512, 4), (128, 64, 1), (64, 128, 2)]
    variants = [gemm_variant(op, cols=cols, k_chunk=k_chunk, unroll=unroll) for cols, k_chunk, unroll in schedules]
    workshop.prepare(variants)
    for variant in variants:
        check_op(workshop.kernel(variant), op, CASE, given)


def test_gemms_do_not_depend_on_threads_or_repeats(workshop: Workshop) -> None:
    """On values whose sums are not exact: bits must still agree, since each output belongs to one task."""
    given = dict(buffers(CASE))
    source = torch.Generator().manual_seed(7)
    for name in ("x_scales", "w1_scales", "h_scales", "w2_scales"):
        given[name] = torch.randint(0x20, 0x50, given[name].shape, generator=source).to(torch.uint8)
    for kind in (OpKind.GEMM1, OpKind.GEMM2):
        op = CASE.ops()[kind]
        kernel = workshop.kernel(gemm_variant(op))
        expected = launch(kernel, op, given, CASE.dims(), byte=0)
        for repeat in range(20):
            again = launch(kernel, op, given, CASE.dims(), byte=0, threads=1 + repeat % 5)
            for name, tensor in again.items():
                assert same_bytes(tensor, expected[name]), (kind, name, repeat)


@pytest.mark.parametrize("threads", [2, 5])
def test_atomic_combine_differs_by_rounding_only(workshop: Workshop, threads: int) -> None:
    case = replace(CASE, combine=CombineMode.ATOMIC, epilogue=Epilogue.COMPACT, top_k=2, experts=3)
    op = case.ops()[OpKind.GEMM2]
    given: Buffers = buffers(case)
    written = launch(workshop.kernel(gemm_variant(op)), op, given, case.dims(), threads=threads)
    torch.testing.assert_close(written["y_acc"], run_op(op, given)["y_acc"], rtol=1e-5, atol=1e-4)
