"""Arithmetic on lanes that NumPy lacks or defines differently: exact fma, directed rounding, NaN rules, bit tricks.

Functions take and give register arrays (unsigned integers of the register's width) unless the name ends in ``f``.
"""

from typing import Any

import numpy as np

from moegen.ptx.formats import round_f64

__all__ = [
    "add_dir",
    "approx",
    "bfe",
    "bfi",
    "bfind",
    "bmsk",
    "brev",
    "cat",
    "clz",
    "copysign",
    "div_approx",
    "div_dir",
    "dp4a",
    "fma4",
    "fma8",
    "fma_dir",
    "fmax_",
    "fmin_",
    "fns",
    "ftz4",
    "funnel",
    "idiv",
    "irem",
    "lop3",
    "mul_dir",
    "mulhi4",
    "mulhi8",
    "nan2",
    "nan4",
    "nan8",
    "popc",
    "prmt",
    "sad",
    "sat4",
    "sat8",
    "shl",
    "shr",
    "sqrt_dir",
    "testp",
    "xorsign",
]  # fmt: skip

U1, U2, U4, U8 = (np.dtype(f"u{n}") for n in (1, 2, 4, 8))
I4, I8 = np.dtype("i4"), np.dtype("i8")
F2, F4, F8 = np.dtype("f2"), np.dtype("f4"), np.dtype("f8")
NAN4 = np.uint32(0x7FFFFFFF)
NAN2 = np.uint16(0x7FFF)
NAN8 = np.uint64(0x7FF8000000000000)
_NONE = bytes(32)


def nan4(x: Any) -> Any:
    """f32 to bits; every NaN becomes the canonical one."""
    bad = x != x
    bits = x.view(U4)
    return bits if bad.tobytes() == _NONE else np.where(bad, NAN4, bits)


def nan8(x: Any) -> Any:
    """f64 to bits; NaNs that the host made become the default one of the device."""
    bad = x != x
    bits = x.view(U8)
    return bits if bad.tobytes() == _NONE else np.where(bad, NAN8, bits)


def nan2(x: Any) -> Any:
    """f16 to bits; every NaN becomes the canonical one."""
    bad = x != x
    bits = x.view(U2)
    return bits if bad.tobytes() == _NONE else np.where(bad, NAN2, bits)


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
    if not even.any():
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
    if (low | small).tobytes() != _NONE:
        r = _odd_sum(p, c8).astype(F4)
    return nan4(r)


def fma8(a: Any, b: Any, c: Any) -> Any:
    """a*b+c of f64 registers, exactly rounded (lane by lane: rare)."""
    from fractions import Fraction

    out = np.empty(32, F8)
    for lane, (x, y, z) in enumerate(zip(a.view(F8).tolist(), b.view(F8).tolist(), c.view(F8).tolist(), strict=True)):
        plain = x * y + z
        if not all(np.isfinite([x, y, z])):
            out[lane] = plain
            continue
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact == 0:
            out[lane] = plain
            continue
        try:
            out[lane] = float(exact)
        except OverflowError:
            out[lane] = np.inf if exact > 0 else -np.inf
    return nan8(out)


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


# -- integers ----------------------------------------------------------------------------------------------------


def shl(a: Any, b: Any) -> Any:
    """Left shift; amounts beyond the width give 0."""
    return np.where(b < a.dtype.itemsize * 8, a << (b & np.uint32(63)).astype(a.dtype), a.dtype.type(0))


def shr(a: Any, b: Any) -> Any:
    """Right shift (arithmetic for signed arrays); amounts beyond the width shift everything out."""
    bits = a.dtype.itemsize * 8
    return a >> np.minimum(b, np.uint32(bits - 1)).astype(a.dtype) if a.dtype.kind == "i" else np.where(
        b < bits, a >> (b & np.uint32(63)).astype(a.dtype), a.dtype.type(0)
    )  # fmt: skip


def mulhi4(a: Any, b: Any) -> Any:
    """High 32 bits of a 32x32 product of equal signedness."""
    wide = np.dtype(a.dtype.kind + "8")
    return ((a.astype(wide) * b.astype(wide)) >> wide.type(32)).astype(a.dtype).view(U4)


