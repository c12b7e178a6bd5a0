"""Alpha is one product, w_alpha · p, made before it meets the sum: values where any other order rounds differently."""

import torch
from kernels.cases import ACTIVATIONS, Case, buffers
from kernels.chain import variant_for
from kernels.compare import check_op
from kernels.harness import Workshop

from moegen.core.enums import OpKind

ACC = 36.0
"""The sum of one product of the largest code with itself."""


def telling_pair() -> tuple[float, float]:
    """(w_alpha, p) whose order shows in bf16 after relu2: a last place of fp32 rarely does."""
    generator = torch.Generator().manual_seed(1)
    alpha, p = torch.rand(2, 2_000_000, generator=generator) * 0.02 + 0.005
    right, wrong = (ACC * (alpha * p)).square(), ((ACC * alpha) * p).square()
    index = int((right.bfloat16() != wrong.bfloat16()).nonzero()[0])
    return float(alpha[index]), float(p[index])


def test_gemm1_multiplies_the_scales_first(workshop: Workshop) -> None:
    case = Case(
        hidden=16,
        intermediate=32,
        experts=1,
        top_k=1,
        tokens=1,
        row_tile=1,
        routing="hot",
        activation=ACTIVATIONS["relu2"],
    )
    op, given = case.ops()[OpKind.GEMM1], buffers(case)
    alpha, p = telling_pair()
    for name in ("x_codes", "w1_codes"):
        codes = torch.zeros_like(given[name])
        codes[..., 0] = 0x07
        given[name] = codes
    for name in ("x_scales", "w1_scales"):
        given[name] = torch.full_like(given[name], 0x38)
    given["x_scale"] = torch.tensor([[1 / p, p]])
    given["w1_alpha"] = torch.full_like(given["w1_alpha"], alpha)
    check_op(workshop.kernel(variant_for(op)), op, case, given)
