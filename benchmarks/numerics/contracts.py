"""How far apart the quantiser contracts are: share of scale bytes and codes that differ from ``te``.

Blocks are Gaussian in bf16 with log-normal magnitudes; every tensor amax is another draw, since differences come in
bursts: whole classes of scales land on a tie for unlucky amaxes. Run: python benchmarks/numerics/contracts.py
"""

import torch

from moegen.core.enums import Contract
from moegen.numerics import e2m1, global_scale_pair, quantize_rows, tensor_amax

TENSORS, ROWS, COLUMNS = 100, 64, 1024
SPREAD = 0.5
"""Standard deviation of the log of a block's magnitude."""


def sample(seed: int) -> torch.Tensor:
    """One bf16 tensor ``[ROWS, COLUMNS]`` with its own largest magnitude."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.exp(SPREAD * torch.randn(ROWS, COLUMNS // 16, 1, generator=generator))
    peak = 1 + torch.rand(1, generator=generator)
    return (torch.randn(ROWS, COLUMNS // 16, 16, generator=generator) * magnitude * peak).flatten(1).bfloat16()


def differences(contract: Contract, x: torch.Tensor) -> tuple[float, float]:
    """Share of scale bytes, and of codes in blocks of equal scale, that differ from ``te`` under te's global scale."""
    pair = global_scale_pair(tensor_amax(x), Contract.TE)
    ours, te = quantize_rows(x, pair, contract), quantize_rows(x, pair, Contract.TE)
    same = ours.scales == te.scales
    left, right = (e2m1.unpack(side.codes, COLUMNS).unflatten(-1, (-1, 16)) for side in (ours, te))
    return 1 - same.float().mean().item(), (left != right)[same].float().mean().item()


def main() -> None:
    """Prints a Markdown table."""
    print("| contract | scale bytes, mean | worst tensor | codes at equal scale, mean | worst tensor |")
    print("|---|---|---|---|---|")
    samples = [sample(seed) for seed in range(TENSORS)]
    for contract in Contract:
        scales, codes = zip(*(differences(contract, x) for x in samples), strict=True)
        cells = (sum(scales) / TENSORS, max(scales), sum(codes) / TENSORS, max(codes))
        print(f"| {contract.value} | " + " | ".join(f"{cell:.2e}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
