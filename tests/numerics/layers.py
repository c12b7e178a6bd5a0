"""Small layers for tests of the reference: ops, packed buffers, and the same layer slot by slot without any padding."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from moegen.core.enums import (
    ActFormat,
    ActivationKind,
    ActScale,
    CombineMode,
    Epilogue,
    OpKind,
    RouterWeight,
    ScaleLayout,
    TokenDtype,
)
from moegen.core.ops import Activation, Numerics, OpSpec
from moegen.numerics import LayerWeights, dynamic_pair, exact, pair_from_decode, quantize_rows
from moegen.numerics.activations import gated_product, ungated_value
from moegen.numerics.elementary import fma
from moegen.numerics.layouts import Projection, fuse_rows, weight_pack
from moegen.numerics.quantize import Quantized, unscaled_values
from moegen.numerics.rounding import round_at, to_token

PACK = "rows8"
SWIGLU = Activation(kind=ActivationKind.SWIGLU)
DEFAULT_NUMERICS = Numerics()


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer and a batch. No two of H, I, 2I, E, T·k are equal.

    ``single`` gives W2 one non-zero weight per row, so that the whole layer is exact.
    """

    hidden: int = 80
    intermediate: int = 48
    experts: int = 5
    top_k: int = 3
    tokens: int = 11
    row_tile: int = 4
    first_expert: int = 2
    activation: Activation = SWIGLU
    w4a4: bool = True
    epilogue: Epilogue = Epilogue.COMPACT
    combine: CombineMode = CombineMode.ORDERED
    numerics: Numerics = DEFAULT_NUMERICS
    dtype: TokenDtype = TokenDtype.BF16
    bias: bool = True
    row_scales: ScaleLayout = ScaleLayout.SWIZZLE_128X4
    weight_scales: ScaleLayout = ScaleLayout.LINEAR
    act_scale: ActScale = ActScale.STATIC
    fused_gather: bool = True
    single: bool = True
    seed: int = 0

    def change(self, **fields: object) -> "Layer":
        """A copy with other fields."""
        return replace(self, **fields)  # pyright: ignore[reportArgumentType]

    @property
    def gated(self) -> bool:
        return self.activation.kind.gated

    def generator(self, salt: int) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * self.seed + salt)

    @cached_property
    def weights(self) -> LayerWeights:
        halves = 2 if self.gated else 1
        make = exact.single_projection if self.single else exact.exact_projection
        alpha = torch.rand(self.experts, halves, generator=self.generator(1)) * 0.02 + 0.005
        return LayerWeights(
            w1=tuple(
                exact.exact_projection(self.experts, self.intermediate, self.hidden, self.seed + half)
                for half in range(halves)
            ),
            w2=make(self.experts, self.hidden, self.intermediate, self.seed + 7),
            w1_alpha=alpha,
            w2_alpha=torch.rand(self.experts, 1, generator=self.generator(2)) * 0.1 + 0.05,
            w1_bias=tuple(
                torch.randn(self.experts, self.intermediate, generator=self.generator(3)) for _ in range(halves)
            )
            if self.bias
            else None,
            w2_bias=torch.randn(self.experts, self.hidden, generator=self.generator(4)) if self.bias else None,
        )

    @cached_property
    def x(self) -> Tensor:
        return exact.exact_tokens(self.tokens, self.hidden, self.seed + 11, self.dtype)

    @cached_property
    def topk_ids(self) -> Tensor:
        """Local and foreign experts, -1 among them; local expert 1 gets none."""
        choices = torch.arange(self.first_expert - 1, self.first_expert + self.experts + 1)
        choices = choices[choices != self.first_expert + 1]
        drawn = choices[torch.randint(0, len(choices), (self.tokens, self.top_k), generator=self.generator(5))]
        dropped = torch.rand(drawn.shape, generator=self.generator(6)) < 0.1
        return torch.where(dropped, -1, drawn)

    @cached_property
    def topk_weights(self) -> Tensor:
        return torch.rand(self.tokens, self.top_k, generator=self.generator(8)) + 0.1

    @cached_property
    def x_scale(self) -> Tensor:
        return pair_from_decode(torch.tensor([0.03125]))

    @cached_property
    def h_scale(self) -> Tensor:
        return pair_from_decode(torch.rand(self.experts, generator=self.generator(9)) * 0.01 + 0.002)

    def ops(self) -> tuple[OpSpec, ...]:
        """The pipeline of the layer, as docs/architecture.md draws it."""
        common = OpSpec(
            kind=OpKind.ROUTE,
            experts=self.experts,
            top_k=self.top_k,
            hidden=self.hidden,
            intermediate=self.intermediate,
            dtype=self.dtype,
            act_format=ActFormat.NVFP4 if self.w4a4 else ActFormat.BF16,
            scale_layout=self.row_scales,
            weight_scale_layout=self.weight_scales,
            row_tile=self.row_tile,
            numerics=self.numerics,
            weight_pack=PACK,
        )
        scale = self.act_scale if self.w4a4 else None
        gathers = not self.w4a4 and self.fused_gather
        fused = self.combine is CombineMode.ATOMIC
        ops = [common]
        if self.w4a4:
            ops.append(replace(common, kind=OpKind.QUANTIZE, gather=True, act_scale=scale))
        elif not gathers:
            ops.append(replace(common, kind=OpKind.GATHER, gather=True))
        ops.append(
            replace(
                common,
                kind=OpKind.GEMM1,
                epilogue=self.epilogue,
                activation=self.activation,
                bias=self.bias,
                gather=gathers,
            )
        )
        if self.epilogue is Epilogue.INTERLEAVED:
            kind = OpKind.DEINTERLEAVE_QUANTIZE if self.w4a4 else OpKind.DEINTERLEAVE
            ops.append(replace(common, kind=kind, act_scale=scale))
        elif self.w4a4 and self.epilogue is Epilogue.COMPACT:
            ops.append(replace(common, kind=OpKind.QUANTIZE, act_scale=scale))
        ops.append(replace(common, kind=OpKind.GEMM2, bias=self.bias, act_scale=scale, fused_combine=fused))
        ops.append(replace(common, kind=OpKind.COMBINE, combine=self.combine))
        return tuple(ops)

    def buffers(self) -> dict[str, Tensor]:
        """The caller's tensors, the packed weights and the static scales."""
        weights, pack = self.weights, weight_pack(PACK)
        made = {"topk_ids": self.topk_ids, "topk_weights": self.topk_weights, "x": self.x}
        for layer, halves in (("w1", weights.w1), ("w2", (weights.w2,))):
            packed = pack.pack(halves, self.weight_scales)
            made |= {f"{layer}_{suffix}": tensor for suffix, tensor in packed.items()}
        made |= {"w1_alpha": weights.w1_alpha, "w2_alpha": weights.w2_alpha}
        if weights.w1_bias is not None and weights.w2_bias is not None:
            made |= {"w1_bias": fuse_rows(weights.w1_bias, dim=-1), "w2_bias": weights.w2_bias}
        if self.act_scale is ActScale.STATIC:
            made |= {"x_scale": self.x_scale, "h_scale": self.h_scale}
        return made


