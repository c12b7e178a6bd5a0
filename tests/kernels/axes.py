"""What pairwise sets of gemm ops vary, on every target: geometries, formats, epilogues, activations, rounding."""

from typing import Any

from kernels.cases import ACTIVATIONS, DYNAMIC, LINEAR, STATIC, SWIZZLED
from kernels.compare import POISONS
from kernels.pairwise import Row

from moegen.core.enums import ActivationMath, CombineMode, Contract, Epilogue, Round, RouterWeight
from moegen.core.ops import Numerics

GEOMETRIES = {
    "short": {"hidden": 80, "intermediate": 144, "experts": 5, "top_k": 3, "tokens": 11},
    "odd": {"hidden": 144, "intermediate": 80, "experts": 7, "top_k": 2, "tokens": 13},
    "deep": {"hidden": 528, "intermediate": 176, "experts": 3, "top_k": 1, "tokens": 37},
    "one": {"hidden": 352, "intermediate": 272, "experts": 1, "top_k": 1, "tokens": 6},
    "many": {"hidden": 176, "intermediate": 304, "experts": 60, "top_k": 4, "tokens": 17},
}
COMMON = {"routing": ("mixed", "hot", "none"), "bias": (False, True), "poison": POISONS}
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
"""Axes of gemm1; a target adds its geometries and schedules."""
GEMM2 = {
    "h_scale": (STATIC, DYNAMIC),
    "row_scales": (LINEAR, SWIZZLED),
    "combine": ((CombineMode.ORDERED, RouterWeight.COMBINE), *((CombineMode.ATOMIC, place) for place in RouterWeight)),
    **COMMON,
}
"""Axes of gemm2; a target adds its formats, geometries and schedules."""


def case_fields(row: Row, activation_math: ActivationMath = ActivationMath.EXACT) -> dict[str, Any]:
    """Fields of a case that a row of either grid decides, geometry and the target's own apart."""
    fields: dict[str, Any] = {name: row[name] for name in ("routing", "bias")}
    if "mode" in row:
        form, fields["epilogue"] = row["mode"]
        names = ("gate_round", "pre_quant_round", "contract", "router_weight")
        numerics = Numerics(**{name: row[name] for name in names}, activation_math=activation_math)
        fields |= {"activation": ACTIVATIONS[row["activation"]], "numerics": numerics}
    else:
        form, (fields["combine"], place) = row["format"], row["combine"]
        fields |= {"h_scale": row["h_scale"], "numerics": Numerics(router_weight=place)}
    fields["row_scales"] = row["row_scales"] if form == "w4a4" else LINEAR
    return fields | {"w4a4": form == "w4a4", "fused_gather": form == "gathers"}
