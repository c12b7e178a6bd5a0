"""Number formats and exact rounding between them, vectorised.

A format is (mantissa bits, smallest exponent, largest finite value, code layout). Rounding works on f64 values, which
hold every f32, f16, bf16, FP8, FP6 and FP4 value exactly, by scaling with powers of two: each value is rounded once.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from moegen.ptx.errors import PtxError

U4, U8 = np.dtype("u4"), np.dtype("u8")


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
        bits: width of a code.
        mantissa: explicit mantissa bits.
        bias: exponent bias.
        largest: largest finite value.
        infinity: whether it has infinities.
        nan: code of the canonical NaN, or None if it has no NaN.
    """

    name: str
    bits: int
    mantissa: int
    bias: int
    largest: float
    infinity: bool
    nan: int | None

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias


FORMATS = {
    f.name: f
    for f in (
        Format("f32", 32, 23, 127, float(np.finfo(np.float32).max), True, 0x7FFFFFFF),
        Format("tf32", 32, 10, 127, float((2 - 2.0**-10) * 2.0**127), True, 0x7FFFE000),
        Format("f16", 16, 10, 15, 65504.0, True, 0x7FFF),
        Format("bf16", 16, 7, 127, float((2 - 2.0**-7) * 2.0**127), True, 0x7FFF),
        Format("e4m3", 8, 3, 7, 448.0, False, 0x7F),
        Format("e5m2", 8, 2, 15, 57344.0, True, 0x7F),
        Format("e2m3", 6, 3, 1, 7.5, False, None),
        Format("e3m2", 6, 2, 3, 28.0, False, None),
        Format("e2m1", 4, 1, 1, 6.0, False, None),
    )
}
_ROUND = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda q: np.trunc(q + np.copysign(0.5, q)),
}


def _quantise(x: Any, fmt: Format, mode: str) -> Any:
    """Rounds f64 values to the format's grid, without an upper limit."""
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    scale = np.maximum(exponent - 1, fmt.min_exponent) - fmt.mantissa
    q = _ROUND[mode](np.ldexp(x, -scale))
    return np.ldexp(q, scale)


