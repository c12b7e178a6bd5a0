"""Both gemms, bit for bit against the reference on exact-sum data, over a pairwise covering set."""

import pytest
from kernels import axes
from kernels.axes import GEOMETRIES
from kernels.cases import LINEAR, SWIZZLED, Case, buffers
from kernels.compare import check_op
from kernels.harness import Workshop
from kernels.pairwise import Row, covering

from moegen.codegen.catalogs.cpu import CATALOG, PANEL, ROW_TILES
from moegen.codegen.variant import Variant
from moegen.core.devices import CPU_GENERIC
from moegen.core.enums import OpKind, TokenDtype
from moegen.core.errors import MoegenError

OWN = {
    "geometry": tuple(GEOMETRIES),
    "row_tile": ROW_TILES,
    "weight_scales": (LINEAR, SWIZZLED),
    "dtype": tuple(TokenDtype),
}
SCHEDULE = {"cols": (16, 32, 64, 128), "k_chunk": (64, 128, 256, 512), "unroll": (1, 2, 4)}
GEMM1 = {**axes.GEMM1, **OWN, **SCHEDULE}
GEMM2 = {"format": ("w4a4", "gathers"), **axes.GEMM2, **OWN, **SCHEDULE}


def case_of(row: Row) -> Case:
    own = {name: row[name] for name in ("row_tile", "weight_scales", "dtype")}
    return Case(**GEOMETRIES[row["geometry"]], **axes.case_fields(row), **own)


def variant_of(row: Row, kind: OpKind) -> Variant:
    op = case_of(row).ops()[kind]
    return Variant(op=op, schedule=PANEL.make(rows=op.row_tile, **{name: row[name] for name in SCHEDULE}))


def allowed(row: Row, kind: OpKind) -> bool:
    try:
        variant = variant_of(row, kind)
    except (MoegenError, ValueError):
        return False
    return CATALOG.verdict(variant.op, variant.schedule, CPU_GENERIC).legal


GEMM1_ROWS = covering(GEMM1, lambda row: allowed(row, OpKind.GEMM1))
GEMM2_ROWS = covering(GEMM2, lambda row: allowed(row, OpKind.GEMM2))


@pytest.fixture(scope="module", autouse=True)
def compiled(workshop: Workshop) -> None:
    workshop.prepare(
        [variant_of(row, OpKind.GEMM1) for row in GEMM1_ROWS] + [variant_of(row, OpKind.GEMM2) for row in GEMM2_ROWS]
    )


def _name(row: Row) -> str:
    return variant_of(row, OpKind.GEMM1 if "mode" in row else OpKind.GEMM2).name + "-" + row["routing"]


@pytest.mark.parametrize("row", GEMM1_ROWS, ids=_name)
def test_gemm1_writes_the_reference_bytes(workshop: Workshop, row: Row) -> None:
    variant, case = variant_of(row, OpKind.GEMM1), case_of(row)
    check_op(workshop.kernel(variant), variant.op, case, buffers(case), byte=row["poison"])


@pytest.mark.parametrize("row", GEMM2_ROWS, ids=_name)
def test_gemm2_writes_the_reference_bytes(workshop: Workshop, row: Row) -> None:
    variant, case = variant_of(row, OpKind.GEMM2), case_of(row)
    check_op(workshop.kernel(variant), variant.op, case, buffers(case), byte=row["poison"])


def test_covering_set_holds_every_value_of_every_axis() -> None:
    for grid, rows in ((GEMM1, GEMM1_ROWS), (GEMM2, GEMM2_ROWS)):
        for name, values in grid.items():
            assert {row[name] for row in rows} == set(values), name
