"""Layers small enough to test, with inputs whose matrix products are exact in fp32 whatever the order of the sum.

Codes are any, block scales are 1 or 2, tokens are halves up to 8: each product is a multiple of 1/4 and every sum
stays below 2^24 quarters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moegen.codegen.pipelines import Shape, pipeline_ops
from moegen.core.abi import BLOCK, Dims, code_pitch
from moegen.core.enums import (
    ActFormat,
    ActivationKind,
    ActScale,
    CombineMode,
    Epilogue,
    OpKind,
    ScaleLayout,
    Target,
    TokenDtype,
)
from moegen.core.ops import Activation, Numerics, OpSpec
from moegen.numerics import e2m1
from moegen.numerics.layouts import scale_layout
from moegen.numerics.reference import Routing, route
from moegen.numerics.rounding import TORCH_DTYPE
from moegen.spec.models import (
    Activations,
    ActivationScale,
    ActivationSpec,
    Geometry,
    LayerSpec,
    NumericsSpec,
    ScaleLayouts,
    Weights,
)

LINEAR, SWIZZLED = ScaleLayout.LINEAR, ScaleLayout.SWIZZLE_128X4
STATIC, DYNAMIC = ActScale.STATIC, ActScale.DYNAMIC_TENSOR
PACK = "rows8"
DEFAULT_NUMERICS = Numerics()
#: Every activation, with constants that no two share and that fp32 does not hold exactly.
ACTIVATIONS = {
    "swiglu": Activation(kind=ActivationKind.SWIGLU),
    "swiglu_oai": Activation(kind=ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.1, limit=2.3),
    "swiglu_clamp": Activation(kind=ActivationKind.SWIGLU_CLAMP, limit=1.9),
    "swiglustep": Activation(kind=ActivationKind.SWIGLUSTEP, limit=1.7),
    "situ": Activation(kind=ActivationKind.SITU, beta=1.3),
    "situ_bounded": Activation(kind=ActivationKind.SITU, beta=1.3, linear_beta=2.7),
    "geglu_tanh": Activation(kind=ActivationKind.GEGLU_TANH),
    "relu2": Activation(kind=ActivationKind.RELU2),
    "silu": Activation(kind=ActivationKind.SILU),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer and one batch. No two of H, I, 2I, E and T·k are equal.

    ``routing``: ``mixed`` (ids -1, below and past this rank's experts, and an expert without rows), ``hot`` (all on the
    last expert), ``none`` (no valid slot), ``uniform`` (each token takes k different experts of this rank).
    """

    hidden: int = 80
    intermediate: int = 144
    experts: int = 5
    top_k: int = 3
    tokens: int = 11
    row_tile: int = 4
    first_expert: int = 3
    routing: str = "mixed"
    activation: Activation = ACTIVATIONS["swiglu"]
    w4a4: bool = True
    epilogue: Epilogue = Epilogue.COMPACT
    numerics: Numerics = DEFAULT_NUMERICS
    dtype: TokenDtype = TokenDtype.BF16
    bias: bool = False
    row_scales: ScaleLayout = LINEAR
    weight_scales: ScaleLayout = LINEAR
    x_scale: ActScale = STATIC
    h_scale: ActScale = STATIC
    combine: CombineMode = CombineMode.ORDERED
    fused_gather: bool = True
    seed: int = 1

    @property
    def gated(self) -> bool:
        """True when W1 has two halves."""
        return self.activation.kind.gated

    def spec(self) -> LayerSpec:
        """The case as a spec, so that its ops are those that planning makes."""
        constants = {name: getattr(self.activation, name) for name in ("alpha", "beta", "limit", "linear_beta")}
        scale = ActivationScale(gemm1=self.x_scale, gemm2=self.h_scale) if self.w4a4 else None
        return LayerSpec(
            name="case",
            source="test",
            geometry=Geometry(
                hidden=self.hidden,
                intermediate=self.intermediate,
                experts=max(self.experts, self.top_k),
                local_experts=self.experts,
                top_k=self.top_k,
            ),
            activation=ActivationSpec(kind=self.activation.kind, **constants),
            weights=Weights(bias=self.bias),
            activations=Activations(
                format=ActFormat.NVFP4 if self.w4a4 else ActFormat.BF16, dtype=self.dtype, activation_scale=scale
            ),
            scale_layout=ScaleLayouts(activations=self.row_scales, weights=self.weight_scales),
            numerics=NumericsSpec(
                **{name: getattr(self.numerics, name) for name in type(self.numerics).__dataclass_fields__}
            ),
            epilogues=(self.epilogue,),
            combine=(self.combine,),
            targets=(Target.CPU,),
        )

    def pipeline(self) -> tuple[OpSpec, ...]:
        """The ops that planning makes of the case, in launch order."""
        shape = Shape(
            epilogue=self.epilogue, combine=self.combine, row_tile=self.row_tile, fused_gather=self.fused_gather
        )
        return pipeline_ops(self.spec(), shape, (PACK, PACK))

    def ops(self) -> dict[OpKind, OpSpec]:
        """The ops by kind; where a kind occurs twice (quantize), the first."""
        return {op.kind: op for op in reversed(self.pipeline())}

    def row_quantizer(self) -> OpSpec:
        """The quantize op that reads ``h_rows`` (compact, W4A4)."""
        return next(op for op in self.pipeline() if op.kind is OpKind.QUANTIZE and not op.gather)

    def dims(self) -> Dims:
        """Sizes of the batch."""
        return Dims(
            tokens=self.tokens,
            top_k=self.top_k,
            experts=self.experts,
            hidden=self.hidden,
            intermediate=self.intermediate,
            row_tile=self.row_tile,
        )