def gemm2_input(layer: Layer, token: int, j: int, x_pair: Tensor) -> Tensor | None:
    """fp32 ``[I]`` that one slot's gemm2 row is made of, before rounding to a stored form; None for a foreign slot."""
    expert = int(layer.topk_ids[token, j]) - layer.first_expert
    if not 0 <= expert < layer.experts:
        return None
    weight, numerics = layer.topk_weights[token, j], layer.numerics
    row = layer.x[token].float()
    if numerics.router_weight is RouterWeight.INPUT:
        row = row * weight
        row = row if layer.w4a4 else to_token(row, layer.dtype).float()
    row, decode = as_operand(layer, row, x_pair)
    values = [
        matvec(layer, half, row, expert, layer.weights.w1_alpha[expert, index], decode, layer.weights.w1_bias, index)
        for index, half in enumerate(layer.weights.w1)
    ]
    if layer.gated:
        product = gated_product(layer.activation, values[0], values[1], numerics.gate_round)
    else:
        product = ungated_value(layer.activation, values[0])
    return product * weight if numerics.router_weight is RouterWeight.PRE_QUANT else product


def as_operand(layer: Layer, row: Tensor, pair: Tensor) -> tuple[Tensor, Tensor | None]:
    """(code · S, p) of a quantised row, or the row itself."""
    if not layer.w4a4:
        return row, None
    return unscaled_values(quantize_rows(row, pair, layer.numerics.contract)), pair[1]


