"""Integer and bit operations on lanes that NumPy lacks. Functions take and give register arrays of any shape."""

from typing import Any

import numpy as np

__all__ = [
    "bfe",
    "bfi",
    "bfind",
    "bmsk",
    "brev",
    "cat",
    "clz",
    "dp4a",
    "fns",
    "funnel",
    "idiv",
    "irem",
    "mulhi4",
    "mulhi8",
    "part",
    "popc",
    "prmt",
    "sad",
    "shl",
    "shr",
]  # fmt: skip

U1, U4, U8 = (np.dtype(f"u{n}") for n in (1, 4, 8))
I4, I8 = np.dtype("i4"), np.dtype("i8")


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
    return np.packbits(unpacked[:, ::-1], axis=1, bitorder="little").view(a.dtype).reshape(a.shape)


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

    def one(m: int, b: int, n: int) -> int:
        if n == 0:
            return b if b < 32 and m >> b & 1 else 0xFFFFFFFF
        step, left = (1, n) if n > 0 else (-1, -n)
        while 0 <= b < 32:
            if m >> b & 1:
                left -= 1
                if left == 0:
                    return b
            b += step
        return 0xFFFFFFFF

    return np.vectorize(one, otypes=[U4])(mask.astype(object), base.astype(object), offset.view(I4).astype(object))


def funnel(low: Any, high: Any, amount: Any, left: bool, clamp: bool) -> Any:
    """Funnel shift of the 64-bit value high:low."""
    amount = np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)
    value = (high.astype(U8) << np.uint64(32)) | low
    wide = amount.astype(U8)
    return ((value << wide) >> np.uint64(32) if left else value >> wide).astype(U4)


#: Byte that each result byte takes under a mode, from the selector's two low bits.
_PICK = {
    "f4e": lambda base, k: (base + k) & 7,
    "b4e": lambda base, k: (base - k) & 7,
    "rc8": lambda base, k: base,
    "ecl": lambda base, k: np.maximum(base, np.uint32(k)),
    "ecr": lambda base, k: np.minimum(base, np.uint32(k)),
    "rc16": lambda base, k: (base & 1) * 2 + (k & 1),
}


def prmt(a: Any, b: Any, selector: Any, mode: str) -> Any:
    """Byte permute of the eight bytes b:a."""
    pool = (b.astype(U8) << np.uint64(32)) | a
    base = (selector & np.uint32(3)).astype(np.int64)
    out = np.uint32(0)
    for k in range(4):
        nibble = (selector >> np.uint32(4 * k)) & np.uint32(15)
        pick = nibble & np.uint32(7) if not mode else _PICK[mode](base, k)
        byte = ((pool >> (pick.astype(U8) * np.uint64(8))) & np.uint64(255)).astype(U4)
        if not mode:
            signs = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
            byte = np.where(nibble & np.uint32(8), signs, byte)
        out = out | (byte << np.uint32(8 * k))
    return out


def sad(a: Any, b: Any, c: Any) -> Any:
    """c + |a - b| of arrays of equal signedness, wrapping; c in register bits."""
    unsigned = c.dtype
    return c + np.where(a < b, b.view(unsigned) - a.view(unsigned), a.view(unsigned) - b.view(unsigned))


def dp4a(a: Any, b: Any, c: Any, kinds: str) -> Any:
    """c + sum of four byte products; ``kinds`` gives the signedness of a and b, such as ``us``."""
    x = a.view(np.dtype("i1" if kinds[0] == "s" else "u1")).reshape(*a.shape, 4).astype(I4)
    y = b.view(np.dtype("i1" if kinds[1] == "s" else "u1")).reshape(*b.shape, 4).astype(I4)
    return c + (x * y).sum(axis=-1, dtype=I4).view(U4)


def part(a: Any, dtype: Any, k: int, count: int) -> Any:
    """The k-th of ``count`` equal parts of a register; the first is the least significant."""
    return a.view(dtype)[..., k::count].copy()


def cat(parts: list[Any], dtype: Any) -> Any:
    """Joins registers into a wider one; the first is the least significant."""
    if len(parts) == 2 and dtype.kind == "u":
        low, high = (part.astype(dtype) for part in parts)
        return low | high << dtype.type(parts[0].dtype.itemsize * 8)
    shape = max((part.shape for part in parts), key=len)
    out = np.empty((*shape, len(parts)), parts[0].dtype)
    for k, part in enumerate(parts):
        out[..., k] = part
    return out.view(dtype)[..., 0]
