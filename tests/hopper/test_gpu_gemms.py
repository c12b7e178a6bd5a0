"""Both gemms on the GPU, bit for bit against the reference on exact-sum data, over the covering sets."""

from typing import Any

import pytest
from hopper.cases import private_buffers
from hopper.compare import check_op
from hopper.fp16 import every_product
from hopper.grids import EVEN_ROWS, FORMAT_ROWS, GEMM1_ROWS, GEMM2_ROWS, case_of, row_name, variant_of
from hopper.workshop import Workshop
from kernels.cases import buffers
from kernels.pairwise import Row

from moegen.codegen.variant import Variant

pytestmark = pytest.mark.gpu
ROWS = [*GEMM1_ROWS, *GEMM2_ROWS, *FORMAT_ROWS, *EVEN_ROWS]


def variants() -> list[Variant]:
    """Every kernel that these tests launch."""
    return [*map(variant_of, ROWS), every_product()[0]]


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest, hopper_workshop: Workshop) -> None:
    """Kernels of the selected rows, side by side."""
    mine = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    rows: list[Any] = [item.callspec.params["row"] for item in mine if hasattr(item, "callspec")]
    hopper_workshop.prepare([variant_of(row) for row in rows])


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_gemm_writes_the_reference_bytes(hopper_workshop: Workshop, row: Row) -> None:
    variant, case = variant_of(row), case_of(row)
    given = private_buffers(case, buffers(case))
    check_op(hopper_workshop.kernel(variant), variant, case, given, byte=row["poison"])


def test_every_fp16_code_and_scale_is_exact(hopper_workshop: Workshop) -> None:
    variant, case, given = every_product()
    check_op(hopper_workshop.kernel(variant), variant, case, given)
