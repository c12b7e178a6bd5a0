"""Block-scaled operands with known values, in the layouts that kernels load, and their exact products."""

from dataclasses import dataclass
from typing import Any

import numpy as np

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([_E2M1, -_E2M1])


def aligned(size: int, align: int = 512) -> Any:
    """Zeroed bytes at an aligned address: device code rounds pointers."""
    room = np.zeros(size + align, np.uint8)
    start = -room.ctypes.data % align
    return room[start : start + size]


def e4m3_value(codes: Any) -> Any:
    """Values of E4M3 codes (no NaN codes)."""
    exponent, fraction = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent > 0, np.ldexp(1 + fraction / 8, exponent.astype(int) - 7), np.ldexp(fraction / 8, -6))
    return np.where(codes & 0x80, -magnitude, magnitude)


def scale_offsets(rows: int, columns: int) -> Any:
    """Byte offset of every (row, column) in the 128x4 scale layout."""
    r, k = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    padded = (columns + 3) // 4 * 4
    return ((r // 128) * (padded // 4) + k // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + k % 4


def scale_bytes(rows: int, columns: int) -> int:
    """Size of the 128x4 scale layout."""
    return (rows + 127) // 128 * 128 * ((columns + 3) // 4 * 4)


@dataclass
class Operand:
    """One block-scaled matrix per batch: codes, scales in the 128x4 layout, and exact values f64 [batch, rows, k]."""

    codes: Any
    scales: Any
    values: Any


def make(rng: Any, batch: int, rows: int, k: int, *, fmt: str = "nvfp4", wide: bool = False) -> Operand:
    """Random operand.

    Args:
        fmt: ``nvfp4`` (E2M1, E4M3 scales of 16), ``mxfp4`` (E2M1, powers of two per 32), ``mxfp8`` (E4M3, powers of
        two per 32). wide: scales over a wide range; else such that products and sums stay exact in f32 (scales 1 or 2).
    """
    block = 16 if fmt == "nvfp4" else 32
    columns = k // block
    if fmt == "mxfp8":
        # Small integers: exact sums in f32.
        small = np.array([0x00, 0x38, 0x40, 0x44, 0xB8, 0xC0, 0x30, 0xB0], np.uint8)
        codes = aligned(batch * rows * k)
        codes[:] = rng.choice(small, codes.size)
        values = e4m3_value(codes).reshape(batch, rows, k)
    else:
        codes = aligned(batch * rows * k // 2)
        codes[:] = rng.integers(0, 256, codes.size, np.uint8)
        values = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], -1).reshape(batch, rows, k)
    if fmt == "nvfp4":
        choices = np.arange(0x18, 0x68, dtype=np.uint8) if wide else np.array([0x38, 0x40], np.uint8)
        factor = e4m3_value
    else:
        choices = np.arange(120, 134, dtype=np.uint8) if wide else np.array([127, 128], np.uint8)
        factor = lambda c: np.ldexp(1.0, c.astype(int) - 127)  # noqa: E731
    raw = rng.choice(choices, (batch, rows, columns))
    one = scale_bytes(rows, columns)
    scales = aligned(batch * one)
    offsets = scale_offsets(rows, columns)
    for b in range(batch):
        scales[b * one + offsets] = raw[b]
    return Operand(codes, scales, values * np.repeat(factor(raw), block, axis=2))


def products(a: Operand, b: Operand) -> Any:
    """a @ b.T per batch, f64."""
    return np.einsum("lmk,lnk->lmn", a.values, b.values, optimize=True)
