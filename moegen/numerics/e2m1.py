"""E2M1, the 4-bit float of NVFP4: values, rounding, and two codes a byte.

Code = sign << 3 | index into :data:`VALUES`. Element 2i lies in the low nibble and 2i+1 in the high nibble, along K.
"""

import torch
from torch import Tensor

from moegen.core.abi import code_pitch
from moegen.core.errors import TensorError
from moegen.numerics.tensors import as_bytes

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MAX = 6.0
#: Midpoints between neighbours, and whether a value on the midpoint goes up (to the even code).
MIDPOINTS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))

_DECODED = torch.tensor([*VALUES, *(-value for value in VALUES)], dtype=torch.float32)
_BYTE = torch.arange(256)
#: Both values of each byte, as 64 bits, so that one look-up decodes two codes.
_DECODED_PAIRS = torch.stack((_DECODED[_BYTE & 0xF], _DECODED[_BYTE >> 4]), dim=-1).view(torch.int64).flatten()


def encode(x: Tensor) -> Tensor:
    """fp32 values to codes (uint8, one a byte, same shape): nearest, ties to the even code, saturating at 6.

    The sign bit is kept, also that of -0 and of values that round to 0. NaN becomes 0x7, as PTX's
    ``cvt.rn.satfinite.e2m1x2`` has it.
    """
    magnitude = x.abs()
    index = torch.zeros_like(x, dtype=torch.uint8)
    for midpoint, up in MIDPOINTS:
        below = magnitude < midpoint if up else magnitude <= midpoint
        index += (~below).to(torch.uint8)
    negative = torch.signbit(x) & ~x.isnan()
    return index | (negative.to(torch.uint8) << 3)


def encode_half_step(x: Tensor) -> Tensor:
    """As :func:`encode`, but rounds twice: to the nearest half (ties to even), then to a code. 2.6 → 2, 3.3 → 4."""
    capped = torch.where(x.abs() > MAX, MAX, x.abs())
    halves = torch.round(capped * 2.0) * 0.5
    return encode(torch.copysign(halves, x))


def decode(codes: Tensor) -> Tensor:
    """Codes 0…15 (uint8, one a byte) to fp32; 0x8 is -0."""
    return _DECODED.to(codes.device)[codes.long()]


def pack(codes: Tensor, pitch: int | None = None) -> Tensor:
    """Codes ``[..., K]`` (one a byte) to ``[..., pitch]`` bytes, two codes a byte; bytes past K/2 are 0.

    ``pitch`` is in bytes and defaults to ``moegen.core.abi.code_pitch(K)``.

    Raises:
        TensorError: K is odd, or the pitch is shorter than K/2.
    """
    columns = codes.shape[-1]
    width = code_pitch(columns) if pitch is None else pitch
    if columns % 2 or width < columns // 2:
        raise TensorError(
            f"{columns} codes do not fit rows of {width} bytes", "e2m1.pack", "give an even K and a pitch >= K/2"
        )
    packed = torch.zeros(*codes.shape[:-1], width, dtype=torch.uint8, device=codes.device)
    packed[..., : columns // 2] = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed


def unpack(packed: Tensor, columns: int) -> Tensor:
    """Inverse of :func:`pack`: the first ``columns`` codes of each row, one a byte. Takes uint8, or any one-byte dtype
    such as ``torch.float4_e2m1fn_x2``, whose bytes are read as they are.

    Raises:
        TensorError: rows hold fewer than ``columns`` codes, or elements are not one byte wide.
    """
    used = _used(packed, columns)
    return torch.stack((used & 0xF, used >> 4), dim=-1).flatten(-2)


def _used(packed: Tensor, columns: int) -> Tensor:
    data = as_bytes(packed, "e2m1.unpack")
    if columns % 2 or data.shape[-1] * 2 < columns:
        raise TensorError(
            f"rows of {data.shape[-1]} bytes do not hold {columns} codes", "e2m1.unpack", "pass the true K"
        )
    return data[..., : columns // 2]


def decode_packed(packed: Tensor, columns: int) -> Tensor:
    """fp32 values ``[..., columns]`` of packed rows: ``decode(unpack(packed, columns))``, faster.

    Raises:
        TensorError: as :func:`unpack`.
    """
    used = _used(packed, columns)
    pairs = _DECODED_PAIRS.to(used.device).index_select(0, used.flatten().int())
    return pairs.view(torch.float32).view(*used.shape[:-1], columns)
