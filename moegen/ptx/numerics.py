"""Tensor-core arithmetic: exact products and sums, and a published model of truncated accumulation."""

from typing import Any

import numpy as np

from moegen.ptx import formats

_F4 = np.float32


def accumulate_exact(a: Any, b: Any, c: Any | None) -> Any:
    """a @ b.T + c with f64 sums, rounded once to f32 (nearest even).

    Args:
        a: f64 or f32 [m, k].
        b: f64 or f32 [n, k].
        c: f32 [m, n] or None.
    """
    total = a.astype(np.float64, copy=False) @ b.astype(np.float64, copy=False).T
    if c is not None:
        total += c.astype(np.float64)
    return total.astype(_F4)


def accumulate_single(a: Any, b: Any, c: Any | None) -> Any:
    """``accumulate_exact`` of f32 operands such that every sum of products is exact in f32, in any order."""
    total = a @ b.T
    if c is not None:
        total += c
    return total


def _significand(scale: Any) -> tuple[Any, Any]:
    """Scale values to (significand in [1, 2) or 0, exponent)."""
    mantissa, exponent = np.frexp(scale)
    return mantissa * 2.0, exponent - 1


def accumulate_mma_sim(a: Any, b: Any, sfa: Any, sfb: Any, c: Any | None, *, block: int, fraction_bits: int) -> Any:
    """Block-scaled accumulation after MMA-Sim's published model.

    Each block of ``block`` elements gives an exact dot product, which is multiplied by the product of the two scales'
    significands; these terms and the accumulator are aligned to the largest exponent (of scale products and
    accumulator), truncated to ``fraction_bits`` below it, summed, and the sum is rounded towards zero to f32.

    Args:
        a: element values f64 [m, k].
        b: element values f64 [n, k].
        sfa: scale values f64 [m, k / block].
        sfb: scale values f64 [n, k / block].
        c: accumulator f32 [m, n] or None.
        block: elements per scale.
        fraction_bits: kept below the largest exponent.
    """
    m, k = a.shape
    n, count = b.shape[0], k // block
    acc = np.zeros((m, n)) if c is None else c.astype(np.float64)
    ma, ea = _significand(sfa)
    mb, eb = _significand(sfb)
    terms = np.empty((count, m, n))
    exponents = np.empty((count, m, n), np.int64)
    for j in range(count):
        dot = a[:, j * block : (j + 1) * block] @ b[:, j * block : (j + 1) * block].T
        terms[j] = dot * (ma[:, j][:, None] * mb[:, j][None, :])
        exponents[j] = ea[:, j][:, None] + eb[:, j][None, :]
    acc_exponent = np.where(acc == 0, -(1 << 20), np.frexp(acc)[1] - 1)
    top = np.maximum(exponents.max(axis=0), acc_exponent)
    unit = top - fraction_bits
    total = np.trunc(np.ldexp(acc, -unit))
    for j in range(count):
        total = total + np.trunc(np.ldexp(terms[j], exponents[j] - unit))
    value = np.ldexp(total, unit)
    rounded = formats.round_f64(value, "f32", "rz").view(_F4)
    bad = np.isnan(terms).any(axis=0) | ~np.isfinite(acc)
    if bad.any():
        plain = acc + np.ldexp(terms, exponents).sum(axis=0)
        rounded = np.where(bad, plain.astype(_F4), rounded)
    return rounded


def finish(result: Any, name: str) -> Any:
    """f32 results to accumulator bits (u32 per element): ``f32`` with canonical NaN, or ``f16`` in the low half."""
    if name == "f16":
        return formats.round_f64(result.astype(np.float64), "f16")
    bits = result.view(np.uint32)
    nan = np.isnan(result)
    return np.where(nan, np.uint32(0x7FFFFFFF), bits) if nan.any() else bits
