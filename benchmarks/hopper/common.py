"""Weights, routings, floors and the timer that moegen and the peers share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.hopper.configs import SHAPES

DEVICE = "cuda"
#: How many independent routings one timed graph cycles through, so that L2 never holds the weights.
ROTATE = {1: 16, 8: 8, 32: 4, 128: 4, 512: 2, 2048: 1, 8192: 1}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NVFP4_BYTES = 0.5 + 1 / 16
Routing = tuple[Tensor, Tensor]


class Nvfp4:
    """Random NVFP4 weights of all experts: codes, one E4M3 scale per 16 along K, one fp32 scale per expert."""

    def __init__(self, experts: int, rows: int, depth: int, seed: int) -> None:
        source = torch.Generator(device=DEVICE).manual_seed(seed)
        self.E, self.N, self.K = experts, rows, depth
        shape = (experts, rows, depth // 2)
        self.codes = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE, generator=source)
        drawn = torch.rand((experts, rows, depth // 16), device=DEVICE, generator=source, dtype=torch.float16)
        self.scale = (drawn * 318 + 130).to(torch.float8_e4m3fn)
        # The mean square of a uniform E2M1 code is about 8.6, the scale's about 9.1e4.
        unit = 1.0 / (math.sqrt(8.6 * 9.1e4) * math.sqrt(depth))
        self.gscale = torch.full((experts,), unit, device=DEVICE)

    def dequant(self, expert: int) -> Tensor:
        """One expert's weights in fp32."""
        table = torch.tensor(E2M1 + tuple(-value for value in E2M1), device=DEVICE)
        low, high = (self.codes[expert] & 0xF).long(), (self.codes[expert] >> 4).long()
        values = torch.stack((table[low], table[high]), -1).flatten(-2)
        return values * (self.scale[expert].float().repeat_interleave(16, -1) * self.gscale[expert])


def make_weights(shape: str) -> tuple[Nvfp4, Nvfp4]:
    """(gate and up, down) of a shape."""
    sizes = SHAPES[shape]
    return (
        Nvfp4(sizes.experts, 2 * sizes.intermediate, sizes.hidden, 1),
        Nvfp4(sizes.experts, sizes.hidden, sizes.intermediate, 2),
    )


def make_routing(experts: int, top_k: int, tokens: int, count: int, kind: str) -> list[Routing]:
    """``count`` independent routings: (int32 ids, fp32 weights), both ``[tokens, top_k]``.

    ``uniform`` without replacement (one token: disjoint expert sets in turn, the coldest case); ``zipf``: Gumbel top-k
    with logits -log(rank) and experts in random order.
    """
    source = torch.Generator(device=DEVICE).manual_seed(1000 + 7 * tokens)
    order = torch.randperm(experts, device=DEVICE, generator=source)
    found: list[Routing] = []
    for index in range(count):
        if kind == "uniform" and tokens == 1:
            ids = order[torch.arange(index * top_k, (index + 1) * top_k, device=DEVICE) % experts][None]
        else:
            logits = torch.zeros(experts, device=DEVICE)
            if kind == "zipf":
                logits[order] = -torch.log(torch.arange(1, experts + 1, device=DEVICE).float())
            uniform = torch.rand((tokens, experts), device=DEVICE, generator=source).clamp_min_(1e-20)
            ids = (logits - torch.log(-torch.log(uniform))).topk(top_k, -1).indices
        weights = torch.softmax(torch.randn((tokens, top_k), device=DEVICE, generator=source), -1)
        found.append((ids.int().contiguous(), weights.contiguous()))
    return found


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One batch: several routings and inputs in turn."""

    shape: str
    tokens: int
    kind: str
    routings: list[Routing]
    inputs: list[Tensor]


def make_cell(shape: str, tokens: int, kind: str) -> Cell:
    """Routings and random inputs of a cell."""
    sizes = SHAPES[shape]
    count = ROTATE[tokens]
    source = torch.Generator(device=DEVICE).manual_seed(tokens)
    inputs = [torch.randn((tokens, sizes.hidden), device=DEVICE, generator=source).bfloat16() for _ in range(count)]
    routings = make_routing(sizes.experts, sizes.top_k, tokens, count, kind)
    return Cell(shape=shape, tokens=tokens, kind=kind, routings=routings, inputs=inputs)


def reference(weights: tuple[Nvfp4, Nvfp4], cell: Cell, part: slice) -> Tensor:
    """The block for some tokens of the first routing, in fp32 on dequantised weights."""
    half = SHAPES[cell.shape].intermediate
    ids, router = (tensor[part] for tensor in cell.routings[0])
    x = cell.inputs[0][part].float()
    out = torch.zeros_like(x)
    for expert in torch.unique(ids).tolist():
        token, slot = torch.where(ids == expert)
        both = x[token] @ weights[0].dequant(expert).t()
        gate, up = both[:, :half], both[:, half:]
        hidden = (gate * torch.sigmoid(gate) * up).bfloat16().float()
        out.index_add_(0, token, (hidden @ weights[1].dequant(expert).t()) * router[token, slot][:, None])
    return out


def relative_error(found: Tensor, exact: Tensor) -> float:
    """||found - exact|| / ||exact||."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def capture(calls: Sequence[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """Warms up and captures all calls in one graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    torch.cuda.synchronize()
    return graph


