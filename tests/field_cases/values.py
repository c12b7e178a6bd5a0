"""Inputs of field cases that kernels of every target are tried on, and what must come out."""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from field_cases.test_layouts import constant_projection
from kernels.cases import Case
from torch import Tensor

from moegen.core.abi import code_pitch
from moegen.core.enums import ActivationKind, RouterWeight
from moegen.core.ops import Activation, Numerics
from moegen.numerics import e2m1
from moegen.numerics.layouts import Halves, Projection

AnyCase = TypeVar("AnyCase", bound=Case)
ONE = torch.tensor([[1.0, 1.0]])
BF16_ULP = 2.0**-8
SWIGLU = Activation(kind=ActivationKind.SWIGLU)
OAI = Activation(kind=ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.0, limit=7.0)
CLAMP = Activation(kind=ActivationKind.SWIGLU_CLAMP, limit=10.0)
#: Halfway between neighbouring codes, and the codes that rounding to even gives (FR-03), both signs.
_POSITIVE, _EVEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0), (0, 2, 2, 4, 4, 6, 6, 7)
MIDPOINTS = (*_POSITIVE, *(-value for value in _POSITIVE))
MIDPOINT_CODES = [*_EVEN, *(code | 8 for code in _EVEN)]
#: Row counts around those of scale tiles (FR-05).
ROW_COUNTS = (1, 127, 128, 129, 256, 384, 512, 1024)


def one_expert(kind: type[AnyCase], rows: int, hidden: int, **fields: object) -> AnyCase:
    """A case whose one expert gets all ``rows`` tokens, in order."""
    fixed = {"experts": 1, "top_k": 1, "first_expert": 0, "routing": "hot"}
    return kind(tokens=rows, hidden=hidden, **fixed, **fields)  # type: ignore[arg-type]


def rows_with_zeros() -> tuple[Tensor, Tensor]:
    """FR-01: bf16 values, and the same with row 2 of negative zeros: ``[4, 64]``."""
    values = torch.randn(4, 64, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    with_zeros = values.clone()
    with_zeros[2] = -0.0
    return values, with_zeros


def midpoint_pairs() -> Tensor:
    """FR-03: gate and up in groups of 8 whose gates are the midpoints' and whose ups matter to nobody; bf16
    ``[1, 32]``."""
    pairs = torch.full((1, 32), 77.0, dtype=torch.bfloat16)
    pairs[0, 8:16], pairs[0, 24:32] = torch.tensor(MIDPOINTS[:8]), torch.tensor(MIDPOINTS[8:])
    return pairs


def midpoint_weights() -> tuple[Halves, dict[str, Tensor]]:
    """FR-03 made by gemm1: silu(64) is 64, and up is the value over 64. Weights, and the other inputs of one token."""
    up = torch.zeros(1, 16, 16)
    for row, value in enumerate(MIDPOINTS):
        rest = abs(value) * 4
        for column in range(16):
            part = max(step for step in (0.0, 1.0, 2.0, 3.0, 4.0, 6.0) if step <= rest)
            up[0, row, column], rest = math.copysign(part, value), rest - part
    scales = torch.full((1, 16, 1), 0x38, dtype=torch.uint8)
    gate = Projection(codes=e2m1.pack(e2m1.encode(torch.full((1, 16, 16), 4.0)), 8), scales=scales)
    return (gate, Projection(codes=e2m1.pack(e2m1.encode(up), 8), scales=scales)), {
        "x_codes": e2m1.pack(torch.full((1, 16), 2, dtype=torch.uint8), code_pitch(16)),
        "x_scales": torch.full((1, 1), 0x38, dtype=torch.uint8),
        "x_scale": ONE,
        "h_scale": ONE,
        "w1_alpha": torch.tensor([[1.0, 1 / 256]]),
    }


def tiny_block() -> Tensor:
    """FR-04: a block of magnitude 1 beside one of 1e-6, bf16 ``[1, 32]``."""
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, 0], x[0, 16] = 1.0, 1e-6
    return x


@dataclass(frozen=True, kw_only=True)
class Activated:
    """One expert with ``gate`` and ``up`` in the first column of W1, one token with ``token`` in its first element, and
    the first activated value that gemm1 must write."""

    gate: float
    up: float
    token: float
    expected: float
    activation: Activation = SWIGLU
    alpha: tuple[float, float] = (1.0, 1.0)
    weight: float = 1.0
    place: RouterWeight = RouterWeight.COMBINE
    w4a4: bool = False
    x_scale: tuple[float, float] = (1.0, 1.0)

    def case(self, kind: type[AnyCase], **fields: object) -> AnyCase:
        """The layer on a target."""
        return one_expert(
            kind, 1, 16, intermediate=32, w4a4=self.w4a4, activation=self.activation,
            numerics=Numerics(router_weight=self.place), **fields,
        )  # fmt: skip

    @property
    def halves(self) -> Halves:
        """W1."""
        return (constant_projection(self.gate, 1, 32, 16), constant_projection(self.up, 1, 32, 16))

    def inputs(self) -> dict[str, Tensor]:
        """Everything else that the layer reads until gemm1."""
        x = torch.zeros(1, 16, dtype=torch.bfloat16)
        x[0, 0] = self.token
        return {
            "x": x,
            "x_scale": torch.tensor([self.x_scale]),
            "topk_ids": torch.zeros(1, 1, dtype=torch.int64),
            "topk_weights": torch.tensor([[self.weight]]),
            "w1_alpha": torch.tensor([self.alpha]),
        }


def _silu(value: float) -> float:
    return value / (1 + math.exp(-value))


_GATE, _UP = 6 * 8192 * 3.85e-5, 6 * 8192 * 4.83e-5
ACTIVATED = {
    "fr_18": Activated(gate=2.0, up=-1.0, token=1.0, expected=-1.7616),
    "fr_19": Activated(gate=6.0, up=6.0, token=8192.0, alpha=(3.85e-5, 4.83e-5), expected=_silu(_GATE) * _UP),
    "fr_44_oai": Activated(gate=1.0, up=1.0, token=10.0, activation=OAI, expected=55.9996),
    "fr_44_clamp": Activated(gate=1.0, up=-1.5, token=20.0, activation=CLAMP, expected=-99.995),
    "fr_45_w4a16": Activated(gate=1.0, up=1.0, token=1.0, weight=0.5, place=RouterWeight.INPUT, expected=0.155615),
    # Under encode scale 12 the value 0.5 is code 6 with block scale 1: no rounding plays a part.
    "fr_45_w4a4": Activated(
        gate=1.0,
        up=1.0,
        token=1.0,
        weight=0.5,
        place=RouterWeight.INPUT,
        expected=0.155615,
        w4a4=True,
        x_scale=(12.0, 1 / 12),
    ),
}
"""By field case: gate and up in their places; each half its own second-level scale; every constant of a clamped
activation; the router weight on the input, once and before quantising."""
