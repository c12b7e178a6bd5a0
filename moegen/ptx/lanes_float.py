"""Floating-point arithmetic on lanes that NumPy lacks or defines differently: exact fma, directed rounding, NaN rules.

Functions take and give register arrays (unsigned integers of the register's width) of any shape; those whose name ends
in ``_`` take values.
"""

from typing import Any

import numpy as np

from moegen.ptx.formats import round_f64

__all__ = [
    "add_dir",
    "approx",
    "copysign",
    "div_approx",
    "div_dir",
    "fma4",
    "fma8",
    "fma_dir",
    "fmax_",
    "fmin_",
    "ftz4",
    "mul_dir",
    "nan2",
    "nan4",
    "nan8",
    "sat4",
    "sat8",
    "sqrt_dir",
    "testp",
    "xorsign",
]  # fmt: skip

U2, U4, U8 = (np.dtype(f"u{n}") for n in (2, 4, 8))
F2, F4, F8 = np.dtype("f2"), np.dtype("f4"), np.dtype("f8")
NAN4 = np.uint32(0x7FFFFFFF)
NAN2 = np.uint16(0x7FFF)
NAN8 = np.uint64(0x7FF8000000000000)


def any_of(mask: Any) -> bool:
    """Whether a boolean array has a true element; for the few elements at hand faster than NumPy's reduction."""
    return b"\x01" in mask.tobytes()


def nan4(x: Any) -> Any:
    """f32 to bits; every NaN becomes the canonical one."""
    bad = x != x
    bits = x.view(U4)
    return np.where(bad, NAN4, bits) if any_of(bad) else bits


def nan8(x: Any) -> Any:
    """f64 to bits; NaNs that the host made become the default one of the device."""
    bad = x != x
    bits = x.view(U8)
    return np.where(bad, NAN8, bits) if any_of(bad) else bits


def nan2(x: Any) -> Any:
    """f16 to bits; every NaN becomes the canonical one."""
    bad = x != x
    bits = x.view(U2)
    return np.where(bad, NAN2, bits) if any_of(bad) else bits


def ftz4(bits: Any) -> Any:
    """Replaces f32 subnormals by zero of the same sign."""
    tiny = (bits & np.uint32(0x7F800000)) == 0
    return np.where(tiny, bits & np.uint32(0x80000000), bits)


def sat4(bits: Any) -> Any:
    """Clamps f32 to [0, 1]; NaN gives 0, -0 gives +0."""
    x = bits.view(F4)
    return np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0)).astype(F4).view(U4)


def sat8(bits: Any) -> Any:
    """Clamps f64 to [0, 1]; NaN gives 0."""
    x = bits.view(F8)
    return np.where(x > 0, np.minimum(x, 1.0), 0.0).view(U8)


# -- exact sums and products -------------------------------------------------------------------------------------


def _odd_sum(p: Any, c: Any) -> Any:
    """p + c in f64 rounded to odd: a later rounding to a format of <= 51 bits is then a single rounding."""
    s = p + c
    t = s - p
    error = (p - (s - t)) + (c - t)
    inexact = (error != 0) & np.isfinite(s)
    bits = s.view(U8)
    even = inexact & ((bits & np.uint64(1)) == 0)
    if not any_of(even):
        return s
    # Towards the error's sign: away from zero if it has the sum's sign, else the neighbour nearer to zero is the odd
    # one.
    away = (error > 0) == (s > 0)
    moved = np.where(away, bits + np.uint64(1), bits - np.uint64(1))
    return np.where(even, moved, bits).view(F8)


