"""Both gemms on the GPU, bit for bit against the reference on exact-sum data, over the covering sets."""

import pytest
from hopper.cases import private_buffers
from hopper.compare import check_op
from hopper.grids import GEMM1_ROWS, GEMM2_ROWS, case_of, row_name, variant_of
from hopper.workshop import Workshop
from kernels.cases import buffers
from kernels.pairwise import Row

pytestmark = pytest.mark.gpu
ROWS = [*GEMM1_ROWS, *GEMM2_ROWS]


@pytest.fixture(scope="module", autouse=True)
def compiled(hopper_workshop: Workshop) -> None:
    hopper_workshop.prepare([variant_of(row) for row in ROWS])


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_gemm_writes_the_reference_bytes(hopper_workshop: Workshop, row: Row) -> None:
    variant, case = variant_of(row), case_of(row)
    given = private_buffers(case, buffers(case))
    check_op(hopper_workshop.kernel(variant), variant, case, given, byte=row["poison"])
