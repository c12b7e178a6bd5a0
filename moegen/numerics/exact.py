"""Test data whose matrix products are exact in fp32, so that kernels can be compared bit for bit.

Every product is a multiple of a unit u and every partial sum, in any order, stays at most 2^24·u in magnitude: then
fp32 addition never rounds. Bounds, in units of 1/4:

- W4A4: codes any (|code| <= 6), block scales 1 or 2 on both sides: |product| <= 12·12 = 576 u, so K <= 29,127; 8192
  is used.
- W4A16: tokens are halves up to 8, weights as above: |product| <= 96 = 384 u, so K <= 43,690.
- One non-zero weight per row of W2: its product is exact for any row values (12 significant bits with E2M1·E4M3 rows,
  14 with bf16 rows against E2M1·{1, 2}), so a whole layer is exact although gemm2's rows come from an activation.
"""

import torch
from torch import Tensor

from moegen.core.abi import BLOCK
from moegen.core.enums import TokenDtype
from moegen.core.errors import TensorError
from moegen.numerics.layouts import Projection
from moegen.numerics.quantize import Quantized
from moegen.numerics.rounding import TORCH_DTYPE

MAX_DEPTH = 8192
"""Largest K that these generators give."""
SCALES = (0x38, 0x40)
"""E4M3 bytes of 1 and 2."""


def exact_rows(rows: int, depth: int, seed: int) -> Quantized:
    """Quantised rows, codes any, scales 1 or 2: codes ``[rows, pitch]`` and linear scales ``[rows, K/16]``.

    Raises:
        TensorError: K is above the bound, or not a multiple of 16.
    """
    weights = exact_projection(1, rows, depth, seed)
    padded = torch.zeros(rows, -(-depth // 32) * 16, dtype=torch.uint8)
    padded[:, : depth // 2] = weights.codes[0]
    return Quantized(codes=padded, scales=weights.scales[0])


def exact_projection(experts: int, rows: int, depth: int, seed: int) -> Projection:
    """Weights, codes any, scales 1 or 2; raises as :func:`exact_rows`."""
    if depth > MAX_DEPTH or depth % BLOCK:
        raise TensorError(f"K = {depth}", "exact data", f"a multiple of {BLOCK} up to {MAX_DEPTH}")
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (experts, rows, depth // 2), dtype=torch.uint8, generator=generator)
    picks = torch.randint(0, 2, (experts, rows, depth // BLOCK), generator=generator)
    return Projection(codes=codes, scales=torch.tensor(SCALES, dtype=torch.uint8)[picks])


def exact_tokens(tokens: int, hidden: int, seed: int, dtype: TokenDtype = TokenDtype.BF16) -> Tensor:
    """Tokens ``[T, H]``: multiples of 1/2 up to 8."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-16, 17, (tokens, hidden), generator=generator) / 2).to(TORCH_DTYPE[dtype])


def single_projection(experts: int, rows: int, depth: int, seed: int) -> Projection:
    """Weights with one non-zero value in each row, so that every sum over K is one product. Scales 1 or 2."""
    base = exact_projection(experts, rows, depth, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    columns = torch.randint(0, depth, (experts, rows), generator=generator)
    values = torch.randint(1, 8, (experts, rows), generator=generator) + 8 * torch.randint(
        0, 2, (experts, rows), generator=generator
    )
    shifted = torch.where(columns % 2 == 1, values << 4, values).to(torch.uint8)
    codes = torch.zeros_like(base.codes)
    codes.scatter_(-1, (columns // 2)[..., None], shifted[..., None])
    return Projection(codes=codes, scales=base.scales)
