"""Tuning inputs that keep the layer's contract: real NVFP4 blocks, realistic scales, legal and distinct expert ids.

Zeros would run at another clock than real data, and random bytes are not NVFP4: a random scale byte may be NaN, and a
random block has no element near the top of its range. So blocks are drawn from a pool that was really quantised.
"""

import hashlib
import math
from dataclasses import dataclass, replace

import torch

from moegen.core.abi import BLOCK
from moegen.core.enums import ActScale, Contract, TokenDtype
from moegen.core.package import Pipeline
from moegen.numerics.quantize import dynamic_pair, quantize_rows
from moegen.runtime.checkpoint import ExpertWeights, Projection
from moegen.runtime.kernels import KernelBook
from moegen.runtime.workspace import main_op
from moegen.tune.routing import Routing, busiest_rank_first, draw_ids, draw_weights

_POOL = 4096
_BLOCK_SPREAD = 0.4
"""Standard deviation of the log of a block's magnitude, so that scale bytes span about two binades."""
_EXPERT_SPREAD = 0.2
_CHANNEL_SPREAD = 0.5
_X_AMAX, _H_AMAX = 12.0, 8.0
_RANGE = 2688.0
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What inputs depend on: sizes in elements, gate, bias, token dtype, whether rows are quantised, and whether their
    scales are static. ``layer_experts``: experts of all ranks together; None: ``experts``, those of one rank."""

    experts: int
    top_k: int
    hidden: int
    intermediate: int
    gated: bool
    bias: bool
    dtype: TokenDtype
    w4a4: bool
    static_scales: bool
    layer_experts: int | None = None


@dataclass(frozen=True, kw_only=True)
class TokenInputs:
    """One call's tensors: ``x [T, H]``, ``topk_ids [T, k]`` int64, ``topk_weights [T, k]`` fp32, and the seed that
    made them."""

    x: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor
    seed: int

    def active_experts(self, experts: int) -> int:
        """Experts with at least one slot, of a rank that holds the first ``experts``."""
        return int(self.topk_ids[(self.topk_ids >= 0) & (self.topk_ids < experts)].unique().numel())

    def to(self, device: str) -> "TokenInputs":
        """The same tensors on another device."""
        return replace(
            self,
            x=self.x.to(device),
            topk_ids=self.topk_ids.to(device),
            topk_weights=self.topk_weights.to(device),
        )

    def rows(self, chosen: torch.Tensor) -> "TokenInputs":
        """Some of the tokens, by index."""
        return replace(self, x=self.x[chosen], topk_ids=self.topk_ids[chosen], topk_weights=self.topk_weights[chosen])


def shape_of(pipeline: Pipeline, layer_experts: int | None = None) -> LayerShape:
    """The layer that a pipeline serves, as one rank of ``layer_experts`` experts (its own alone by default)."""
    op = main_op(pipeline)
    scales = [step.op.act_scale for step in pipeline.steps if step.op.act_scale is not None]
    return LayerShape(
        experts=op.experts,
        top_k=op.top_k,
        hidden=op.hidden,
        intermediate=op.intermediate,
        gated=op.gated,
        bias=op.bias,
        dtype=op.dtype,
        w4a4=op.w4a4,
        static_scales=op.w4a4 and (not scales or ActScale.STATIC in scales),
        layer_experts=layer_experts,
    )


def package_shape(book: KernelBook) -> LayerShape:
    """The layer of a built package; raises NotBuilt when none of its pipelines is built."""
    return shape_of(book.built()[0], book.package.layer["geometry"]["experts"])


def make_ids(shape: LayerShape, routing: Routing, tokens: int, seed: int) -> torch.Tensor:
    """Expert ids ``[tokens, top_k]`` int64 of the whole layer, as its busiest rank would number them: that rank holds
    experts 0, 1, …, and decides how long an expert-parallel layer takes."""
    experts = shape.layer_experts or shape.experts
    return busiest_rank_first(draw_ids(routing, tokens, shape.top_k, experts, seed), experts, shape.experts)


def make_weights(shape: LayerShape, seed: int, device: torch.device = _CPU) -> ExpertWeights:
    """Expert weights of about unit gain, in a checkpoint's canonical form; equal arguments give equal bytes.

    Gate and up have different second-level scales, as most checkpoints do. Codes and block scales are drawn and stay
    on ``device``, since a large layer's take minutes on a CPU; the rest is small and lies on the CPU.
    """
    gate = _projection(shape, "gate", seed, device) if shape.gated else None
    up, down = (_projection(shape, name, seed, device) for name in ("up", "down"))
    return ExpertWeights(gate=gate, up=up, down=down)


def make_tokens(
    shape: LayerShape, tokens: int, routing: Routing, seed: int, device: torch.device = _CPU
) -> TokenInputs:
    """Hidden states with channels of different magnitude, routed by ``routing``, on ``device``; equal arguments give
    equal values."""
    generator = _generator(seed, "x", tokens, device)
    channels = torch.exp(_CHANNEL_SPREAD * torch.randn(shape.hidden, generator=_generator(seed, "channels", 0)))
    dtype = torch.float16 if shape.dtype is TokenDtype.FP16 else torch.bfloat16
    label = f"{routing.label}-{tokens}"
    values = torch.randn(tokens, shape.hidden, generator=generator, device=device)
    return TokenInputs(
        x=values.mul_(channels.to(device)).to(dtype),
        topk_ids=make_ids(shape, routing, tokens, _seed(seed, "ids", label)).to(device),
        topk_weights=draw_weights(tokens, shape.top_k, _seed(seed, "weights", label)).to(device),
        seed=seed,
    )


def _projection(shape: LayerShape, name: str, seed: int, device: torch.device) -> Projection:
    rows, columns = (shape.hidden, shape.intermediate) if name == "down" else (shape.intermediate, shape.hidden)
    generator = _generator(seed, name, columns)
    codes, scales, decode = _pool(generator)
    picked = torch.empty(shape.experts, rows, columns // BLOCK, dtype=torch.int16, device=device)
    picked.random_(_POOL, generator=_generator(seed, f"{name} blocks", columns, device))
    spread = torch.exp(_EXPERT_SPREAD * torch.randn(shape.experts, generator=generator))
    amax = _H_AMAX if name == "down" else _X_AMAX
    return Projection(
        codes=_pick(codes, picked).flatten(-2),
        scales=_pick(scales, picked),
        second=decode / math.sqrt(columns) * spread,
        input=torch.full((shape.experts,), amax / _RANGE) / spread if shape.static_scales else None,
        bias=0.1 * torch.randn(shape.experts, rows, generator=generator) if shape.bias else None,
    )


def _pool(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Quantised blocks: codes ``[P, 8]``, scale bytes ``[P]``, and the decode scale under which their variance is
    about 1."""
    magnitude = torch.exp(_BLOCK_SPREAD * torch.randn(_POOL, 1, generator=generator))
    blocks = torch.randn(_POOL, BLOCK, generator=generator) * magnitude
    pair = dynamic_pair(blocks, Contract.TE)
    quantized = quantize_rows(blocks, pair, Contract.TE)
    return quantized.codes[:, : BLOCK // 2].contiguous(), quantized.scales[:, 0].contiguous(), float(pair[0, 1])


def _pick(pool: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
    """``pool[picked]``, an expert at a time: indices need 64 bits only where they are used."""
    pool = pool.to(picked.device)
    chosen = pool.new_empty(*picked.shape, *pool.shape[1:])
    for expert, indices in enumerate(picked):
        chosen[expert] = pool[indices.long()]
    return chosen


def _generator(seed: int, name: str, size: int, device: torch.device = _CPU) -> torch.Generator:
    return torch.Generator(device).manual_seed(_seed(seed, name, str(size)))


def _seed(seed: int, name: str, detail: str) -> int:
    """Independent streams for each tensor, from one seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}/{detail}".encode()).digest()[:7], "big")
