"""Both gemms on the GPU, bit for bit against the reference on exact-sum data, over the covering sets."""

import pytest
from hopper import fp16, grids, products
from hopper.cases import private_buffers
from hopper.compare import check_op
from hopper.grids import case_of, row_name, variant_of
from hopper.workshop import Workshop
from kernels.cases import buffers
from kernels.pairwise import Row

from moegen.codegen.variant import Variant

pytestmark = pytest.mark.gpu
#: bf16 tokens and codes; fp16 tokens; products of code and scale in place of codes.
ROWS = [row for grid in (grids, fp16, products) for row in (*grid.GEMM1_ROWS, *grid.GEMM2_ROWS)]


def variants() -> list[Variant]:
    """Every kernel that these tests launch."""
    return [*map(variant_of, ROWS), fp16.every_product()[0]]


@pytest.fixture(scope="module", autouse=True)
def compiled(hopper_workshop: Workshop) -> None:
    hopper_workshop.prepare(variants())


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_gemm_writes_the_reference_bytes(hopper_workshop: Workshop, row: Row) -> None:
    variant, case = variant_of(row), case_of(row)
    given = private_buffers(case, buffers(case))
    check_op(hopper_workshop.kernel(variant), variant, case, given, byte=row["poison"])


def test_every_fp16_code_and_scale_is_exact(hopper_workshop: Workshop) -> None:
    variant, case, given = fp16.every_product()
    check_op(hopper_workshop.kernel(variant), variant, case, given)
