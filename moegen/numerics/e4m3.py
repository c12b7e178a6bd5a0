"""E4M3 ("fn"), the 8-bit float of block scales: cast in integers, decoded by arithmetic.

Bias 7; exponent field 15 is an ordinary exponent except that mantissa 7 is NaN; largest finite 448 = 0x7E;
subnormals are m·2⁻⁹. Library casts are not used: they disagree with each other above 464.
"""

import torch
from torch import Tensor

from moegen.numerics.tensors import as_bytes

MAX = 448.0
MAX_BYTE = 0x7E
NAN_BYTE = 0x7F
MIN_SUBNORMAL = 2.0**-9
MIN_NORMAL = 2.0**-6

_MIN_NORMAL_BITS = 0x3C800000
_MAX_BITS = 0x43E00000
#: Adding this float leaves a value below 2^-6, rounded to a multiple of 2^-9, in the low bits of the sum.
_SUBNORMAL_MAGIC = 16384.0
_SUBNORMAL_MAGIC_BITS = 0x46800000


def encode(x: Tensor) -> Tensor:
    """fp32 to bytes (uint8): nearest even, saturating at ±448 (infinity too), NaN to 0x7F, sign of zero kept."""
    bits = x.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    capped = magnitude.clamp(max=_MAX_BITS)
    normal = ((capped + 0x7FFFF + ((capped >> 20) & 1)) >> 20) - (120 << 3)
    sum_bits = (capped.view(torch.float32) + _SUBNORMAL_MAGIC).view(torch.int32)
    code = torch.where(capped < _MIN_NORMAL_BITS, sum_bits - _SUBNORMAL_MAGIC_BITS, normal)
    signed = code | ((bits >> 24) & 0x80)
    return torch.where(magnitude > 0x7F800000, NAN_BYTE, signed).to(torch.uint8)


def decode(codes: Tensor) -> Tensor:
    """Bytes (uint8, or ``torch.float8_e4m3fn``) to fp32, exactly; 0x7F and 0xFF are NaN.

    Raises:
        TensorError: elements are not one byte wide.
    """
    return _DECODED.to(codes.device)[as_bytes(codes, "e4m3.decode").long()]


def _decode_all() -> Tensor:
    code = torch.arange(256, dtype=torch.int32)
    magnitude = code & 0x7F
    normal = ((magnitude << 20) + (120 << 23)).view(torch.float32)
    value = torch.where(magnitude < 8, magnitude.float() * MIN_SUBNORMAL, normal)
    value = torch.where(magnitude == NAN_BYTE, float("nan"), value)
    return torch.where(code >= 0x80, -value, value)


_DECODED = _decode_all()