def generator(case: Case, salt: int) -> torch.Generator:
    """Random numbers of one purpose of one case."""
    return torch.Generator().manual_seed(1000 * case.seed + salt)


def topk_ids(case: Case) -> Tensor:
    """Global expert ids, int64 ``[T, k]``."""
    if case.routing == "none":
        return torch.full((case.tokens, case.top_k), -1)
    if case.routing == "hot":
        return torch.full((case.tokens, case.top_k), case.first_expert + case.experts - 1)
    if case.routing == "uniform":
        drawn = torch.rand(case.tokens, case.experts, generator=generator(case, 1))
        return drawn.argsort(dim=1)[:, : case.top_k] + case.first_expert
    choices = [case.first_expert + expert for expert in range(case.experts) if case.experts == 1 or expert != 1]
    choices += [-1, case.first_expert - 1, case.first_expert + case.experts, 2**40]
    picks = torch.randint(0, len(choices), (case.tokens, case.top_k), generator=generator(case, 1))
    return torch.tensor(choices)[picks]


def token_values(case: Case, rows: int, columns: int, salt: int) -> Tensor:
    """Halves from -8 to 8 in the token dtype, ``[rows, columns]``."""
    halves = torch.randint(-16, 17, (rows, columns), generator=generator(case, salt))
    return (halves / 2).to(TORCH_DTYPE[case.dtype])


def codes(rows: tuple[int, ...], columns: int, source: torch.Generator) -> Tensor:
    """Any codes, packed at the code pitch: uint8 ``[*rows, pitch]``."""
    drawn = torch.randint(0, 16, (*rows, columns), generator=source, dtype=torch.uint8)
    return e2m1.pack(drawn, code_pitch(columns))


def unit_scales(rows: tuple[int, ...], columns: int, layout: ScaleLayout, source: torch.Generator) -> Tensor:
    """Scale bytes of 1 and 2, in ``layout``."""
    drawn = torch.randint(0, 2, (*rows, columns // BLOCK), generator=source)
    return scale_layout(layout).pack(torch.tensor([0x38, 0x40], dtype=torch.uint8)[drawn])


def second_level(case: Case, entries: int, salt: int) -> Tensor:
    """Static (encode, decode) pairs that are no powers of two: fp32 ``[entries, 2]``."""
    decode = torch.rand(entries, generator=generator(case, salt)) * 0.02 + 0.01
    return torch.stack((1 / decode, decode), dim=-1)


def buffers(case: Case) -> dict[str, Tensor]:
    """Everything that some op of the case reads, route's outputs included.

    Experts without rows have NaN scales, alphas and biases; rows past the last padded row hold 0xFF bytes.
    """
    ids = topk_ids(case)
    routing = route(ids, experts=case.experts, row_tile=case.row_tile, first_expert=case.first_expert)
    made = {
        "topk_ids": ids,
        "topk_weights": torch.rand(ids.shape, generator=generator(case, 2)) + 0.1,
        "x": token_values(case, case.tokens, case.hidden, 3),
        "x_scale": second_level(case, 1, 4),
        "h_scale": second_level(case, 1 if case.h_scale is DYNAMIC else case.experts, 5),
        **routing.buffers(),
        **_rows(case, "x", case.hidden, routing, 6),
        **_rows(case, "h", case.intermediate, routing, 7),
        **_bank(case, "w1", case.intermediate * (2 if case.gated else 1), case.hidden, routing, 8),
        **_bank(case, "w2", case.hidden, case.intermediate, routing, 9),
    }
    dims = case.dims()
    made["h_pair"] = token_values(case, dims["R"], 2 * case.intermediate, 10)
    made["out_rows"] = token_values(case, dims["R"], case.hidden, 11)
    made["y_acc"] = torch.randn(case.tokens, case.hidden, generator=generator(case, 12))
    for name in ("h_pair", "out_rows"):
        _finish_rows(made[name], routing)
    return made


def _rows(case: Case, name: str, columns: int, routing: Routing, salt: int) -> dict[str, Tensor]:
    """Rows of a gemm in both formats."""
    rows, source = case.dims()["R"], generator(case, salt)
    made = {
        f"{name}_rows": token_values(case, rows, columns, salt),
        f"{name}_codes": codes((rows,), columns, source),
    }
    scales = unit_scales((rows,), columns, LINEAR, source)
    for tensor in (*made.values(), scales):
        _finish_rows(tensor, routing)
    return made | {f"{name}_scales": scale_layout(case.row_scales).pack(scales)}


def _finish_rows(rows: Tensor, routing: Routing) -> None:
    """Padding rows are 0, as producers leave them; what lies past the last padded row is stale."""
    rows[routing.row_slot < 0] = 0
    rows[int(routing.totals[1]) :].view(torch.uint8).fill_(0xFF)


def _bank(case: Case, name: str, rows: int, columns: int, routing: Routing, salt: int) -> dict[str, Tensor]:
    source, experts = generator(case, salt), case.experts
    halves = 2 if name == "w1" and case.gated else 1
    magnitude = 1.0 if case.w4a4 else 0.02
    made = {
        f"{name}_codes": codes((experts, rows), columns, source),
        f"{name}_scales": unit_scales((experts, rows), columns, case.weight_scales, source),
        f"{name}_alpha": (torch.rand(experts, halves, generator=source) + 0.5) * magnitude,
        f"{name}_bias": torch.randn(experts, rows, generator=source),
    }
    idle = routing.expert_rows == 0
    made[f"{name}_scales"][idle] = 0x7F
    made[f"{name}_alpha"][idle] = float("nan")
    made[f"{name}_bias"][idle] = float("nan")
    return made