def encode(values: Any, fmt: Format) -> Any:
    """Codes of f64 values that lie on the format's grid (finite or infinite), as u32."""
    magnitude = np.abs(values)
    mantissa, exponent = np.frexp(np.where(np.isfinite(magnitude), magnitude, 1.0))
    normal = (exponent - 1 >= fmt.min_exponent) & (magnitude > 0)  # frexp gives zero the exponent 0
    scaled = np.ldexp(mantissa, np.where(normal, fmt.mantissa + 1, exponent - fmt.min_exponent + fmt.mantissa))
    field = np.where(normal, exponent - 1 + fmt.bias, 0)
    code = np.where(
        normal, (field << fmt.mantissa) + (scaled.astype(np.int64) - (1 << fmt.mantissa)), scaled.astype(np.int64)
    )
    if fmt.name == "tf32":
        code = code << 13
    if fmt.infinity:
        top = {"f32": 0x7F800000, "tf32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80, "e5m2": 0x7C}[fmt.name]
        code = np.where(np.isinf(magnitude), top, code)
    return (code | (np.signbit(values).astype(np.int64) << (fmt.bits - 1))).astype(U4)


_SIGN, _MAGNITUDE = np.uint64(1 << 63), np.uint64((1 << 63) - 1)


def _nearest(x: Any, name: str) -> Any:
    """Codes of f64 values rounded to nearest in f16 or bf16, by integer arithmetic; None where that does not do: other
    formats, and values that are not finite, nearly overflow or are subnormal.
    """
    if name == "f16":
        low, high, drop, field = 1009, 1038, 42, 1008 << 10
    elif name == "bf16":
        low, high, drop, field = 897, 1150, 45, 896 << 7
    else:
        return None
    bits = x.view(U8)
    magnitude = bits & _MAGNITUDE
    exponent = magnitude >> U8.type(52)
    zero = magnitude == 0
    if not ((exponent >= low) & (exponent < high) | zero).all():
        return None
    shift = U8.type(drop)
    half = (magnitude >> shift) & U8.type(1)
    rounded = ((magnitude + half + U8.type((1 << drop - 1) - 1)) >> shift) - U8.type(field)
    return (np.where(zero, U8.type(0), rounded) | ((bits & _SIGN) >> U8.type(48))).astype(U4)


def round_f64(x: Any, name: str, mode: str = "rn", satfinite: bool = False, relu: bool = False) -> Any:
    """Rounds f64 values to a format and gives codes as u32 (one per element).

    Args:
        x: f64 array.
        name: key of ``FORMATS``.
        mode: ``rn`` nearest even, ``rna`` nearest away, ``rz``, ``rm``, ``rp``.
        satfinite: values beyond the largest finite one, infinities included, become it; NaN stays NaN
            (formats without NaN: +largest).
        relu: negative values become +0, NaN the canonical NaN.
    """
    if mode == "rn" and not relu and not satfinite:
        quick = _nearest(x, name)
        if quick is not None:
            return quick
    fmt = FORMATS[name]
    nan = np.isnan(x)
    safe = np.where(nan, 0.0, x)
    if relu:
        safe = np.where(safe > 0, safe, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        y = _quantise(safe, fmt, mode)
    y = np.where(np.isinf(safe), safe, y)
    over = np.abs(y) > fmt.largest
    if over.any():
        limit = np.copysign(fmt.largest, y)
        if satfinite or not fmt.infinity:
            y = np.where(over, limit, y)
        else:
            toward_zero = (mode == "rz") | ((mode == "rm") & (y > 0)) | ((mode == "rp") & (y < 0))
            y = np.where(over, np.where(toward_zero & np.isfinite(safe), limit, np.copysign(np.inf, y)), y)
    code = encode(y, fmt)
    if nan.any():
        if fmt.nan is None:
            code = np.where(nan, encode(np.array(fmt.largest), fmt), code)
        else:
            code = np.where(nan, U4.type(fmt.nan), code)
    return code


@cache
def table(name: str) -> Any:
    """Value of every code of an 8-bit or narrower format (also ``ue8m0``, ``ue4m3``), as read-only f64."""
    if name == "ue8m0":
        values = np.ldexp(1.0, np.arange(256) - 127)
        values[255] = np.nan
    elif name == "ue4m3":
        # The sign bit of a scale factor is ignored.
        half = table("e4m3")[:128]
        values = np.concatenate([half, half])
    else:
        fmt = FORMATS[name]
        if fmt.bits > 8:
            raise PtxError(f"no table for {name}")
        codes = np.arange(1 << fmt.bits)
        magnitude = codes & ((1 << (fmt.bits - 1)) - 1)
        exponent, fraction = magnitude >> fmt.mantissa, magnitude & ((1 << fmt.mantissa) - 1)
        values = np.where(
            exponent > 0,
            np.ldexp(1.0 + fraction / (1 << fmt.mantissa), exponent - fmt.bias),
            np.ldexp(fraction / (1 << fmt.mantissa), fmt.min_exponent),
        )
        if name == "e4m3":
            values = np.where(magnitude == 0x7F, np.nan, values)
        if name == "e5m2":
            values = np.where(magnitude == 0x7C, np.inf, np.where(magnitude > 0x7C, np.nan, values))
        values = np.where(codes >> (fmt.bits - 1), -values, values)
    values = np.ascontiguousarray(values, np.float64)
    values.flags.writeable = False
    return values


@cache
def table32(name: str) -> Any:
    """``table`` as read-only f32 (every value is exact)."""
    with np.errstate(over="ignore"):
        values = table(name).astype(np.float32)
    values.flags.writeable = False
    return values


#: More than any sum could keep exactly.
_WIDE = 1 << 64


def spread(codes: Any, name: str) -> int:
    """The largest of some scale factors (``ue8m0``, ``ue4m3`` codes) in units of which all are multiples; a number
    beyond every limit where that does not do: NaN, or factors far from 1.
    """
    low, high = int(codes.min()), int(codes.max())
    if name == "ue8m0":
        return 1 << (high - low) if low >= 100 and high <= 154 else _WIDE
    if high >= 0x7F:
        return _WIDE
    fraction = (high & 7) + (8 if high >> 3 else 0)
    return fraction << (max(high >> 3, 1) - max(low >> 3, 1))


def bf16_to_f32(bits: Any) -> Any:
    """bf16 codes to f32 values."""
    return (bits.astype(U4) << U4.type(16)).view(np.float32)


def f32_to_bf16(x: Any) -> Any:
    """f32 values to bf16 codes, nearest even, NaN canonical."""
    bits = x.view(U4)
    rounded = (bits >> U4.type(16)) & U4.type(1)
    rounded += bits
    rounded += U4.type(0x7FFF)
    rounded >>= U4.type(16)
    codes = rounded.astype(np.uint16)
    bad = x != x
    return np.where(bad, np.uint16(0x7FFF), codes) if bad.any() else codes


def decode(bits: Any, name: str) -> Any:
    """Codes of a format to f64 values."""
    if name == "f32" or name == "tf32":
        return bits.astype(U4).view(np.float32).astype(np.float64)
    if name == "f16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    if name == "bf16":
        return bf16_to_f32(bits.astype(np.uint16)).astype(np.float64)
    return table(name)[bits]
