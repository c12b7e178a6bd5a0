"""Matrix descriptors in shared memory and instruction descriptors of wgmma and tcgen05."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from moegen.ptx.errors import PtxError
from moegen.ptx.swizzle import swizzle


class DescriptorError(PtxError):
    """A descriptor with fields that are not implemented or not legal."""


@dataclass(frozen=True)
class SharedDescriptor:
    """A matrix in shared memory.

    Attributes:
        start: byte address.
        lead: leading-dimension byte offset.
        stride: stride-dimension byte offset.
        span: swizzle span in bytes, 0 for none.
    """

    start: int
    lead: int
    stride: int
    span: int


@lru_cache(maxsize=4096)
def shared_descriptor(bits: int, blackwell: bool) -> SharedDescriptor:
    """Decodes a 64-bit matrix descriptor.

    Args:
        bits: the descriptor.
        blackwell: tcgen05 layout (three layout bits and a fixed version field); else wgmma.

    Raises:
        DescriptorError: reserved or unimplemented fields.
    """
    start, lead, stride = ((bits >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    base = bits >> 49 & 7
    if blackwell:
        if bits >> 46 & 7 != 1:
            raise DescriptorError(f"descriptor {bits:#x}: bits 46-48 must be 001")
        if bits >> 52 & 1:
            raise DescriptorError(f"descriptor {bits:#x}: absolute leading offsets are not implemented")
        code = bits >> 61
        spans = {0: 0, 2: 128, 4: 64, 6: 32}
    else:
        code = bits >> 62
        spans = {0: 0, 1: 128, 2: 64, 3: 32}
    if code not in spans:
        raise DescriptorError(f"descriptor {bits:#x}: layout {code} is not implemented")
    if base:
        raise DescriptorError(f"descriptor {bits:#x}: base offset {base} is not implemented")
    return SharedDescriptor(start, lead, stride, spans[code])


@lru_cache(maxsize=1024)
def k_major_chunks(d: SharedDescriptor, rows: int, row_bytes: int) -> Any:
    """Numbers of the 16-byte chunks of shared memory that hold a K-major operand tile: int64 [rows, chunks of a row].

    Swizzled: rows of ``span`` bytes in groups of 8, groups ``stride`` apart; a K offset inside the span has been
    added to the start. Unswizzled: 8 rows x 16 bytes cores, ``lead`` apart along K and ``stride`` apart along the rows.
    """
    r = np.arange(rows, dtype=np.int64)[:, None]
    chunk = np.arange(row_bytes // 16, dtype=np.int64)[None, :]
    if d.span:
        address = swizzle(d.start + (r // 8) * d.stride + (r % 8) * d.span + chunk * 16, d.span)
    else:
        address = d.start + (r // 8) * d.stride + (r % 8) * 16 + chunk * d.lead
    numbers = address >> 4
    numbers.flags.writeable = False
    return numbers


@lru_cache(maxsize=512)
def mn_major_index(d: SharedDescriptor, extent: int, depth: int, size: int, blackwell: bool) -> Any:
    """Byte addresses of an MN-major operand tile: int64 [K rows, elements along M or N] for elements of ``size`` bytes.

    Swizzled: each K row holds ``span`` bytes along MN; 8 K rows make an atom; atoms are ``lead`` apart along MN and
    ``stride`` apart along K. Unswizzled: atoms of 8 K rows x 16 bytes, ``stride`` apart along MN and ``lead`` along K.
    """
    k = np.arange(depth, dtype=np.int64)[:, None]
    byte = np.arange(extent, dtype=np.int64)[None, :] * size
    width = d.span or 16
    along, down = (d.lead, d.stride) if d.span else (d.stride, d.lead)
    index = d.start + (byte // width) * along + (k // 8) * down + (k % 8) * width + byte % width
    index = swizzle(index, d.span)
    index.flags.writeable = False
    return index


@dataclass(frozen=True)
class BlockScaled:
    """Instruction descriptor of block-scaled tcgen05.mma.

    Attributes:
        m, n: shape of the instruction.
        a, b: element formats (keys of ``formats.FORMATS``).
        negate_a, negate_b: operand is negated.
        a_mn, b_mn: operand is MN-major.
        scale: ``ue4m3`` or ``ue8m0``.
        sfa, sfb: byte of the scale word that the first K block uses.
    """

    m: int
    n: int
    a: str
    b: str
    negate_a: bool
    negate_b: bool
    a_mn: bool
    b_mn: bool
    scale: str
    sfa: int
    sfb: int


_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}


@lru_cache(maxsize=256)
def block_scaled(bits: int, four_bit: bool) -> BlockScaled:
    """Decodes the instruction descriptor of kinds mxf4, mxf4nvf4 (``four_bit``) and mxf8f6f4.

    Raises:
        DescriptorError: reserved or unimplemented fields.
    """
    names = {1: "e2m1"} if four_bit else _F8F6F4
    a, b = bits >> 7 & 7, bits >> 10 & 7
    if four_bit:
        b = bits >> 10 & 3
    if a not in names or b not in names:
        raise DescriptorError(f"instruction descriptor {bits:#x}: formats {a}, {b}")
    if bits & 0xF or bits >> 6 & 1:
        raise DescriptorError(f"instruction descriptor {bits:#x}: reserved or sparsity bits are set")
    if bits >> 31 & 1:
        raise DescriptorError(f"instruction descriptor {bits:#x}: the K = 96 form is not implemented")
    scale = "ue8m0" if bits >> 23 & 1 else "ue4m3"
    m = (bits >> 24 & 31) << 4
    return BlockScaled(
        m,
        (bits >> 17 & 63) << 3,
        names[a],
        names[b],
        bool(bits >> 13 & 1),
        bool(bits >> 14 & 1),
        bool(bits >> 15 & 1),
        bool(bits >> 16 & 1),
        scale,
        bits >> 29 & 3,
        bits >> 4 & 3,
    )


@dataclass(frozen=True)
class Dense:
    """Instruction descriptor of tcgen05.mma kinds f16, tf32, f8f6f4 and i8.

    Attributes:
        d: accumulator format (``f16``, ``f32`` or ``s32``).
        saturate: integer accumulation saturates.
    """

    m: int
    n: int
    d: str
    a: str
    b: str
    negate_a: bool
    negate_b: bool
    a_mn: bool
    b_mn: bool
    saturate: bool


_DENSE = {"f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}, "f8f6f4": _F8F6F4, "i8": {0: "u8", 1: "s8"}}


@lru_cache(maxsize=256)
def dense(bits: int, kind: str) -> Dense:
    """Decodes the instruction descriptor of a kind without block scaling.

    Raises:
        DescriptorError: reserved or unimplemented fields.
    """
    names = _DENSE[kind]
    a, b, d = bits >> 7 & 7, bits >> 10 & 7, bits >> 4 & 3
    accumulators = {2: "s32"} if kind == "i8" else {0: "f16", 1: "f32"}
    if a not in names or b not in names or d not in accumulators:
        raise DescriptorError(f"instruction descriptor {bits:#x}: formats {a}, {b}, accumulator {d} for kind {kind}")
    if bits & 7:
        raise DescriptorError(f"instruction descriptor {bits:#x}: sparsity is not implemented")
    if bits >> 30 & 3:
        raise DescriptorError(f"instruction descriptor {bits:#x}: a B shift (.ws) is not implemented")
    return Dense(
        (bits >> 24 & 31) << 4,
        (bits >> 17 & 63) << 3,
        accumulators[d],
        names[a],
        names[b],
        bool(bits >> 13 & 1),
        bool(bits >> 14 & 1),
        bool(bits >> 15 & 1),
        bool(bits >> 16 & 1),
        bool(bits >> 3 & 1),
    )
