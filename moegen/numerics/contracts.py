"""Quantiser contracts: how a block's amax and the second-level scale become a scale byte and sixteen codes.

Formulas in use agree on most bytes and never on all, so a spec names one. With a the block's amax, g the second-level
encode scale, p the decode scale, r6 = fl(1/6), e4 = :func:`moegen.numerics.e4m3.encode`, S the decoded byte; each
operator is one fp32 operation, nearest even, in the order written; fin(v) = FLT_MAX where v > FLT_MAX:

=======================  ==========================================  =====================  ========  ==================
contract                 scale byte                                  factor f               value     from
=======================  ==========================================  =====================  ========  ==================
te                       e4(a · (g·r6))                              fin(1 / (S · (1/g)))   x·f       g
vllm_rn                  e4(g · (a·r6))                              S≠0: fin(1/(S·(1/g)))  x·f       g
cutlass_rn               e4(a · (g·r6))                              fin(g · (1/S))         x·f       g
torchao                  e4(clamp((a/6)/p, 2^-6, 448))               fin((1/p) / S)         x·f       p
modelopt                 e4(clamp(r, 2^-9, 448)), r = a/(6·p);       S · p                  x/f       p
                         r = 1 where it is 0
compressed_tensors       e4(g · (a/6)); 0x20 (0.125) where 0         S / g                  x/f       g
compressed_tensors_bf16  e4(g · bf16(bf16(a)/6)); 0x20 where 0       S / g                  x/f       g
half_step                as te                                       as te                  x·f       g
=======================  ==========================================  =====================  ========  ==================

vllm_rn's factor is 0 where S = 0. The code of a value is its nearest E2M1, ties to even, saturating
(:func:`moegen.numerics.e2m1.encode`); half_step rounds twice (:func:`moegen.numerics.e2m1.encode_half_step`).

Sources: Transformer Engine ``core_nvfp4.cuh``; vLLM ``nvfp4_utils.cuh`` and CUTLASS
``Sm100BlockScaleFactorRowStore``, whose operation order this keeps while their reciprocals, approximate on the
device, are correctly rounded here (hence ``_rn``; no equality with the originals is claimed); torchao
``nvfp4_tensor.py``; ModelOpt ``nvfp4_tensor.py``; compressed-tensors ``calculate_qparams`` with an fp32 or a bf16
observer. fin() only acts where an original would have made infinity.

Policy, the same in every contract, always for the one block: a block with a NaN gets scale byte 0x7F and codes 0x7
(it decodes to NaN); with an infinity, scale 448 and ±6 for that element; subnormal inputs are used as they are; the
sign of zero is kept. An all-zero block gets byte 0 (torchao 0x08, modelopt 0x38, compressed_tensors 0x20) and zero
codes. The dynamic second-level scale reads finite values only, and is (1, 1) when the largest is 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.core.enums import Contract
from moegen.core.errors import TensorError
from moegen.numerics import e2m1, e4m3
from moegen.numerics.elementary import divide
from moegen.numerics.rounding import to_bf16

FLT_MAX = float.fromhex("0x1.fffffep+127")
FLT_MIN = 2.0**-126
SIXTH = float.fromhex("0x1.555556p-3")
RANGE = e2m1.MAX * e4m3.MAX
"""2688: the largest decoded magnitude before the second-level scale."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """One row of the table.

    ``scale(a, g, p)`` returns bytes; ``factor(S, g, p)`` and ``value(x, f)`` return fp32; ``code(v)`` returns codes.
    ``decode_first`` says that p is computed from the tensor's amax and g from p, else the other way round.
    """

    scale: Callable[[Tensor, Tensor, Tensor], Tensor]
    factor: Callable[[Tensor, Tensor, Tensor], Tensor]
    value: Callable[[Tensor, Tensor], Tensor]
    code: Callable[[Tensor], Tensor] = e2m1.encode
    decode_first: bool = False


def finite(x: Tensor) -> Tensor:
    """Infinity to FLT_MAX; NaN stays."""
    return torch.where(x > FLT_MAX, FLT_MAX, x)


def _bounded(x: Tensor, low: float) -> Tensor:
    raised = torch.where(x < low, low, x)
    return torch.where(raised > e4m3.MAX, e4m3.MAX, raised)


def _te_scale(a: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return e4m3.encode(a * (g * SIXTH))


def _te_factor(s: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return finite(divide(1.0, s * divide(1.0, g)))


def _vllm_scale(a: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return e4m3.encode(g * (a * SIXTH))


def _vllm_factor(s: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return torch.where(s == 0, 0.0, _te_factor(s, g, p))


def _cutlass_factor(s: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return finite(g * divide(1.0, s))


def _torchao_scale(a: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return e4m3.encode(_bounded(divide(a, 6.0) / p, e4m3.MIN_NORMAL))


def _torchao_factor(s: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return finite(divide(1.0, p) / s)


def _modelopt_scale(a: Tensor, g: Tensor, p: Tensor) -> Tensor:
    ratio = a / (p * 6.0)
    return e4m3.encode(_bounded(torch.where(ratio == 0, 1.0, ratio), e4m3.MIN_SUBNORMAL))


def _modelopt_factor(s: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return s * p


def _nonzero(code: Tensor) -> Tensor:
    return torch.where(code == 0, 0x20, code).to(torch.uint8)


def _ct_scale(a: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return _nonzero(e4m3.encode(g * divide(a, 6.0)))


def _ct_bf16_scale(a: Tensor, g: Tensor, p: Tensor) -> Tensor:
    observed = to_bf16(divide(to_bf16(a).float(), 6.0)).float()
    return _nonzero(e4m3.encode(g * observed))


def _ct_factor(s: Tensor, g: Tensor, p: Tensor) -> Tensor:
    return s / g


FORMULAS: dict[Contract, Formula] = {
    Contract.TE: Formula(scale=_te_scale, factor=_te_factor, value=torch.mul),
    Contract.VLLM_RN: Formula(scale=_vllm_scale, factor=_vllm_factor, value=torch.mul),
    Contract.CUTLASS_RN: Formula(scale=_te_scale, factor=_cutlass_factor, value=torch.mul),
    Contract.TORCHAO: Formula(scale=_torchao_scale, factor=_torchao_factor, value=torch.mul, decode_first=True),
    Contract.MODELOPT: Formula(scale=_modelopt_scale, factor=_modelopt_factor, value=torch.div, decode_first=True),
    Contract.COMPRESSED_TENSORS: Formula(scale=_ct_scale, factor=_ct_factor, value=torch.div),
    Contract.COMPRESSED_TENSORS_BF16: Formula(scale=_ct_bf16_scale, factor=_ct_factor, value=torch.div),
    Contract.HALF_STEP: Formula(scale=_te_scale, factor=_te_factor, value=torch.mul, code=e2m1.encode_half_step),
}


def global_scale_pair(amax: Tensor, contract: Contract) -> Tensor:
    """The second-level scale that maps ``amax`` (fp32, finite, >= 0, any shape) to the top of the range.

    Encode first (te, vllm_rn, cutlass_rn, half_step): g = fin(2688/A), 1 where A = 0; p = 1/g. compressed_tensors:
    g = (1/max(A, 2^-126)) · 2688, as torch divides a number by a
    tensor, 1 where that is infinite (in its bf16 form A and both steps are rounded to bf16); p = 1/g. Decode first
    (torchao, modelopt): p = max(A/2688, 2^-126), 1 where A = 0; g = 1/p.

    Returns:
        fp32 ``[*amax.shape, 2]``: (g, p).
    """
    if FORMULAS[contract].decode_first:
        scaled = divide(amax, RANGE)
        return pair_from_decode(torch.where(amax == 0, 1.0, torch.where(scaled < FLT_MIN, FLT_MIN, scaled)))
    if contract is Contract.COMPRESSED_TENSORS:
        encode = divide(1.0, amax.clamp(min=FLT_MIN)) * RANGE
        return pair_from_encode(torch.where(encode > FLT_MAX, 1.0, encode))
    if contract is Contract.COMPRESSED_TENSORS_BF16:
        inverse = to_bf16(divide(1.0, to_bf16(amax).float().clamp(min=FLT_MIN))).float()
        encode = to_bf16(inverse * RANGE).float()
        return pair_from_encode(torch.where(encode > FLT_MAX, 1.0, encode))
    return pair_from_encode(torch.where(amax == 0, 1.0, finite(divide(RANGE, amax))))


def pair_from_decode(p: Tensor) -> Tensor:
    """(1/p, p) of a decode scale (ModelOpt's ``input_scale``): fp32 ``[*p.shape, 2]``.

    Raises:
        TensorError: a scale is not finite and positive, or its reciprocal is not finite.
    """
    return _checked(torch.stack((divide(1.0, p.float()), p.float()), dim=-1))


def pair_from_encode(g: Tensor) -> Tensor:
    """(g, 1/g) of an encode scale (compressed-tensors' ``input_global_scale``): fp32 ``[*g.shape, 2]``; raises as
    :func:`pair_from_decode`."""
    return _checked(torch.stack((g.float(), divide(1.0, g.float())), dim=-1))


def _checked(pair: Tensor) -> Tensor:
    bad = ~(torch.isfinite(pair) & (pair > 0)).all(dim=-1)
    if bad.any():
        index = bad.nonzero()[0].tolist()
        g, p = pair[tuple(index)].tolist()
        raise TensorError(
            f"second-level scale (encode {g}, decode {p}) is not finite and positive",
            f"entry {index}",
            "recalibrate, or check whether the file stores amax/2688 or 2688/amax",
        )
    return pair


def scale_bytes(amax: Tensor, pair: Tensor, contract: Contract) -> Tensor:
    """Scale byte of each block. ``amax`` fp32 ``[..., blocks]``; ``pair`` fp32 ``[..., 2]``, broadcast over blocks."""
    g, p = pair[..., 0:1], pair[..., 1:2]
    return FORMULAS[contract].scale(amax, g, p)


def block_codes(blocks: Tensor, scales: Tensor, pair: Tensor, contract: Contract) -> Tensor:
    """Codes (uint8, one a byte) of fp32 ``blocks [..., blocks, 16]`` under the scale bytes ``[..., blocks]``."""
    formula = FORMULAS[contract]
    factor = formula.factor(e4m3.decode(scales), pair[..., 0:1], pair[..., 1:2])
    return formula.code(formula.value(blocks, factor.unsqueeze(-1)))