def mulhi8(a: Any, b: Any) -> Any:
    """High 64 bits of a 64x64 product of equal signedness."""
    au, bu = a.view(U8), b.view(U8)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    al, ah, bl, bh = au & mask, au >> half, bu & mask, bu >> half
    low = al * bl
    mid = ah * bl + (low >> half)
    mid2 = al * bh + (mid & mask)
    high = ah * bh + (mid >> half) + (mid2 >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, bu, np.uint64(0)) - np.where(b < 0, au, np.uint64(0))
    return high


def idiv(a: Any, b: Any) -> Any:
    """Integer quotient towards zero; a divisor of 0 gives all ones, as the device's emulation does."""
    zero = b == 0
    safe = np.where(zero, a.dtype.type(1), b)
    if a.dtype.kind == "u":
        q = a // safe
    else:
        q = a // safe
        q = q + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    q = np.where(zero, a.dtype.type(-1) if a.dtype.kind == "i" else ~a.dtype.type(0), q)
    return q.view(np.dtype(f"u{a.dtype.itemsize}"))


def irem(a: Any, b: Any) -> Any:
    """Remainder with the sign of the dividend; a divisor of 0 gives all ones, as an H200 does for every width."""
    zero = b == 0
    safe = np.where(zero, a.dtype.type(1), b)
    r = (a - idiv(a, safe).view(a.dtype) * safe).view(np.dtype(f"u{a.dtype.itemsize}"))
    return np.where(zero, ~r.dtype.type(0), r)


def popc(a: Any) -> Any:
    """Number of set bits, as u32."""
    return np.bitwise_count(a).astype(U4)


def clz(a: Any) -> Any:
    """Leading zeros, as u32."""
    bits = a.dtype.itemsize * 8
    value = a.astype(U8)
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            value = value | (value >> np.uint64(shift))
    return (np.uint32(bits) - np.bitwise_count(value)).astype(U4)


def brev(a: Any) -> Any:
    """Bits in reverse order."""
    n = a.dtype.itemsize
    unpacked = np.unpackbits(np.ascontiguousarray(a).view(U1).reshape(-1, n), axis=1, bitorder="little")
    return np.packbits(unpacked[:, ::-1], axis=1, bitorder="little").view(a.dtype).reshape(-1)


def bfind(a: Any, shiftamt: bool) -> Any:
    """Position of the highest bit that differs from the sign (signed) or is set; all ones if none."""
    unsigned = a.view(np.dtype(f"u{a.dtype.itemsize}"))
    value = np.where(a < 0, ~unsigned, unsigned) if a.dtype.kind == "i" else unsigned
    bits = a.dtype.itemsize * 8
    zeros = clz(value)
    found = zeros if shiftamt else np.uint32(bits - 1) - zeros
    return np.where(value == 0, np.uint32(0xFFFFFFFF), found).astype(U4)


def bfe(a: Any, b: Any, c: Any) -> Any:
    """Bit field of ``a``: start b & 255, length c & 255; signed arrays sign-extend."""
    bits = a.dtype.itemsize * 8
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    start, length = (b & np.uint32(255)).astype(I8), (c & np.uint32(255)).astype(I8)
    wide = a.astype(I8) if a.dtype.kind == "i" else None
    value = a.view(unsigned).astype(U8)
    top = np.minimum(start + length, bits)
    count = np.maximum(top - start, 0)
    field = np.where(start < bits, value >> np.minimum(start, 63).astype(U8), np.uint64(0))
    mask = np.where(count >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(count, 63).astype(U8)) - np.uint64(1))
    field = field & mask
    if wide is not None:
        # The sign is the field's top bit, or the operand's when the field reaches beyond it.
        at = np.minimum(start + length - 1, bits - 1)
        sign = ((value >> np.clip(at, 0, 63).astype(U8)) & np.uint64(1)).astype(bool) & (length > 0)
        field = np.where(sign, field | ~mask, field)
    return field.astype(unsigned)


