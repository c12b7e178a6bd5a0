"""exp, tanh and the sigmoid forms, written out so that every target returns the same bits.

A C or CUDA implementation (``device/elementary.h`` of a target) repeats these steps with ``fmaf`` and IEEE division;
here ``fma`` is emulated exactly. All functions take and return fp32 tensors of one shape. NaN in gives NaN out;
nothing is flushed to zero.

Largest errors over every fp32 argument, in units in the last place of the correctly rounded result: :func:`exp` 0.90,
:func:`tanh` 1.51, and for arguments above -87 :func:`silu` 2.40 and :func:`sigmoid` 2.49. Below about -88.7 ``exp(-g)``
overflows and :func:`silu` returns -0; the true value is then smaller than 3e-37.
"""

import torch
from torch import Tensor

LOG2E = float.fromhex("0x1.715476p+0")
ROUND_MAGIC = float.fromhex("0x1.8p+23")
"""Adding this rounds a float of magnitude below 2^22 to an integer in the low bits of the sum's mantissa."""
LN2_HI = float.fromhex("0x1.62e430p-1")
LN2_LO = float.fromhex("-0x1.05c610p-29")
EXP_MAX = 89.0
"""Above, exp overflows."""
EXP_MIN = -104.0
"""Below, exp is less than half of the smallest subnormal."""
EXP_POLY = tuple(
    float.fromhex(c)
    for c in ("0x1.6a2434p-10", "0x1.1239e2p-7", "0x1.5558f2p-5", "0x1.555492p-3", "0x1.fffffcp-2", "1", "1")
)
"""Minimax polynomial of exp on [-ln2/2, ln2/2], highest power first; relative error 2^-28.2."""
TANH_SPLIT = float.fromhex("0x1.19999ap-1")
TANH_POLY = tuple(
    float.fromhex(c) for c in ("-0x1.9bba80p-8", "0x1.59568cp-6", "-0x1.b92bbap-5", "0x1.110d3cp-3", "-0x1.55554cp-2")
)
"""Minimax polynomial of (tanh(x)/x - 1)/x² in x² for x below TANH_SPLIT, highest power first; error 2^-29.9."""
_MAGIC_BITS = 0x4B400000


def fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """``a·b + c`` of fp32 values with one rounding, exactly as C's ``fmaf``.

    The product of two fp32 values is exact in fp64. The fp64 sum is rounded to odd (Boldo and Melquiond, "Emulation
    of FMA and correctly rounded sums"), after which rounding to fp32 equals one rounding of the exact value.
    """
    product = a.double() * _wide(b)
    addend = _wide(c)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(torch.int64)
    inexact = torch.isfinite(total) & (error != 0) & ((bits & 1) == 0)
    toward_error = torch.where((error > 0) == (total > 0), 1, -1)
    return torch.where(inexact, bits + toward_error, bits).view(torch.float64).float()


def _wide(value: Tensor | float) -> Tensor | float:
    return value.double() if isinstance(value, Tensor) else value


def divide(numerator: Tensor | float, denominator: Tensor | float) -> Tensor:
    """Correctly rounded fp32 quotient of two values, at least one a tensor.

    torch's own operator computes ``number / tensor`` as a reciprocal times the number, and on a GPU it does so
    for ``tensor / number`` too.
    """
    like = numerator if isinstance(numerator, Tensor) else denominator
    assert isinstance(like, Tensor)
    return torch.div(_as_tensor(numerator, like), _as_tensor(denominator, like))


def _as_tensor(value: Tensor | float, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full_like(like, value)


def horner(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Polynomial with the highest power first, one fma a step."""
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = fma(value, x, coefficient)
    return value


def exp(x: Tensor) -> Tensor:
    """e^x. The argument is reduced with n = rint(x·log2 e) and two fmas; 2^n is applied as two exact powers of two, so
    that subnormal results are rounded once and large ones overflow to infinity."""
    clamped = torch.where(x > EXP_MAX, EXP_MAX, x)
    clamped = torch.where(clamped < EXP_MIN, EXP_MIN, clamped)
    shifted = clamped * LOG2E + ROUND_MAGIC
    n = shifted.view(torch.int32) - _MAGIC_BITS
    rounded = shifted - ROUND_MAGIC
    remainder = fma(rounded, -LN2_LO, fma(rounded, -LN2_HI, clamped))
    half = n >> 1
    return horner(remainder, EXP_POLY) * _power_of_two(half) * _power_of_two(n - half)


def _power_of_two(n: Tensor) -> Tensor:
    """2^n for int32 n in [-126, 127]; any float elsewhere (only NaN arguments get there)."""
    return ((n + 127) << 23).view(torch.float32)


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return divide(1.0, 1.0 + exp(-x))


def silu(x: Tensor) -> Tensor:
    """``x / (1 + exp(-x))``: one division."""
    return x / (1.0 + exp(-x))


def scaled_silu(x: Tensor, alpha: float) -> Tensor:
    """``x / (1 + exp(-(alpha·x)))``; ``alpha`` is rounded to fp32."""
    return x / (1.0 + exp(-(x * alpha)))


def tanh(x: Tensor) -> Tensor:
    """Odd in the bits: computed on |x|, sign copied. Polynomial below TANH_SPLIT, then (1-e)/(1+e), e = exp(-2|x|)."""
    magnitude = x.abs()
    square = magnitude * magnitude
    small = fma(magnitude * square, horner(square, TANH_POLY), magnitude)
    decay = exp(magnitude * -2.0)
    large = (1.0 - decay) / (1.0 + decay)
    return torch.copysign(torch.where(magnitude < TANH_SPLIT, small, large), x)
