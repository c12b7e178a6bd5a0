"""Which gemm and stream variants the GPU tests run and CI compiles: pairwise covering sets of ops and schedules."""

from typing import Any

from hopper.cases import GEOMETRIES, HopperCase
from kernels.cases import ACTIVATIONS, DYNAMIC, LINEAR, STATIC, SWIZZLED
from kernels.compare import POISONS
from kernels.pairwise import Row, covering

from moegen.codegen.catalogs.sm90 import CATALOG, LADDER
from moegen.codegen.variant import Variant
from moegen.core.devices import H200
from moegen.core.enums import ActivationMath, CombineMode, Contract, Epilogue, OpKind, Round, RouterWeight
from moegen.core.errors import MoegenError
from moegen.core.ops import Numerics

LADDERS = ("n8", "n16_64", "n24_96", "n8_128", "n48_160", "n256")
COMMON = {
    "geometry": tuple(GEOMETRIES),
    "routing": ("mixed", "hot", "none"),
    "bias": (False, True),
    "poison": POISONS,
    "ladder": LADDERS,
    "warpgroups": (1, 2, 3, 4, 5),
    "tiles": (1, 2),
    "blocks": (1, 2, 4),
}
GEMM1 = {
    "mode": (
        ("w4a4", Epilogue.INTERLEAVED),
        ("w4a4", Epilogue.COMPACT),
        ("w4a4", Epilogue.FUSED_FP4),
        ("gathers", Epilogue.INTERLEAVED),
        ("gathers", Epilogue.COMPACT),
        ("gathered", Epilogue.INTERLEAVED),
        ("gathered", Epilogue.COMPACT),
    ),
    "activation": tuple(ACTIVATIONS),
    "router_weight": tuple(RouterWeight),
    "row_scales": (LINEAR, SWIZZLED),
    "gate_round": (Round.FP32, Round.BF16),
    "pre_quant_round": (Round.FP32, Round.BF16),
    "contract": (Contract.TE, Contract.MODELOPT, Contract.HALF_STEP),
    **COMMON,
}
GEMM2 = {
    "format": ("w4a4", "gathered"),
    "h_scale": (STATIC, DYNAMIC),
    "row_scales": (LINEAR, SWIZZLED),
    "combine": ((CombineMode.ORDERED, RouterWeight.COMBINE), *((CombineMode.ATOMIC, place) for place in RouterWeight)),
    **COMMON,
}


def case_of(row: Row, activation_math: ActivationMath = ActivationMath.EXACT) -> HopperCase:
    """The layer and batch of a row of either grid."""
    fields: dict[str, Any] = {name: row[name] for name in ("routing", "bias")}
    if "mode" in row:
        form, fields["epilogue"] = row["mode"]
        names = ("gate_round", "pre_quant_round", "contract", "router_weight")
        numerics = Numerics(**{name: row[name] for name in names}, activation_math=activation_math)
        fields |= {"activation": ACTIVATIONS[row["activation"]], "numerics": numerics}
    else:
        form, (fields["combine"], place) = row["format"], row["combine"]
        fields |= {"h_scale": row["h_scale"], "numerics": Numerics(router_weight=place)}
    return HopperCase(
        **GEOMETRIES[row["geometry"]],
        **fields,
        row_scales=row["row_scales"] if form == "w4a4" else LINEAR,
        w4a4=form == "w4a4",
        fused_gather=form == "gathers",
    )


def variant_of(row: Row) -> Variant:
    """The variant that a row stands for."""
    op = case_of(row).ops()[OpKind.GEMM1 if "mode" in row else OpKind.GEMM2]
    return Variant(
        op=op, schedule=LADDER.make(**{name: row[name] for name in ("ladder", "warpgroups", "tiles", "blocks")})
    )


def allowed(row: Row) -> bool:
    """True when the catalog calls the row legal."""
    try:
        variant = variant_of(row)
    except (MoegenError, ValueError):
        return False
    return CATALOG.verdict(variant.op, variant.schedule, H200).legal


def row_name(row: Row) -> str:
    """Test id."""
    return f"{variant_of(row).name}-{row['routing']}"


GEMM1_ROWS = covering(GEMM1, allowed)
GEMM2_ROWS = covering(GEMM2, allowed)