def bench(calls: Sequence[Callable[[], Any]], budget_ms: float = 8.0, fewest: int = 5, most: int = 30) -> float:
    """Median microseconds of one call: all are captured in one graph, which is replayed between events."""
    graph = capture(calls)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    repeats = int(min(most, max(fewest, budget_ms / max(start.elapsed_time(end), 1e-3))))
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for first, last in marks:
        first.record()
        graph.replay()
        last.record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) * 1e3 / len(calls) for first, last in marks)


def interleaved(
    graphs: dict[str, torch.cuda.CUDAGraph], calls: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Microseconds of one call, per contender and round.

    Each turn replays for about ``seconds`` (at least once) after an untimed replay; every round starts with another
    contender.
    """
    names = list(graphs)
    times: dict[str, list[float]] = {name: [] for name in names}
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            graphs[name].replay()
            torch.cuda.synchronize()
            start.record()
            graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            one_ms = max(start.elapsed_time(end), 1e-3)
            repeats = max(1, int(1e3 * seconds / one_ms))
            if repeats > 1:
                start.record()
                for _ in range(repeats):
                    graphs[name].replay()
                end.record()
                torch.cuda.synchronize()
                one_ms = start.elapsed_time(end) / repeats
            times[name].append(1e3 * one_ms / calls)
    return times


@triton.jit
def _read(source, sink, BLOCK: tl.constexpr, ITERATIONS: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * (BLOCK * ITERATIONS)
    total = tl.zeros((BLOCK,), tl.int32)
    for i in tl.static_range(ITERATIONS):
        total += tl.load(source + start + i * BLOCK + tl.arange(0, BLOCK))
    tl.store(sink + tl.program_id(0), tl.sum(total))


def read_rate(size: int = 1 << 32) -> float:
    """TB/s of a read-only stream over random bytes."""
    data = torch.randint(0, 255, (size,), dtype=torch.uint8, device=DEVICE).view(torch.int32)
    programs = data.numel() // (4096 * 8)
    sink = torch.empty(programs, dtype=torch.int32, device=DEVICE)
    return size / bench([lambda: _read[(programs,)](data, sink, BLOCK=4096, ITERATIONS=8, num_warps=8)], 100) / 1e6


def product_rate(size: int = 8192) -> float:
    """TFLOP/s of a bf16 product of random matrices."""
    a, b = (torch.randn((size, size), device=DEVICE).bfloat16() for _ in range(2))
    return 2 * size**3 / bench([lambda: torch.mm(a, b)], 300, 20) / 1e6


def ceilings() -> dict[str, float]:
    """Both rates of this card now: what the floors are made of."""
    return {"read_TBps": read_rate(), "bf16_TFLOPs": product_rate()}


def floors(cell: Cell, found: dict[str, float]) -> dict[str, float]:
    """Microseconds that no kernel can beat, per gemm and for the block.

    Active experts' weights and the rows in and out at the read rate, or the flops at the bf16 rate; the block counts
    weights and hidden states once.
    """
    sizes = SHAPES[cell.shape]
    hidden, half = sizes.hidden, sizes.intermediate
    active = statistics.mean(int(torch.unique(ids).numel()) for ids, _ in cell.routings)
    read, rate = found["read_TBps"] * 1e6, found["bf16_TFLOPs"] * 1e6
    rows = cell.tokens * sizes.top_k
    first, second = active * 2 * half * hidden * NVFP4_BYTES, active * half * hidden * NVFP4_BYTES
    flops = 2.0 * rows * half * hidden
    return {
        "active_experts": active,
        "l1": max((first + 2 * (cell.tokens * hidden + rows * half)) / read, 2 * flops / rate),
        "l2": max((second + 2 * rows * (half + hidden)) / read, flops / rate),
        "moe": max((first + second + 4 * cell.tokens * hidden) / read, 3 * flops / rate),
    }
