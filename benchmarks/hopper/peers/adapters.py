"""Adapters of the NVFP4 W4A16 peers, imported from their packages; a missing one is an error that the runner records.

``setup`` packs weights once; ``make`` binds one cell and returns callables per stage, and the outputs."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.hopper.common import DEVICE, Cell, Nvfp4
from benchmarks.hopper.configs import SHAPES
from benchmarks.hopper.peers.mxfp4 import TritonKernels

Stages = dict[str, list[Callable[[], Any]]]
STAGES = ("route", "l1", "act", "l2", "sum", "moe")
BF16 = torch.bfloat16


@triton.jit
def _silu_mul(pairs, out, half, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < half
    gate = tl.load(pairs + row * 2 * half + column, inside, 0.0).to(tl.float32)
    up = tl.load(pairs + row * 2 * half + half + column, inside, 0.0).to(tl.float32)
    tl.store(out + row * half + column, (gate / (1 + tl.exp(-gate)) * up).to(out.dtype.element_ty), inside)


@triton.jit
def _weighted_sum(rows, weights, out, width, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(TOP_K):
        value = tl.load(rows + (token * TOP_K + k) * width + column, inside, 0.0).to(tl.float32)
        total += value * tl.load(weights + token * TOP_K + k)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), inside)


def silu_mul(pairs: Tensor, out: Tensor) -> None:
    """out = silu(first half) * second half: for peers that have no such kernel of their own."""
    half = out.shape[-1]
    block = min(1024, triton.next_power_of_2(half))
    _silu_mul[(out.shape[0], triton.cdiv(half, block))](pairs, out, half, BLOCK=block, num_warps=4)


def weighted_sum(rows: Tensor, weights: Tensor, out: Tensor, top_k: int) -> None:
    """out[t] = sum over k of weights[t, k] * rows[t * top_k + k]."""
    width = out.shape[-1]
    block = 1024 if out.shape[0] >= 64 else 512
    grid = (out.shape[0], triton.cdiv(width, block))
    _weighted_sum[grid](rows, weights, out, width, TOP_K=top_k, BLOCK=block, num_warps=4)


def vllm_ops() -> Any:
    """``torch.ops._moe_C`` of an installed vLLM: the stable-ABI extension that VLLM_MOE_SO names."""
    ctypes.CDLL(os.environ["VLLM_MOE_SO"], ctypes.RTLD_GLOBAL)
    return torch.ops._moe_C


def align_blocks(ids: Tensor, experts: int, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """vLLM's moe_align_block_size: sorted slots, expert of each block, padded slot count."""
    slots = ids.numel()
    most = slots + experts * (block - 1)
    if slots < experts:
        most = min(slots * block, most)
    order = torch.empty(most, dtype=torch.int32, device=DEVICE)
    owners = torch.empty(-(-most // block), dtype=torch.int32, device=DEVICE)
    count = torch.empty(1, dtype=torch.int32, device=DEVICE)
    vllm_ops().moe_align_block_size(ids, experts, block, order, owners, count, None)
    return order, owners, count


class Permuted:
    """vLLM's moe_permute and moe_unpermute over static buffers."""

    def __init__(self, ids: Tensor, experts: int, width: int) -> None:
        slots = ids.numel()
        self.ids, self.experts, self.top_k = ids, experts, ids.shape[1]
        self.slots = torch.arange(slots, dtype=torch.int32, device=DEVICE).view_as(ids)
        self.rows = torch.empty((slots, width), dtype=BF16, device=DEVICE)
        self.first = torch.empty(experts + 1, dtype=torch.int64, device=DEVICE)
        self.inverse = torch.empty_like(ids)
        self.index = torch.empty(slots, dtype=torch.int32, device=DEVICE)

    def permute(self, x: Tensor) -> None:
        maps = (self.rows, self.first, self.inverse, self.index)
        vllm_ops().moe_permute(x, self.ids, self.slots, None, self.experts, self.experts, self.top_k, *maps)

    def unpermute(self, rows: Tensor, weights: Tensor, out: Tensor) -> None:
        vllm_ops().moe_unpermute(rows, weights, self.inverse.flatten(), self.first, self.top_k, out)


class Humming:
    """humming-kernels: ``indexed`` (vLLM's default) or ``grouped_contiguous`` after a permute; its own heuristics."""

    def __init__(self, gemm: str) -> None:
        self.gemm = gemm

    def setup(self, shape: str, weights: tuple[Nvfp4, Nvfp4]) -> None:
        from humming import dtypes
        from humming.schema import HummingInputSchema
        from humming.schema.modelopt import ModeloptNvfp4WeightSchema
        from humming.transform import prepare_layer_config, transform_humming_tensors
        from humming.tune import get_heuristics_config

        self.shape = shape
        self.layers: list[tuple[Any, Any, Any]] = []
        device = torch.device("cuda", 0)
        for w in weights:
            given = {"weight": w.codes, "weight_scale": w.scale, "weight_scale_2": w.gscale[:, None]}
            schema, tensors = ModeloptNvfp4WeightSchema().convert_humming(
                given, [w.N], [w.K], BF16, num_experts=w.E, device=device
            )
            config = prepare_layer_config(
                w.N,
                w.K,
                schema,
                HummingInputSchema(a_dtype=dtypes.bfloat16),
                num_experts=w.E,
                pad_n_to_multiple=256,
                pad_k_to_multiple=128,
                torch_dtype=BF16,
                device=device,
                tensors=tensors,
            )
            packed = transform_humming_tensors(config, tensors)
            tuned = get_heuristics_config(layer_config=config, gemm_type=self.gemm, device=device)
            self.layers.append((config, packed, tuned))
            del tensors
            torch.cuda.empty_cache()
        self.locks = torch.zeros(132 * 8, dtype=torch.int32, device=DEVICE)
        self.compute = json.dumps({"use_batch_invariant": False, "use_f16_accum": False, "gemm_type": self.gemm})

    def _pick(self, tuned: Any, tokens: int) -> dict[str, Any]:
        rows = tokens * SHAPES[self.shape].top_k
        return next(config for low, high, config in tuned if low < rows <= high)

    def make(self, cell: Cell) -> tuple[Stages, list[Tensor]]:
        from humming.forward import humming_forward, may_process_input

        sizes = SHAPES[self.shape]
        top_k, rows = sizes.top_k, cell.tokens * sizes.top_k
        (c1, t1, u1), (c2, t2, u2) = self.layers
        k1, k2 = self._pick(u1, cell.tokens), self._pick(u2, cell.tokens)
        pairs = torch.empty((rows, 2 * sizes.intermediate), dtype=BF16, device=DEVICE)
        out_rows = torch.empty((rows, sizes.hidden), dtype=BF16, device=DEVICE)
        indexed = self.gemm == "indexed"
        stages: Stages = {stage: [] for stage in STAGES}
        outputs: list[Tensor] = []

        def forward(config: Any, packed: Any, tuning: str, given: Tensor, out: Tensor, meta: Any, fan: int) -> None:
            layout = {"expert_layout": meta}
            if indexed:
                layout = {"sorted_ids": meta[0], "expert_ids": meta[1], "num_tokens_padded": meta[2]}
            humming_forward(
                config,
                inputs=given,
                weight=packed["weight"],
                weight_scale=packed.get("weight_scale"),
                weight_scale_2=packed.get("weight_scale_2"),
                outputs=out,
                input_scale=None,
                locks=self.locks,
                top_k=fan,
                valid_shape_m=rows,
                compute_config=self.compute,
                tuning_config=tuning,
                **layout,
            )

        def activate() -> Tensor:
            formula = "(a / (1.f + expf(-a))) * b"
            return may_process_input(c2, inputs=pairs, activation_type="binary_split", activation_impl=formula)[0]

        def bind(ids: Tensor, weights: Tensor, x: Tensor, out: Tensor) -> None:
            permuted = None if indexed else Permuted(ids, sizes.experts, sizes.hidden)

            def route() -> tuple[Any, Any]:
                if permuted is not None:
                    permuted.permute(x)
                    return permuted.first, permuted.first
                b1, b2 = k1["block_shape"][0], k2["block_shape"][0]
                first = align_blocks(ids, sizes.experts, b1)
                return first, first if b1 == b2 else align_blocks(ids, sizes.experts, b2)

            def first_gemm(meta: Any) -> None:
                given, fan = (x, top_k) if permuted is None else (permuted.rows, 1)
                forward(c1, t1, json.dumps(k1), given, pairs, meta, fan)

            def second_gemm(hidden: Tensor, meta: Any) -> None:
                forward(c2, t2, json.dumps(k2), hidden, out_rows, meta, 1)

            def combine() -> None:
                if permuted is None:
                    weighted_sum(out_rows, weights, out, top_k)
                else:
                    permuted.unpermute(out_rows, weights, out)

            def block() -> None:
                meta1, meta2 = route()
                first_gemm(meta1)
                second_gemm(activate(), meta2)
                combine()

            meta1, meta2 = route()
            first_gemm(meta1)  # the second gemm is timed on real activations
            hidden = activate()
            stages["route"].append(route)
            stages["l1"].append(lambda: first_gemm(meta1))
            stages["act"].append(activate)
            stages["l2"].append(lambda: second_gemm(hidden, meta2))
            stages["sum"].append(combine)
            stages["moe"].append(block)

        for (ids, weights), x in zip(cell.routings, cell.inputs, strict=True):
            outputs.append(torch.empty_like(x))
            bind(ids, weights, x, outputs[-1])
        return stages, outputs


class Marlin:
    """vLLM's moe_wna16_marlin_gemm with moe_align_block_size and moe_sum."""

    FE2M1 = 562949953487106

    def setup(self, shape: str, weights: tuple[Nvfp4, Nvfp4]) -> None:
        self.shape = shape
        half, hidden = SHAPES[shape].intermediate, SHAPES[shape].hidden
        step = 64 if hidden % 128 == 0 else 128
        self.half = -(-half // step) * step
        padded = self.half if self.half != half else None
        self.w1 = marlin_pack(weights[0], rows=(half, padded) if padded else None)
        self.w2 = marlin_pack(weights[1], depth=padded)
        self.workspace = torch.zeros(132 * 4, dtype=torch.int32, device=DEVICE)

    def _gemm(self, a: Tensor, c: Tensor, w: Any, meta: Any, router: Tensor, block: int, fan: int, sizes: Any) -> None:
        order, owners, count = meta
        weighted, m, n, k = sizes
        head = (a, c, w[0], None, w[1], None, w[2], None, self.workspace, order, owners, count, router)
        vllm_ops().moe_wna16_marlin_gemm(
            *head, block, fan, weighted, self.FE2M1, m, n, k, False, True, False, -1, -1, -1
        )

    def make(self, cell: Cell) -> tuple[Stages, list[Tensor]]:
        sizes = SHAPES[self.shape]
        experts, top_k, hidden, half = sizes.experts, sizes.top_k, sizes.hidden, self.half
        block = next((b for b in (8, 16, 32, 48) if cell.tokens * top_k / experts / b < 0.9), 64)
        rows = cell.tokens * top_k
        pairs = torch.empty((rows, 2 * half), dtype=BF16, device=DEVICE)
        act = torch.empty((rows, half), dtype=BF16, device=DEVICE)
        out_rows = torch.empty((rows, hidden), dtype=BF16, device=DEVICE)
        stages: Stages = {stage: [] for stage in STAGES}
        outputs: list[Tensor] = []

        def bind(ids: Tensor, weights: Tensor, x: Tensor, out: Tensor) -> None:
            def route() -> Any:
                return align_blocks(ids, experts, block)

            def first_gemm(meta: Any) -> None:
                self._gemm(x, pairs, self.w1, meta, weights, block, top_k, (False, cell.tokens, 2 * half, hidden))

            def second_gemm(meta: Any) -> None:
                self._gemm(act, out_rows, self.w2, meta, weights, block, 1, (True, rows, hidden, half))

            def combine() -> None:
                vllm_ops().moe_sum(out_rows.view(cell.tokens, top_k, hidden), out)

            def whole() -> None:
                meta = route()
                first_gemm(meta)
                silu_mul(pairs, act)
                second_gemm(meta)
                combine()

            meta = route()
            stages["route"].append(route)
            stages["l1"].append(lambda: first_gemm(meta))
            stages["act"].append(lambda: silu_mul(pairs, act))
            stages["l2"].append(lambda: second_gemm(meta))
            stages["sum"].append(combine)
            stages["moe"].append(whole)

        for (ids, weights), x in zip(cell.routings, cell.inputs, strict=True):
            outputs.append(torch.empty_like(x))
            bind(ids, weights, x, outputs[-1])
        return stages, outputs


def marlin_pack(
    w: Nvfp4, *, rows: tuple[int, int] | None = None, depth: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """NVFP4 to Marlin's layout. ``rows``: (rows of a gate/up half, padded); ``depth``: padded K."""
    # Order of a 16 x 64 tile's elements in Marlin words: (16-column block, k half, quad, k low, n half, n).
    order = torch.arange(1024, device=DEVICE).view(4, 2, 4, 2, 2, 8).permute(5, 2, 0, 3, 4, 1).flatten()
    scale_order = torch.arange(64, device=DEVICE).view(8, 8).t().flatten()
    largest = float(w.scale.float().amax()) * 128
    factor = 2.0 ** math.floor(math.log2(448 * 128 / largest)) if largest < 448 * 128 else 1.0
    codes_of, scales_of = [], []
    for expert in range(w.E):
        codes, scales = w.codes[expert], w.scale[expert].to(BF16)
        if rows is not None:
            half, padded = rows
            codes = pad(codes.view(2, half, -1), (0, 0, 0, padded - half)).reshape(2 * padded, -1)
            scales = pad(scales.view(2, half, -1), (0, 0, 0, padded - half)).reshape(2 * padded, -1)
        if depth is not None:
            codes, scales = pad(codes, (0, (depth - w.K) // 2)), pad(scales, (0, (depth - w.K) // 16))
        n, k = codes.shape[0], codes.shape[1] * 2
        q = torch.stack((codes & 0xF, codes >> 4), -1).view(n, k).t()
        q = q.reshape(k // 16, 16, n // 16, 16).permute(0, 2, 1, 3).reshape(-1, 1024)[:, order]
        shifts = torch.arange(0, 32, 4, device=DEVICE, dtype=torch.int32)
        codes_of.append((q.reshape(k // 16, -1, 8).int() << shifts).sum(-1, dtype=torch.int32))
        z = scales.t().reshape(-1, 64)[:, scale_order].reshape(-1, n)
        z = z.half().view(-1, 4)[:, [0, 2, 1, 3]].reshape(-1, n)
        z = (z.float() * factor).half() * 128
        z[z < 2] = 0
        scales_of.append((z.view(torch.int16) << 1).view(torch.float8_e4m3fn)[:, 1::2].contiguous())
    return torch.stack(codes_of), torch.stack(scales_of), (w.gscale * 2.0**119 / factor).float()


Peer = Humming | Marlin | TritonKernels
ALL: dict[str, Callable[[], Peer]] = {
    "humming_idx": lambda: Humming("indexed"),
    "humming_grp": lambda: Humming("grouped_contiguous"),
    "marlin": Marlin,
    "triton_mxfp4": TritonKernels,
}
OTHER_CLASS = ("triton_mxfp4",)
"""Peers of another numerics class: timed and shown, but no ratio is taken against them."""


def release() -> None:
    """Returns a peer's memory after its last reference is gone."""
    gc.collect()
    torch.cuda.empty_cache()
