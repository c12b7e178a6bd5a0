"""Rounding of fp32 to the token dtypes, the same on every target: nearest even, one NaN."""

import torch
from torch import Tensor

from moegen.core.enums import Round, TokenDtype

BF16_NAN = 0x7FC0
FP16_NAN = 0x7E00

TORCH_DTYPE = {TokenDtype.BF16: torch.bfloat16, TokenDtype.FP16: torch.float16}


def f32(value: float) -> float:
    """A Python float rounded to fp32: how every constant of a spec enters the exact chain."""
    return torch.tensor(value, dtype=torch.float32).item()


def to_bf16(x: Tensor) -> Tensor:
    """fp32 to bf16, nearest even, overflow to infinity, every NaN to 0x7FC0 (library casts differ here)."""
    bits = x.view(torch.int32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return torch.where(x.isnan(), BF16_NAN, rounded).to(torch.int16).view(torch.bfloat16)


def to_fp16(x: Tensor) -> Tensor:
    """fp32 to fp16, nearest even, overflow (from 65520) to infinity, every NaN to 0x7E00."""
    bits = x.half().view(torch.int16)
    return torch.where(x.isnan(), torch.tensor(FP16_NAN, dtype=torch.int16), bits).view(torch.float16)


def to_token(x: Tensor, dtype: TokenDtype) -> Tensor:
    """fp32 to the token dtype."""
    return to_bf16(x) if dtype is TokenDtype.BF16 else to_fp16(x)


def round_at(x: Tensor, point: Round) -> Tensor:
    """fp32 value after a declared rounding point: itself, or rounded to bf16 or fp16 and widened again."""
    if point is Round.FP32:
        return x
    return to_bf16(x).float() if point is Round.BF16 else to_fp16(x).float()
