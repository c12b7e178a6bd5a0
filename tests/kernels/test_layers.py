"""Whole pipelines of CPU kernels on layers that are exact from end to end: equal to the reference bit for bit."""

from dataclasses import replace

import pytest
import torch
from kernels.cases import ACTIVATIONS
from kernels.chain import planned, run_chain, run_layer
from kernels.compare import POISONS, same_bytes
from kernels.harness import Workshop
from numerics.layers import Layer

from moegen.core.enums import ActScale, CombineMode, Contract, Epilogue, Round, RouterWeight, ScaleLayout, TokenDtype
from moegen.core.ops import Numerics
from moegen.numerics import run_pipeline

BF16_STORED = Numerics(pre_quant_round=Round.BF16)
LAYERS = {
    "w4a4_interleaved": Layer(epilogue=Epilogue.INTERLEAVED),
    "w4a4_compact": Layer(weight_scales=ScaleLayout.SWIZZLE_128X4),
    "w4a4_fused": Layer(epilogue=Epilogue.FUSED_FP4),
    "w4a4_fused_ungated": Layer(epilogue=Epilogue.FUSED_FP4, activation=ACTIVATIONS["relu2"]),
    "w4a4_dynamic": Layer(act_scale=ActScale.DYNAMIC_TENSOR, numerics=Numerics(contract=Contract.TORCHAO)),
    "w4a4_dynamic_interleaved": Layer(
        act_scale=ActScale.DYNAMIC_TENSOR, epilogue=Epilogue.INTERLEAVED, row_scales=ScaleLayout.LINEAR
    ),
    "w4a4_pre_quant": Layer(
        epilogue=Epilogue.FUSED_FP4,
        numerics=Numerics(router_weight=RouterWeight.PRE_QUANT, gate_round=Round.BF16, pre_quant_round=Round.BF16),
    ),
    "w4a4_input": Layer(numerics=Numerics(router_weight=RouterWeight.INPUT)),
    "w4a4_atomic": Layer(combine=CombineMode.ATOMIC, top_k=1),
    "w4a16_compact": Layer(w4a4=False, activation=ACTIVATIONS["geglu_tanh"], tokens=90),
    "w4a16_interleaved": Layer(w4a4=False, epilogue=Epilogue.INTERLEAVED, dtype=TokenDtype.FP16),
    "w4a16_gathered": Layer(
        w4a4=False, fused_gather=False, numerics=Numerics(router_weight=RouterWeight.INPUT), bias=False
    ),
    "w4a16_gathers_weighted": Layer(w4a4=False, numerics=Numerics(router_weight=RouterWeight.INPUT)),
    "w4a4_rank_with_fewer_experts_than_slots": Layer(experts=2, top_k=6, tokens=13),
    "w4a16_ungated": Layer(w4a4=False, activation=ACTIVATIONS["silu"], experts=1, top_k=1, first_expert=0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_equals_the_reference(workshop: Workshop, name: str) -> None:
    layer = LAYERS[name]
    expected = run_pipeline(planned(layer).pipeline(), layer.buffers(), first_expert=layer.first_expert)["y"]
    for byte in POISONS:
        y = run_layer(workshop, layer, byte=byte)["y"]
        assert same_bytes(y, expected), f"stale {byte:#x}: {(y != expected).nonzero()[:3].tolist()}"


def test_three_epilogues_give_gemm2_the_same_bytes(workshop: Workshop) -> None:
    """At equal schedule and equal rounding points."""
    found = []
    for epilogue in Epilogue:
        layer = Layer(epilogue=epilogue, numerics=BF16_STORED, tokens=29)
        held = run_layer(workshop, layer)
        rows = int(held["totals"][1])
        found.append((held["h_codes"][:rows], held["h_scales"][: -(-rows // 128) * 128], held["y"]))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert same_bytes(one, two)


@pytest.mark.parametrize("name", ["w4a4_fused", "w4a16_compact"])
def test_layers_do_not_depend_on_threads(workshop: Workshop, name: str) -> None:
    """On weights whose sums are not exact."""
    layer = replace(LAYERS[name], single=False)
    expected = run_layer(workshop, layer)["y"]
    for threads in (2, 3, 8):
        assert same_bytes(run_layer(workshop, layer, threads=threads)["y"], expected)


def test_expert_parallel_ranks_add_up_to_the_whole(workshop: Workshop) -> None:
    """Two ranks of a six-expert layer: each sees all ids, its own slice of the bank, and its first_expert."""
    whole = Layer(experts=6, first_expert=0, bias=False)
    given = whole.buffers()
    total = torch.zeros(whole.tokens, whole.hidden)
    per_expert = ("w1_codes", "w1_scales", "w1_alpha", "w2_codes", "w2_scales", "w2_alpha", "h_scale")
    for rank in range(2):
        part = replace(whole, experts=3)
        own = {name: tensor[3 * rank : 3 * rank + 3] for name, tensor in given.items() if name in per_expert}
        held = run_chain(workshop, planned(part).pipeline(), given | own, planned(part).dims(), first_expert=3 * rank)
        total += held["y"].float()
    expected = run_layer(workshop, whole)["y"].float()
    assert held["totals"][2] < run_layer(workshop, whole)["totals"][2]
    torch.testing.assert_close(total, expected, rtol=2**-7, atol=2**-7 * expected.abs().max().item())