def fma4(a: Any, b: Any, c: Any) -> Any:
    """a*b+c of f32 registers with one rounding to nearest even."""
    p = a.view(F4).astype(F8) * b.view(F4)
    c8 = c.view(F4).astype(F8)
    s = p + c8
    r = s.astype(F4)
    # Double rounding can only matter when the f64 sum sits on a rounding point of f32, or the result is subnormal.
    low = (s.view(U8) & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
    small = (r.view(U4) & np.uint32(0x7F800000)) == 0
    if any_of(low | small):
        r = _odd_sum(p, c8).astype(F4)
    return nan4(r)


def fma8(a: Any, b: Any, c: Any) -> Any:
    """a*b+c of f64 registers, exactly rounded (lane by lane: rare)."""
    from fractions import Fraction

    def one(x: float, y: float, z: float) -> float:
        plain = x * y + z
        if not all(np.isfinite([x, y, z])):
            return plain
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact == 0:
            return plain
        try:
            return float(exact)
        except OverflowError:
            return np.inf if exact > 0 else -np.inf

    return nan8(np.vectorize(one, otypes=[F8])(a.view(F8), b.view(F8), c.view(F8)))


def add_dir(a: Any, b: Any, mode: str) -> Any:
    """f32 sum in a directed rounding mode (``rz``, ``rm``, ``rp``)."""
    exact = _odd_sum(a.view(F4).astype(F8), b.view(F4).astype(F8))
    out = round_f64(exact, "f32", mode)
    if mode == "rm":  # an exact zero of two nonzero operands is -0 when rounding down
        zero = (exact == 0) & (np.signbit(a.view(F4)) | np.signbit(b.view(F4)))
        out = np.where(zero, np.uint32(0x80000000), out)
    return out


def mul_dir(a: Any, b: Any, mode: str) -> Any:
    """f32 product in a directed rounding mode."""
    return round_f64(a.view(F4).astype(F8) * b.view(F4), "f32", mode)


def fma_dir(a: Any, b: Any, c: Any, mode: str) -> Any:
    """f32 fused multiply-add in a directed rounding mode."""
    p, c8 = a.view(F4).astype(F8) * b.view(F4), c.view(F4).astype(F8)
    out = round_f64(_odd_sum(p, c8), "f32", mode)
    if mode == "rm":
        zero = (p + c8 == 0) & (np.signbit(p) | np.signbit(c8))
        out = np.where(zero, np.uint32(0x80000000), out)
    return out


def div_dir(a: Any, b: Any, mode: str) -> Any:
    """f32 quotient in a directed rounding mode."""
    x, y = a.view(F4).astype(F8), b.view(F4).astype(F8)
    q = x / y
    # The f64 quotient is within half an ulp: the sign of the remainder says on which side of it the true one lies.
    product = q * y
    error = _remainder_sign(q, y, x, product)
    bits = q.view(U8)
    even = (error != 0) & np.isfinite(q) & (q != 0) & ((bits & np.uint64(1)) == 0)
    moved = np.where((error > 0) == (q > 0), bits + np.uint64(1), bits - np.uint64(1))
    return round_f64(np.where(even, moved, bits).view(F8), "f32", mode)


def sqrt_dir(a: Any, mode: str) -> Any:
    """f32 square root in a directed rounding mode."""
    x = a.view(F4).astype(F8)
    q = np.sqrt(x)
    error = _remainder_sign(q, q, x, q * q)
    bits = q.view(U8)
    even = (error != 0) & np.isfinite(q) & (q != 0) & ((bits & np.uint64(1)) == 0)
    moved = np.where(error > 0, bits + np.uint64(1), bits - np.uint64(1))
    return round_f64(np.where(even, moved, bits).view(F8), "f32", mode)


def _split(x: Any) -> tuple[Any, Any]:
    high = (x.view(U8) & np.uint64(0xFFFFFFFFF8000000)).view(F8)
    return high, x - high


def _remainder_sign(q: Any, y: Any, x: Any, product: Any) -> Any:
    """Sign of (x - q*y) / y: whether the true quotient is above (+1) or below (-1) q."""
    qh, ql = _split(np.ascontiguousarray(q))
    yh, yl = _split(np.ascontiguousarray(y))
    low = ((qh * yh - product) + qh * yl + ql * yh) + ql * yl
    rest = (x - product) - low
    sign = np.sign(rest) * np.where(y < 0, -1.0, 1.0)
    return np.where(np.isfinite(sign), sign, 0.0)


# -- approximate functions ---------------------------------------------------------------------------------------

_APPROX = {
    "rcp": lambda x: 1.0 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def approx(name: str, a: Any) -> Any:
    """A function of f32 that the hardware approximates; here the correctly rounded value."""
    x = a.view(F4).astype(F8)
    y = _APPROX[name](x)
    if name == "rsqrt":
        y = np.where(x == 0, np.copysign(np.inf, x), y)
    return nan4(y.astype(F4))


def div_approx(a: Any, b: Any) -> Any:
    """div.approx of f32 bits: the rounded quotient, but 0 (NaN for an infinite dividend) where the divisor exceeds
    2^126, as PTX documents: the reciprocal is flushed there.
    """
    x, y = a.view(F4), b.view(F4)
    large = (np.abs(y) > F4.type(2.0**126)) & np.isfinite(y)
    return nan4(np.where(large, x * np.copysign(F4.type(0), y), x / y))


# -- minimum, maximum, sign --------------------------------------------------------------------------------------


def fmin_(a: Any, b: Any, nan: bool) -> Any:
    """Minimum of two float arrays: -0 < +0; a NaN loses, or wins with ``nan``."""
    r = np.minimum(a, b) if nan else np.fmin(a, b)
    zero = r == 0
    return np.where(zero & (np.signbit(a) | np.signbit(b)) & (a == b), -np.abs(r), r) if zero.any() else r


def fmax_(a: Any, b: Any, nan: bool) -> Any:
    """Maximum of two float arrays: +0 > -0; a NaN loses, or wins with ``nan``."""
    r = np.maximum(a, b) if nan else np.fmax(a, b)
    zero = r == 0
    both = np.signbit(a) & np.signbit(b)
    return np.where(zero & (a == b), np.where(both, -np.abs(r), np.abs(r)), r) if zero.any() else r


def xorsign(r: Any, a: Any, b: Any) -> Any:
    """|r| with the exclusive-or of the signs of a and b (f32 bits)."""
    return (r & np.uint32(0x7FFFFFFF)) | ((a ^ b) & np.uint32(0x80000000))


def copysign(a: Any, b: Any, top: int) -> Any:
    """Sign bit of a on the magnitude of b."""
    sign = b.dtype.type(1 << top)
    return (a & sign) | (b & ~sign)


def testp(bits: Any, kind: str, width: int) -> Any:
    """Class test of f32 or f64 bits."""
    exponent, fraction = (0xFF, 23) if width == 32 else (0x7FF, 52)
    one = bits.dtype.type
    e = (bits >> one(fraction)) & one(exponent)
    m = bits & one((1 << fraction) - 1)
    return {
        "finite": e != exponent,
        "infinite": (e == exponent) & (m == 0),
        "number": (e != exponent) | (m == 0),
        "notanumber": (e == exponent) & (m != 0),
        "normal": (e != exponent) & ((e != 0) | (m == 0)),  # PTX counts zeros as normal
        "subnormal": (e == 0) & (m != 0),
    }[kind]