def bfi(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Inserts the low bits of a into b at position c & 255 with length d & 255."""
    bits = a.dtype.itemsize * 8
    start, length = (c & np.uint32(255)).astype(I8), (d & np.uint32(255)).astype(I8)
    mask = np.where(length >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(length, 63).astype(U8)) - np.uint64(1))
    placed = np.where(start < bits, mask << np.minimum(start, 63).astype(U8), np.uint64(0))
    value = np.where(start < bits, a.astype(U8) << np.minimum(start, 63).astype(U8), np.uint64(0))
    return ((b.astype(U8) & ~placed) | (value & placed)).astype(a.dtype)


def bmsk(a: Any, b: Any, clamp: bool) -> Any:
    """Mask of b bits from position a; amounts beyond 32 clamp or wrap."""
    if not clamp:
        a, b = a & np.uint32(31), b & np.uint32(31)
    start, length = a.astype(U8), np.minimum(b, np.uint32(32)).astype(U8)
    mask = (np.uint64(1) << length) - np.uint64(1)
    return np.where(start < 32, mask << np.minimum(start, np.uint64(32)), np.uint64(0)).astype(U4)


def fns(mask: Any, base: Any, offset: Any) -> Any:
    """Position of the offset-th set bit of mask, from position base; all ones if there is none."""
    out = np.full(32, 0xFFFFFFFF, U4)
    for lane, (m, b, n) in enumerate(zip(mask.tolist(), base.tolist(), offset.view(I4).tolist(), strict=True)):
        step, left = (1, n) if n > 0 else (-1, -n)
        if n == 0:
            if b < 32 and m >> b & 1:
                out[lane] = b
            continue
        while 0 <= b < 32:
            if m >> b & 1:
                left -= 1
                if left == 0:
                    out[lane] = b
                    break
            b += step
    return out


def funnel(low: Any, high: Any, amount: Any, left: bool, clamp: bool) -> Any:
    """Funnel shift of the 64-bit value high:low."""
    amount = np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)
    value = (high.astype(U8) << np.uint64(32)) | low
    wide = amount.astype(U8)
    return ((value << wide) >> np.uint64(32) if left else value >> wide).astype(U4)


def lop3(a: Any, b: Any, c: Any, table: int) -> Any:
    """Three-input logic by truth table (a has index weight 4)."""
    out = np.zeros_like(a)
    for index in range(8):
        if table >> index & 1:
            term = (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
            out = out | term
    return out


def prmt(a: Any, b: Any, selector: Any, mode: str) -> Any:
    """Byte permute of the eight bytes b:a."""
    pool = np.concatenate([a.view(U1).reshape(-1, 4), b.view(U1).reshape(-1, 4)], axis=1)
    out = np.empty((a.size, 4), U1)
    rows = np.arange(a.size)
    base = (selector & np.uint32(3)).astype(I8)
    for k in range(4):
        if mode == "":
            nibble = (selector >> np.uint32(4 * k)) & np.uint32(15)
            byte = pool[rows, (nibble & np.uint32(7)).astype(I8)]
            out[:, k] = np.where(nibble & np.uint32(8), np.where(byte & 0x80, 255, 0), byte)
        elif mode == "f4e":
            out[:, k] = pool[rows, (base + k) % 8]
        elif mode == "b4e":
            out[:, k] = pool[rows, (base - k) % 8]
        elif mode == "rc8":
            out[:, k] = pool[rows, base]
        elif mode == "ecl":
            out[:, k] = pool[rows, np.maximum(base, k)]
        elif mode == "ecr":
            out[:, k] = pool[rows, np.minimum(base, k)]
        else:  # rc16
            out[:, k] = pool[rows, (base & 1) * 2 + (k & 1)]
    return out.view(U4).reshape(-1)


def sad(a: Any, b: Any, c: Any) -> Any:
    """c + |a - b| of arrays of equal signedness, wrapping; c in register bits."""
    unsigned = c.dtype
    return c + np.where(a < b, b.view(unsigned) - a.view(unsigned), a.view(unsigned) - b.view(unsigned))


def dp4a(a: Any, b: Any, c: Any, kinds: str) -> Any:
    """c + sum of four byte products; ``kinds`` gives the signedness of a and b, such as ``us``."""
    x = a.view(np.dtype("i1" if kinds[0] == "s" else "u1")).reshape(-1, 4).astype(I4)
    y = b.view(np.dtype("i1" if kinds[1] == "s" else "u1")).reshape(-1, 4).astype(I4)
    return c + (x * y).sum(axis=1, dtype=I4).view(U4)


def cat(parts: list[Any], dtype: Any) -> Any:
    """Joins registers into a wider one; the first is the least significant."""
    return np.stack(parts, axis=1).view(dtype).reshape(-1)
