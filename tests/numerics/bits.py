"""Inputs that reach every corner of fp32, and comparison by bits."""

import torch
from torch import Tensor

ALL_BF16 = (torch.arange(1 << 16, dtype=torch.int32) << 16).view(torch.float32)
"""Every bf16 value, as fp32: all exponents, both zeros, infinities and NaNs."""


def random_bits(count: int, seed: int = 0) -> Tensor:
    """fp32 values with uniformly random bits."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(1 << 31), 1 << 31, (count,), generator=generator, dtype=torch.int64)
    return bits.to(torch.int32).view(torch.float32)


def uniform(low: float, high: float, count: int, seed: int = 0) -> Tensor:
    """fp32 values uniform in [low, high)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator) * (high - low) + low


def neighbours(values: list[float]) -> Tensor:
    """Each value, the floats just below and just above it, and all of them negated."""
    base = torch.tensor(values, dtype=torch.float32)
    infinity = torch.tensor(float("inf"))
    around = torch.cat((base, torch.nextafter(base, -infinity), torch.nextafter(base, infinity)))
    return torch.cat((around, -around))


def differing(left: Tensor, right: Tensor) -> Tensor:
    """Indices where two fp32 tensors differ in a bit; two NaNs count as equal."""
    same = (left.view(torch.int32) == right.view(torch.int32)) | (left.isnan() & right.isnan())
    return (~same).nonzero()


def ulp_error(value: Tensor, exact: Tensor) -> float:
    """Largest error of fp32 ``value`` against fp64 ``exact``, in units in the last place of the rounded exact value."""
    rounded = exact.float().abs()
    step = (torch.nextafter(rounded, torch.tensor(float("inf"))) - rounded).double()
    usable = torch.isfinite(exact.float()) & torch.isfinite(value)
    return ((value.double() - exact).abs() / step)[usable].max().item()
