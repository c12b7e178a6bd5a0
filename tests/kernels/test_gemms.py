"""Both gemms, bit for bit against the reference on exact-sum data, over a pairwise covering set."""

from typing import Any

import pytest
from kernels.cases import ACTIVATIONS, DYNAMIC, LINEAR, STATIC, SWIZZLED, Case, buffers
from kernels.compare import POISONS, check_op
from kernels.harness import Workshop
from kernels.pairwise import Row, covering

from moegen.codegen.catalogs.cpu import CATALOG, PANEL, ROW_TILES
from moegen.codegen.variant import Variant
from moegen.core.devices import CPU_GENERIC
from moegen.core.enums import CombineMode, Contract, Epilogue, OpKind, Round, RouterWeight, TokenDtype
from moegen.core.errors import MoegenError
from moegen.core.ops import Numerics

GEOMETRIES = {
    "short": {"hidden": 80, "intermediate": 144, "experts": 5, "top_k": 3, "tokens": 11},
    "odd": {"hidden": 144, "intermediate": 80, "experts": 7, "top_k": 2, "tokens": 13},
    "deep": {"hidden": 528, "intermediate": 176, "experts": 3, "top_k": 1, "tokens": 37},
    "one": {"hidden": 352, "intermediate": 272, "experts": 1, "top_k": 1, "tokens": 6},
    "many": {"hidden": 176, "intermediate": 304, "experts": 60, "top_k": 4, "tokens": 17},
}
SCHEDULE = {"cols": (16, 32, 64, 128), "k_chunk": (64, 128, 256, 512), "unroll": (1, 2, 4)}
COMMON = {
    "geometry": tuple(GEOMETRIES),
    "row_tile": ROW_TILES,
    "routing": ("mixed", "hot", "none"),
    "bias": (False, True),
    "weight_scales": (LINEAR, SWIZZLED),
    "dtype": tuple(TokenDtype),
    "poison": POISONS,
}
GEMM1 = {
    "mode": (
        ("w4a4", Epilogue.INTERLEAVED),
        ("w4a4", Epilogue.COMPACT),
        ("w4a4", Epilogue.FUSED_FP4),
        ("gathers", Epilogue.INTERLEAVED),
        ("gathers", Epilogue.COMPACT),
        ("gathered", Epilogue.COMPACT),
    ),
    "activation": tuple(ACTIVATIONS),
    "router_weight": tuple(RouterWeight),
    "row_scales": (LINEAR, SWIZZLED),
    "gate_round": (Round.FP32, Round.BF16),
    "pre_quant_round": (Round.FP32, Round.BF16),
    "contract": (Contract.TE, Contract.MODELOPT, Contract.HALF_STEP),
    **COMMON,
    **SCHEDULE,
}
GEMM2 = {
    "format": ("w4a4", "gathers"),
    "h_scale": (STATIC, DYNAMIC),
    "row_scales": (LINEAR, SWIZZLED),
    "combine": ((CombineMode.ORDERED, RouterWeight.COMBINE), *((CombineMode.ATOMIC, place) for place in RouterWeight)),
    **COMMON,
    **SCHEDULE,
}


def case_of(row: Row) -> Case:
    fields: dict[str, Any] = {name: row[name] for name in ("row_tile", "routing", "bias", "weight_scales", "dtype")}
    if "mode" in row:
        form, fields["epilogue"] = row["mode"]
        names = ("gate_round", "pre_quant_round", "contract", "router_weight")
        fields |= {
            "activation": ACTIVATIONS[row["activation"]],
            "numerics": Numerics(**{name: row[name] for name in names}),
        }
    else:
        form, (fields["combine"], place) = row["format"], row["combine"]
        fields |= {"h_scale": row["h_scale"], "numerics": Numerics(router_weight=place)}
    return Case(
        **GEOMETRIES[row["geometry"]],
        **fields,
        row_scales=row["row_scales"] if form == "w4a4" else LINEAR,
        w4a4=form == "w4a4",
        fused_gather=form == "gathers",
    )


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
    for axes, rows in ((GEMM1, GEMM1_ROWS), (GEMM2, GEMM2_ROWS)):
        for name, values in axes.items():
            assert {row[name] for row in rows} == set(values), name
