"""W4A4 layers whose quantising ops decode what they round, and those ops."""

from dataclasses import replace

from hopper.cases import HopperCase
from hopper.fp16 import StreamCase
from kernels.cases import DYNAMIC, SWIZZLED

from moegen.core.enums import Contract, Epilogue, OpKind, TokenDtype
from moegen.core.ops import Numerics

BASE = HopperCase(hidden=176, intermediate=208, decoded=True)
FORMS = {
    "compact": BASE,
    "interleaved": replace(BASE, epilogue=Epilogue.INTERLEAVED, h_scale=DYNAMIC),
    "fused": replace(BASE, epilogue=Epilogue.FUSED_FP4, row_scales=SWIZZLED, dtype=TokenDtype.FP16),
    "dynamic": replace(BASE, x_scale=DYNAMIC, h_scale=DYNAMIC, dtype=TokenDtype.FP16),
}


def quantizing_cases() -> dict[str, StreamCase]:
    """Each op that writes products, over both token dtypes and a contract that gives zero blocks a scale."""
    fp16 = replace(BASE, dtype=TokenDtype.FP16, numerics=Numerics(contract=Contract.MODELOPT))
    paired = replace(BASE, dtype=TokenDtype.FP16, epilogue=Epilogue.INTERLEAVED, h_scale=DYNAMIC)
    return {
        "quantize": StreamCase(fp16, OpKind.QUANTIZE, ("x",)),
        "quantize_rows": StreamCase(replace(fp16, h_scale=DYNAMIC), OpKind.QUANTIZE, ("h_rows",), gathers=False),
        "deinterleave_quantize": StreamCase(paired, OpKind.DEINTERLEAVE_QUANTIZE, ("h_pair",)),
        "quantize_bf16": StreamCase(BASE, OpKind.QUANTIZE, ()),
    }
