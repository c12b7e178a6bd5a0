"""Our own sm_90a kernels with inputs: what is recorded here, and later run on an H200.

Every op of the layer in both operand formats; gemm1 in its three epilogues, with each activation, over tile widths
that take every path of the kernels. Sums of the gemms are exact in f32 except where a case says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from hopper.cases import HopperCase, private_buffers
from hopper.workshop import ladder_variant, stream_variant
from kernels.cases import ACTIVATIONS, DYNAMIC, LINEAR, STATIC, SWIZZLED, buffers, generator
from torch import Tensor

from moegen.codegen.catalogs.sm90 import ROUTE
from moegen.codegen.variant import Variant
from moegen.core.enums import ActivationMath, ActScale, CombineMode, Contract, Epilogue, OpKind, RouterWeight
from moegen.core.ops import Numerics, OpSpec

#: A bf16 result whose fp32 sum or activation differs in the last places may round the other way: two units.
BF16_BOUND = "bf16:2"
_CONTRACTS = tuple(Contract)


@dataclass(frozen=True)
class OwnCase:
    """One launch of one kernel.

    Attributes:
        name: unique.
        rule: ``bits`` (all memory equal), ``bf16:N`` (written bf16 rows at most N units in the last place apart, all
            else equal) or ``f32:T`` (atomic sums: absolute or relative T, all else equal).
        given: inputs by argument name.
    """

    name: str
    variant: Variant
    case: HopperCase
    given: Mapping[str, Tensor]
    rule: str = "bits"


def _uneven(shape: tuple[int, ...], case: HopperCase, salt: int) -> Tensor:
    """bf16 values over six orders of magnitude."""
    source = generator(case, salt)
    return (torch.randn(shape, generator=source) * 10 ** (torch.rand(shape, generator=source) * 6 - 3)).bfloat16()


def _routes() -> list[OwnCase]:
    made = []
    for experts, top_k, tokens, threads, blocks in ((5, 3, 19, 1024, 1), (60, 4, 33, 256, 1), (256, 8, 90, 1024, 8)):
        case = HopperCase(experts=experts, top_k=top_k, tokens=tokens, hidden=16, intermediate=32)
        for wide in (True, False):
            op = replace(case.ops()[OpKind.ROUTE], ids_int64=wide)
            given = buffers(case)
            if not wide:
                given["topk_ids"] = given["topk_ids"].clamp(max=2**31 - 1).to(torch.int32)
            variant = Variant(op=op, schedule=ROUTE.make(threads=threads, blocks=blocks))
            made.append(OwnCase(f"route-e{experts}-b{blocks}-{'i64' if wide else 'i32'}", variant, case, given))
    return made


def _quantizers() -> list[OwnCase]:
    made = []
    for number, contract in enumerate(_CONTRACTS):
        scale: ActScale = (STATIC, DYNAMIC)[number % 2]
        layout = (LINEAR, SWIZZLED)[number // 2 % 2]
        place = (RouterWeight.COMBINE, RouterWeight.INPUT)[number % 2]
        numerics = Numerics(contract=contract, router_weight=place)
        case = HopperCase(numerics=numerics, row_scales=layout, x_scale=scale, hidden=176)
        given = buffers(case) | {"x": _uneven((case.tokens, case.hidden), case, 20)}
        made.append(OwnCase(f"quantize-{contract.value}", stream_variant(case.ops()[OpKind.QUANTIZE]), case, given))
    for contract, scale, layout in ((Contract.TE, STATIC, LINEAR), (Contract.HALF_STEP, DYNAMIC, SWIZZLED)):
        case = HopperCase(intermediate=208, numerics=Numerics(contract=contract), h_scale=scale, row_scales=layout)
        given = buffers(case)
        rows, padding = case.dims()["R"], given["row_slot"] < 0
        given |= {"h_rows": _uneven((rows, 208), case, 22), "h_pair": _uneven((rows, 416), case, 23)}
        for name in ("h_rows", "h_pair"):
            given[name][padding] = 0
        given = private_buffers(case, given)
        paired = replace(case, epilogue=Epilogue.INTERLEAVED).ops()[OpKind.DEINTERLEAVE_QUANTIZE]
        for op in (case.row_quantizer(), paired):
            name = f"{'rows' if op.kind is OpKind.QUANTIZE else 'deinterleave_quantize'}-{contract.value}"
            made.append(OwnCase(name, stream_variant(op), case, given))
    return made


def _streams() -> list[OwnCase]:
    made = []
    for place in (RouterWeight.COMBINE, RouterWeight.INPUT):
        case = HopperCase(hidden=528, w4a4=False, fused_gather=False, numerics=Numerics(router_weight=place))
        given = buffers(case) | {"x": _uneven((case.tokens, 528), case, 24)}
        made.append(OwnCase(f"gather-{place.value}", stream_variant(case.ops()[OpKind.GATHER]), case, given))
    case = HopperCase(w4a4=False, intermediate=208, epilogue=Epilogue.INTERLEAVED)
    made.append(OwnCase("deinterleave", stream_variant(case.ops()[OpKind.DEINTERLEAVE]), case, buffers(case)))
    for place in (RouterWeight.COMBINE, RouterWeight.PRE_QUANT):
        case = HopperCase(hidden=2064, numerics=Numerics(router_weight=place))
        given = buffers(case)
        given["out_rows"] = _uneven(tuple(given["out_rows"].shape), case, 25)
        made.append(OwnCase(f"combine-{place.value}", stream_variant(case.ops()[OpKind.COMBINE]), case, given))
    case = HopperCase(combine=CombineMode.ATOMIC)
    made.append(OwnCase("combine-atomic", stream_variant(case.ops()[OpKind.COMBINE]), case, buffers(case)))
    return made


def _gemm(
    name: str, kind: OpKind, ladder: str, case: HopperCase, warpgroups: int = 1, tiles: int = 1, rule: str = "bits"
) -> OwnCase:
    op: OpSpec = case.ops()[kind]
    given = private_buffers(case, buffers(case))
    return OwnCase(name, ladder_variant(op, ladder, warpgroups=warpgroups, tiles=tiles), case, given, rule)


def _gemms() -> list[OwnCase]:
    small = {"hidden": 176, "intermediate": 144, "experts": 3, "top_k": 2, "tokens": 13}
    wide = {"hidden": 80, "intermediate": 208, "experts": 2, "top_k": 2, "tokens": 75}
    one, two = OpKind.GEMM1, OpKind.GEMM2
    made = []
    epilogues = {
        Epilogue.COMPACT: ("swiglu", "swiglu_clamp", "geglu_tanh"),
        Epilogue.INTERLEAVED: ("swiglu",),
        Epilogue.FUSED_FP4: ("swiglu_oai", "situ"),
    }
    for epilogue, names in epilogues.items():
        for name in names:
            case = HopperCase(**small, epilogue=epilogue, activation=ACTIVATIONS[name], row_scales=SWIZZLED)
            made.append(_gemm(f"gemm1-w4a4-{epilogue.value}-{name}", one, "n8", case, warpgroups=2))
    plain = {"w4a4": False, "fused_gather": False}
    for name, epilogue in (("relu2", Epilogue.COMPACT), ("silu", Epilogue.COMPACT), ("swiglustep", Epilogue.COMPACT)):
        case = HopperCase(**small, **plain, epilogue=epilogue, activation=ACTIVATIONS[name], bias=True)
        made.append(_gemm(f"gemm1-w4a16-{epilogue.value}-{name}", one, "n8_16", case, warpgroups=2))
    case = HopperCase(**small, w4a4=False, epilogue=Epilogue.INTERLEAVED)
    made.append(_gemm("gemm1-w4a16-interleaved-gathers", one, "n16", case, warpgroups=2))
    case = HopperCase(**wide, **plain, activation=ACTIVATIONS["situ_bounded"])
    made.append(_gemm("gemm1-w4a16-compact-wide", one, "n8_128", case, warpgroups=4))
    case = HopperCase(**wide, epilogue=Epilogue.INTERLEAVED)
    made.append(_gemm("gemm1-w4a4-interleaved-wide", one, "n24_96", case, warpgroups=4))
    for w4a4 in (True, False):
        form = "w4a4" if w4a4 else "w4a16"
        shape = {"w4a4": w4a4, "fused_gather": w4a4}
        made.append(_gemm(f"gemm2-{form}", two, "n8", HopperCase(**small, **shape), warpgroups=2))
        made.append(_gemm(f"gemm2-{form}-wide", two, "n16_64", HopperCase(**wide, **shape), warpgroups=4))
    atomic = HopperCase(**small, **plain, combine=CombineMode.ATOMIC)
    made.append(_gemm("gemm2-w4a16-atomic", two, "n8", atomic, warpgroups=2, rule="f32:1e-5"))
    return made


def _rounding_gemms() -> list[OwnCase]:
    """Inputs whose sums are not exact, and activations by approximate functions: bounds instead of equal bits."""
    small = {"hidden": 528, "intermediate": 144, "experts": 3, "top_k": 2, "tokens": 13, "w4a4": False}
    made = []
    fast = Numerics(activation_math=ActivationMath.FAST)
    case = HopperCase(**small, fused_gather=False, numerics=fast)
    made.append(_gemm("gemm1-w4a16-fast-activation", OpKind.GEMM1, "n8", case, warpgroups=2, rule=BF16_BOUND))
    case = HopperCase(**small, fused_gather=False, epilogue=Epilogue.INTERLEAVED)
    given = buffers(case)
    padding = given["row_slot"] < 0
    given["x_rows"] = torch.randn(given["x_rows"].shape, generator=generator(case, 30)).bfloat16()
    given["x_rows"][padding] = 0
    variant = ladder_variant(case.ops()[OpKind.GEMM1], "n8", warpgroups=2)
    made.append(OwnCase("gemm1-w4a16-inexact-sums", variant, case, private_buffers(case, given), BF16_BOUND))
    return made


def own_cases() -> list[OwnCase]:
    """All cases, in the order of the layer."""
    return [*_routes(), *_quantizers(), *_streams(), *_gemms(), *_rounding_gemms()]
