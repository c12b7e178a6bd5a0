"""Quantiser contracts: bit for bit ``moegen.numerics.contracts``, which holds the table of formulas and the NaN policy.

A contract is a class of static functions over fp32 values. Each operator is one IEEE operation: the compiler keeps
``mul``, ``rcp.rn`` and ``div.rn`` as written, and no product here feeds a sum that it could contract with.

    ``scale(amax, g, p)``   what is cast to the E4M3 scale byte
    ``factor(s, g, p)``     what values are multiplied with (or divided by), from the decoded byte ``s``
    ``apply(values, f)``    the scaled values of a block
    ``code(values)``        what is cast to E2M1
    ``pair(amax)``          (g, p) of a dynamic second-level scale
    ``FLOOR_BYTE``          byte that stands in for a zero scale byte, 0 for none
"""

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

FLT_MAX = float.fromhex("0x1.fffffep+127")
FLT_MIN = float.fromhex("0x1p-126")
SIXTH = float.fromhex("0x1.555556p-3")
RANGE = 2688.0
LARGEST_SCALE = 448.0


def select(condition, chosen, other):
    """``chosen`` where ``condition`` holds, else ``other``; both fp32, both computed."""
    return Float32(cutlass.select_(condition, Float32(chosen), Float32(other)))


def finite(x):
    """Infinity to FLT_MAX; NaN stays."""
    return cute.arch.fmin(x, Float32(FLT_MAX), nan=True)


def bounded(x, low):
    """Into [low, 448]; NaN stays."""
    return cute.arch.fmin(cute.arch.fmax(x, Float32(low), nan=True), Float32(LARGEST_SCALE), nan=True)


def round_bf16(x):
    """To the nearest bf16, ties to even, and back."""
    return Float32(BFloat16(x))


def pair_from_encode(g):
    """(g, 1/g)."""
    return g, 1.0 / g


def encode_first_pair(amax):
    """g = fin(2688 / amax), 1 for an all-zero tensor."""
    return pair_from_encode(select(amax == 0.0, 1.0, finite(RANGE / amax)))


def decode_first_pair(amax):
    """p = max(amax / 2688, 2^-126), 1 for an all-zero tensor."""
    p = select(amax == 0.0, 1.0, cute.arch.fmax(amax / RANGE, Float32(FLT_MIN)))
    return 1.0 / p, p


class Te:
    """Transformer Engine."""

    FLOOR_BYTE = 0

    @staticmethod
    def scale(amax, g, p):
        return amax * (g * SIXTH)

    @staticmethod
    def factor(s, g, p):
        return finite(1.0 / (s * (1.0 / g)))

    @staticmethod
    def apply(values, f):
        return values * f

    @staticmethod
    def code(values):
        return values

    @staticmethod
    def pair(amax):
        return encode_first_pair(amax)


class VllmRn(Te):
    """vLLM, with correctly rounded reciprocals."""

    @staticmethod
    def scale(amax, g, p):
        return g * (amax * SIXTH)

    @staticmethod
    def factor(s, g, p):
        return select(s == 0.0, 0.0, Te.factor(s, g, p))


class CutlassRn(Te):
    """CUTLASS, with correctly rounded reciprocals."""

    @staticmethod
    def factor(s, g, p):
        return finite(g * (1.0 / s))


class Torchao(Te):
    """torchao."""

    @staticmethod
    def scale(amax, g, p):
        return bounded((amax / 6.0) / p, float.fromhex("0x1p-6"))

    @staticmethod
    def factor(s, g, p):
        return finite((1.0 / p) / s)

    @staticmethod
    def pair(amax):
        return decode_first_pair(amax)


class Modelopt(Te):
    """ModelOpt."""

    @staticmethod
    def scale(amax, g, p):
        ratio = amax / (p * 6.0)
        return bounded(select(ratio == 0.0, 1.0, ratio), float.fromhex("0x1p-9"))

    @staticmethod
    def factor(s, g, p):
        return s * p

    @staticmethod
    def apply(values, f):
        return values / f

    @staticmethod
    def pair(amax):
        return decode_first_pair(amax)


class CompressedTensors(Te):
    """compressed-tensors with an fp32 observer."""

    FLOOR_BYTE = 0x20

    @staticmethod
    def scale(amax, g, p):
        return g * (amax / 6.0)

    @staticmethod
    def factor(s, g, p):
        return s / g

    @staticmethod
    def apply(values, f):
        return values / f

    @staticmethod
    def pair(amax):
        g = (1.0 / cute.arch.fmax(amax, Float32(FLT_MIN))) * RANGE
        return pair_from_encode(select(g > FLT_MAX, 1.0, g))


class CompressedTensorsBf16(CompressedTensors):
    """compressed-tensors with a bf16 observer."""

    @staticmethod
    def scale(amax, g, p):
        return g * round_bf16(round_bf16(amax) / 6.0)

    @staticmethod
    def pair(amax):
        inverse = round_bf16(1.0 / cute.arch.fmax(round_bf16(amax), Float32(FLT_MIN)))
        g = round_bf16(inverse * RANGE)
        return pair_from_encode(select(g > FLT_MAX, 1.0, g))


class HalfStep(Te):
    """Scales as ``Te``; values are rounded to the nearest half before they become codes."""

    @staticmethod
    def code(values):
        # Adding and taking away 1.5 · 2^23 rounds to an integer, ties to even. Doubling is exact, so contraction is
        # harmless.
        magnitude = cute.make_rmem_tensor(values.shape, Float32)
        magnitude.store(abs(values))
        for i in range(cute.size(magnitude)):
            magnitude[i] = cute.arch.fmin(magnitude[i], Float32(6.0), nan=True)
        shift = float.fromhex("0x1.8p+23")
        halves = ((magnitude.load() * 2.0 + shift) - shift) * 0.5
        sign = values.bitcast(Int32) & Int32(-0x80000000)
        return (halves.bitcast(Int32) | sign).bitcast(Float32)