def matvec(layer, half: Projection, row, expert, alpha, decode, bias, index) -> Tensor:
    """Steps 1 to 3 for one row."""
    matrix = unscaled_values(Quantized(codes=half.codes[expert], scales=half.scales[expert]))
    acc = torch.tensor([(line.double() * row.double()).sum().item() for line in matrix], dtype=torch.float64).float()
    value = acc * (alpha if decode is None else alpha * decode)
    return value if bias is None else value + bias[index][expert]


def stored(layer: Layer, value: Tensor) -> Tensor:
    """fp32 value after the rounding of the form that gemm1's epilogue stores."""
    if layer.epilogue is Epilogue.FUSED_FP4:
        return round_at(value, layer.numerics.pre_quant_round)
    return to_token(value, layer.dtype).float()


def slotwise(layer: Layer) -> Tensor:
    """``y [T, H]`` computed slot by slot, with static scales or the dynamic ones of the real rows."""
    x_pair, h_pairs = dynamic_scales(layer) if layer.act_scale is ActScale.DYNAMIC_TENSOR else (layer.x_scale[0], None)
    y = torch.zeros(layer.tokens, layer.hidden)
    for token in range(layer.tokens):
        for j in range(layer.top_k):
            product = gemm2_input(layer, token, j, x_pair)
            if product is None:
                continue
            expert = int(layer.topk_ids[token, j]) - layer.first_expert
            pair = layer.h_scale[expert] if h_pairs is None else h_pairs
            row, decode = as_operand(layer, stored(layer, product), pair)
            bias = None if layer.weights.w2_bias is None else (layer.weights.w2_bias,)
            out = matvec(layer, layer.weights.w2, row, expert, layer.weights.w2_alpha[expert, 0], decode, bias, 0)
            weight = layer.topk_weights[token, j].expand(layer.hidden)
            rounded = to_token(out, layer.dtype).float()
            at_combine = layer.numerics.router_weight is RouterWeight.COMBINE
            y[token] = fma(weight.contiguous(), rounded, y[token]) if at_combine else y[token] + rounded
    return to_token(y, layer.dtype)


def dynamic_scales(layer: Layer) -> tuple[Tensor, Tensor]:
    """Second-level scales of the real rows of gemm1 and of gemm2."""
    local = (layer.topk_ids >= layer.first_expert) & (layer.topk_ids < layer.first_expert + layer.experts)
    tokens, slots = local.nonzero(as_tuple=True)
    rows = layer.x[tokens].float()
    if layer.numerics.router_weight is RouterWeight.INPUT:
        rows = rows * layer.topk_weights[tokens, slots][:, None]
    x_pair = dynamic_pair(rows, layer.numerics.contract)[0]
    products = [gemm2_input(layer, int(t), int(j), x_pair) for t, j in zip(tokens, slots, strict=True)]
    hidden = torch.stack([stored(layer, product) for product in products if product is not None])
    return x_pair, dynamic_pair(hidden, layer.numerics.contract)[0]
