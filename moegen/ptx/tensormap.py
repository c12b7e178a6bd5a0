"""The 128-byte tensor map: decode, encode, validate, and the addresses of a box.

Word layout (u32), as host libraries write it: 0-1 global address; 2 flags (bits 4-6 rank-1, 7-10 format, 11-12
interleave, 13-14 swizzle); 3-6 strides of dimensions 1-4 in 16-byte units (low 32 bits), 7 their upper 4 bits each;
8-12 dimension sizes - 1; 13 element strides - 1 (3 bits each) and, in the top byte, box size 0 - 1; 14 box sizes 1-4
- 1, a byte each.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from moegen.ptx.errors import PtxError

#: Format code to bits per element. 11 is packed 4-bit in 8-byte groups, 13 packed 6-bit.
FORMAT_BITS = {0: 8, 1: 16, 2: 32, 3: 32, 4: 64, 5: 64, 6: 16, 7: 32, 8: 32, 9: 64, 10: 16, 11: 4, 13: 6}
_FLOAT = {6: "f16", 7: "f32", 8: "f32", 9: "f64", 10: "bf16"}
_SIGNED = {3, 5}


class TensorMapError(PtxError):
    """A tensor map that the copy unit would refuse or misread."""


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map.

    Attributes:
        address: of element 0, bytes.
        format: element format code.
        dims: elements per dimension, innermost first.
        strides: bytes, of dimensions 1 and up.
        box: elements per dimension.
        element_strides: elements, per dimension.
        swizzle: span in bytes (0, 32, 64, 128).
        interleave: code; 0 is none.
    """

    address: int
    format: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    interleave: int = 0

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def bits(self) -> int:
        """Bits per element in global memory."""
        return FORMAT_BITS[self.format]

    @property
    def inner_bytes(self) -> int:
        """Bytes of one box row in shared memory."""
        return self.box[0] * self.bits // 8

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory."""
        total = self.inner_bytes
        for extent in self.box[1:]:
            total *= extent
        return total

    @property
    def number(self) -> tuple[str, int]:
        """Kind (``f16``, ``bf16``, ``f32``, ``f64``, ``u``, ``s``) and width, for reductions."""
        if self.format in _FLOAT:
            return _FLOAT[self.format], self.bits
        return ("s" if self.format in _SIGNED else "u"), self.bits


def decode(raw: bytes) -> TensorMap:
    """Decodes and validates 128 bytes.

    Raises:
        TensorMapError: not a map that a copy may use.
    """
    words = struct.unpack("<32I", raw)
    flags = words[2]
    rank = ((flags >> 4) & 7) + 1
    code = (flags >> 7) & 15
    if rank > 5 or code not in FORMAT_BITS:
        raise TensorMapError(f"rank {rank}, format {code}: not a tensor map")
    sizes = [words[8 + k] + 1 for k in range(rank)]
    strides = [(words[3 + k] | ((words[7] >> (4 * k)) & 15) << 32) << 4 for k in range(rank - 1)]
    box = [(words[13] >> 24) + 1] + [((words[14] >> (8 * k)) & 255) + 1 for k in range(rank - 1)]
    steps = [((words[13] >> (3 * k)) & 7) + 1 for k in range(rank)]
    span = (0, 32, 64, 128)[(flags >> 13) & 3]
    result = TensorMap(
        (words[0] | words[1] << 32) & ~15,
        code,
        tuple(sizes),
        tuple(strides),
        tuple(box),
        tuple(steps),
        span,
        (flags >> 11) & 3,
    )
    validate(result)
    return result


def validate(m: TensorMap) -> None:
    """Checks the rules that the driver's encoder checks.

    Raises:
        TensorMapError: which rule fails, with numbers.
    """
    if m.interleave:
        raise TensorMapError(f"interleave {m.interleave} is not implemented")
    if m.format == 13:
        raise TensorMapError("packed 6-bit elements are not implemented")
    if any(step != 1 for step in m.element_strides):
        raise TensorMapError(f"element strides {m.element_strides} are not implemented")
    if m.address % 16 or (m.format == 11 and m.address % 16):
        raise TensorMapError(f"global address {m.address:#x} is not a multiple of 16")
    if any(s % 16 or s >= 1 << 40 for s in m.strides):
        raise TensorMapError(f"strides {m.strides} must be multiples of 16 below 2^40")
    if any(b > 256 for b in m.box):
        raise TensorMapError(f"box {m.box} has an extent above 256")
    if m.box[0] * m.bits % 128:
        raise TensorMapError(f"the inner box extent of {m.box[0]} x {m.bits} bits is no multiple of 16 bytes")
    if m.swizzle and m.inner_bytes > m.swizzle:
        raise TensorMapError(f"an inner box of {m.inner_bytes} bytes exceeds the {m.swizzle}-byte swizzle span")


def encode(m: TensorMap) -> bytes:
    """The 128 bytes of a map.

    Raises:
        TensorMapError: the map is not valid.
    """
    validate(m)
    words = [0] * 32
    words[0], words[1] = m.address & 0xFFFFFFFF, m.address >> 32
    swizzle_code = {0: 0, 32: 1, 64: 2, 128: 3}[m.swizzle]
    large = m.dims[-1] * (m.strides[-1] if m.strides else m.bits / 8) >= 1 << 17
    words[2] = 2 | (m.rank - 1) << 4 | m.format << 7 | swizzle_code << 13 | 1 << 18 | int(large) << 21
    for k, stride in enumerate(m.strides):
        words[3 + k] = (stride >> 4) & 0xFFFFFFFF
        words[7] |= (stride >> 36) << (4 * k)
    for k, size in enumerate(m.dims):
        words[8 + k] = (size - 1) & 0xFFFFFFFF
    words[13] = (m.box[0] - 1) << 24 | sum((s - 1) << (3 * k) for k, s in enumerate(m.element_strides))
    words[14] = sum((b - 1) << (8 * k) for k, b in enumerate(m.box[1:]))
    return struct.pack("<32I", *words)


class Rows(NamedTuple):
    """The rows of a box that lie inside the tensor in every outer dimension. All tuples: outermost dimension first.

    Attributes:
        first, last: bytes from the map's address to element 0 (of dimension 0) of the first and of the last row.
        counts: rows per outer dimension; one is 0 if there are none.
        strides: bytes between rows, per outer dimension.
        place: where they are in the box, a slice per outer dimension.
        whole: all rows of the box are inside.
    """

    first: int
    last: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    place: tuple[slice, ...]
    whole: bool


ONE_ROW = Rows(0, 0, (), (), (), True)


@lru_cache(maxsize=512)
def rows(m: TensorMap, outer: tuple[int, ...]) -> Rows:
    """Rows of a box at element coordinates of dimensions 1 and up."""
    first = last = 0
    counts, place = [], []
    for at, size, stride, extent in reversed(list(zip(outer, m.dims[1:], m.strides, m.box[1:], strict=True))):
        low, high = max(at, 0), max(min(at + extent, size), max(at, 0))
        first += low * stride
        last += (high - 1) * stride
        counts.append(high - low)
        place.append(slice(low - at, high - at))
    whole = tuple(counts) == m.box[:0:-1]
    return Rows(first, last, tuple(counts), m.strides[::-1], tuple(place), whole)


def inner_range(m: TensorMap, first: int) -> tuple[int, int, int]:
    """Part of a box row inside the tensor: (byte in the tensor's row, byte in the box row, bytes).

    Raises:
        TensorMapError: a 4-bit tensor cut inside a byte.
    """
    low, high = max(first, 0), min(first + m.box[0], m.dims[0])
    if high <= low:
        return 0, 0, 0
    if any(v * m.bits % 8 for v in (low, high - low, low - first)):
        raise TensorMapError(f"elements {low}..{high - 1} of {m.bits} bits do not start and end on bytes")
    return low * m.bits // 8, (low - first) * m.bits // 8, (high - low) * m.bits // 8
