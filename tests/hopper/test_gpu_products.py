"""Products of code and scale on the GPU, bit for bit: gemms that read them, ops that write them."""

from dataclasses import replace

import pytest
from hopper.cases import private_buffers
from hopper.compare import check_op
from hopper.grids import case_of, row_name, variant_of
from hopper.products import (
    GEMM1_ROWS,
    GEMM2_ROWS,
    quantizing_cases,
)
from hopper.workshop import Workshop
from kernels.cases import buffers
from kernels.compare import POISONS
from kernels.pairwise import Row

pytestmark = pytest.mark.gpu
ROWS = [*GEMM1_ROWS, *GEMM2_ROWS]
STREAMS = quantizing_cases()


@pytest.fixture(scope="module", autouse=True)
def compiled(hopper_workshop: Workshop) -> None:
    variants = [variant_of(row) for row in ROWS] + [case.variant() for case in STREAMS.values()]
    hopper_workshop.prepare(variants)


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_gemms_write_the_bytes_of_the_reference(hopper_workshop: Workshop, row: Row) -> None:
    variant, case = variant_of(row), case_of(row)
    check_op(hopper_workshop.kernel(variant), variant, case, private_buffers(case, buffers(case)), byte=row["poison"])


@pytest.mark.parametrize("routing", ["mixed", "hot", "none"])
@pytest.mark.parametrize("name", STREAMS)
def test_quantising_ops_write_the_products_of_the_reference(hopper_workshop: Workshop, name: str, routing: str) -> None:
    stream = replace(STREAMS[name], case=replace(STREAMS[name].case, routing=routing))
    variant = stream.variant()
    for byte in POISONS:
        check_op(hopper_workshop.kernel(variant), variant, stream.case, stream.given(), byte=byte)
