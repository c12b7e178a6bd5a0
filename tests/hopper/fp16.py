"""Layers with fp16 tokens: the ops around the gemms, and every product of a code and a scale."""

from dataclasses import dataclass, replace

import torch
from hopper.cases import HopperCase, private_buffers
from hopper.workshop import ladder_variant, stream_variant
from kernels.cases import DYNAMIC, SWIZZLED, buffers, generator
from torch import Tensor

from moegen.codegen.variant import Variant
from moegen.core.enums import CombineMode, Epilogue, OpKind, RouterWeight, TokenDtype
from moegen.core.ops import Numerics
from moegen.numerics import e2m1

FP16 = TokenDtype.FP16
ON_INPUT = Numerics(router_weight=RouterWeight.INPUT)


@dataclass(frozen=True)
class StreamCase:
    """An op around the gemms, its layer, and which of its buffers hold values of every magnitude."""

    case: HopperCase
    kind: OpKind
    wild: tuple[str, ...]
    gathers: bool = True

    def variant(self) -> Variant:
        """The op's only schedule."""
        op = self.case.ops()[self.kind] if self.gathers else self.case.row_quantizer()
        return stream_variant(op)

    def given(self) -> dict[str, Tensor]:
        """Inputs; padding rows are zero, as producers leave them."""
        made = buffers(self.case)
        for salt, name in enumerate(self.wild):
            values = wild_fp16(tuple(made[name].shape), self.case, 30 + salt)
            if name != "x":
                values[made["row_slot"] < 0] = 0
            made[name] = values
        return private_buffers(self.case, made)


def wild_fp16(shape: tuple[int, ...], case: HopperCase, salt: int) -> Tensor:
    """fp16 values of every exponent, subnormals and zeros of both signs, rows and blocks of zeros."""
    source = generator(case, salt)
    values = torch.randn(shape, generator=source) * 10 ** (torch.rand(shape, generator=source) * 12 - 8)
    values[torch.rand(shape, generator=source) < 0.1] = -0.0
    values[::4] = 0
    values[:, :16] = 0
    return values.clamp(-6e4, 6e4).to(torch.float16)


def stream_cases() -> dict[str, StreamCase]:
    """By name. Products with router weights of up to 1.1 pass the largest fp16 and its smallest normal."""
    w4a4 = HopperCase(hidden=176, intermediate=208, dtype=FP16)
    dynamic = replace(w4a4, x_scale=DYNAMIC, h_scale=DYNAMIC, row_scales=SWIZZLED, numerics=ON_INPUT)
    paired = replace(dynamic, epilogue=Epilogue.INTERLEAVED)
    plain = replace(w4a4, w4a4=False, fused_gather=False)
    early = replace(w4a4, hidden=2064, numerics=Numerics(router_weight=RouterWeight.PRE_QUANT))
    return {
        "quantize": StreamCase(w4a4, OpKind.QUANTIZE, ("x",)),
        "quantize_weighted": StreamCase(dynamic, OpKind.QUANTIZE, ("x",)),
        "quantize_rows": StreamCase(dynamic, OpKind.QUANTIZE, ("h_rows",), gathers=False),
        "deinterleave_quantize": StreamCase(paired, OpKind.DEINTERLEAVE_QUANTIZE, ("h_pair",)),
        "gather": StreamCase(plain, OpKind.GATHER, ("x",)),
        "gather_weighted": StreamCase(replace(plain, numerics=ON_INPUT), OpKind.GATHER, ("x",)),
        "deinterleave": StreamCase(replace(plain, epilogue=Epilogue.INTERLEAVED), OpKind.DEINTERLEAVE, ("h_pair",)),
        "combine": StreamCase(replace(w4a4, hidden=2064), OpKind.COMBINE, ("out_rows",)),
        "combine_weighted_before": StreamCase(early, OpKind.COMBINE, ("out_rows",)),
        "combine_atomic": StreamCase(replace(w4a4, combine=CombineMode.ATOMIC), OpKind.COMBINE, ()),
    }


def every_product() -> tuple[Variant, HopperCase, dict[str, Tensor]]:
    """gemm2 whose weight rows hold one code each: all 16 codes under all 126 scales, against rows of one magnitude.

    Sums of one product are exact, whatever its exponent: what leaves must be the rounded product, infinities included.
    """
    scales = torch.arange(1, 0x7F, dtype=torch.uint8)
    case = HopperCase(
        hidden=16 * len(scales),
        intermediate=80,
        experts=3,
        top_k=2,
        tokens=9,
        w4a4=False,
        dtype=FP16,
        routing="uniform",
    )
    given = buffers(case)
    row = torch.arange(case.hidden)
    code, scale, column = row % 16, scales[row // 16], row * 7 % case.intermediate
    nibbles = torch.zeros(case.hidden, case.intermediate, dtype=torch.uint8)
    nibbles[row, column] = code.to(torch.uint8)
    packed = e2m1.pack(nibbles, given["w2_codes"].shape[-1])
    given["w2_codes"] = packed.expand(case.experts, -1, -1).contiguous()
    given["w2_scales"] = scale[:, None].expand(case.experts, -1, case.intermediate // 16).contiguous()
    given["w2_alpha"] = torch.tensor([[2.0**-20], [0.71], [37.0]])
    return ladder_variant(case.ops()[OpKind.GEMM2], "n8_16"), case, private_buffers(case, given)
