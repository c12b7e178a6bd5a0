"""Rows to NVFP4 and back: block amax, scale bytes, packed codes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.core.abi import BLOCK
from moegen.core.enums import Contract
from moegen.core.errors import TensorError
from moegen.numerics import e2m1, e4m3
from moegen.numerics.contracts import block_codes, global_scale_pair, scale_bytes

_INFINITY_BITS = 0x7F800000


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """NVFP4 rows, uint8, without second-level scale: ``codes [..., pitch]`` and linear ``scales [..., K/16]``."""

    codes: Tensor
    scales: Tensor

    @property
    def columns(self) -> int:
        """K in elements."""
        return self.scales.shape[-1] * BLOCK


def magnitude_bits(x: Tensor) -> Tensor:
    """Bits of |x| as int32: ordered as the values are, infinity and then NaN last."""
    return x.float().view(torch.int32) & 0x7FFFFFFF


def block_amax(x: Tensor) -> Tensor:
    """Largest magnitude of each 16 values: fp32 ``[..., K/16]``. A NaN in a block makes its amax NaN.

    Raises:
        TensorError: K is not a multiple of 16.
    """
    if x.shape[-1] % BLOCK:
        raise TensorError(f"{x.shape[-1]} columns", "quantize", f"K must be a multiple of {BLOCK}")
    return magnitude_bits(x).unflatten(-1, (-1, BLOCK)).amax(-1).view(torch.float32)


def tensor_amax(x: Tensor) -> Tensor:
    """Largest finite magnitude (fp32, 0-dimensional), 0 when there is none. NaN and infinity mark their block alone."""
    bits = magnitude_bits(x)
    largest = torch.where(bits < _INFINITY_BITS, bits, 0).flatten()
    return torch.cat((largest, largest.new_zeros(1))).amax().view(torch.float32)


def dynamic_pair(x: Tensor, contract: Contract) -> Tensor:
    """Second-level scale of a whole tensor: fp32 ``[1, 2]`` (g, p)."""
    return global_scale_pair(tensor_amax(x).reshape(1), contract)


def quantize_rows(x: Tensor, pair: Tensor, contract: Contract) -> Quantized:
    """Quantises rows ``x [..., K]`` (fp32, bf16 or fp16).

    Args:
        x: values; zero rows are fine.
        pair: (g, p), fp32 ``[2]``, or ``[..., 2]`` with one pair per row.
        contract: the formula.

    Raises:
        TensorError: K is not a multiple of 16, or ``pair`` has another last dimension than 2.
    """
    if pair.shape[-1] != 2:
        raise TensorError(f"second-level scale of shape {tuple(pair.shape)}", "quantize", "pass (encode, decode) pairs")
    values = x.float()
    scales = scale_bytes(block_amax(values), pair, contract)
    codes = block_codes(values.unflatten(-1, (-1, BLOCK)), scales, pair, contract)
    return Quantized(codes=e2m1.pack(codes.flatten(-2)), scales=scales)


def unscaled_values(quantized: Quantized) -> Tensor:
    """code · S of every element: exact in fp32 (and in bf16)."""
    codes = e2m1.decode_packed(quantized.codes, quantized.columns).unflatten(-1, (-1, BLOCK))
    return (codes * e4m3.decode(quantized.scales).unsqueeze(-1)).flatten(-2)


def dequantize(quantized: Quantized, decode_scale: Tensor | float, dtype: torch.dtype = torch.float32) -> Tensor:
    """(code · S) · p: one rounding, in ``dtype`` fp32 or fp64. ``decode_scale`` broadcasts against ``[..., K]``."""
    scale = decode_scale.to(dtype) if isinstance(decode_scale, Tensor) else decode_scale
    return unscaled_values(quantized).to(dtype) * scale
