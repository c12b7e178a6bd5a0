"""Field cases of activations, router weights and routing (category g), and the rounding point of the gate."""

import pytest
import torch
from field_cases.test_layouts import constant_projection
from numerics.layers import Layer

from moegen.core.enums import ActivationKind, CombineMode, Epilogue, Round, RouterWeight
from moegen.core.ops import Activation, Numerics
from moegen.numerics import LayerWeights, layer_reference, run_pipeline
from moegen.numerics.activations import gate_value, gated_product, up_value
from moegen.numerics.rounding import to_bf16
from moegen.numerics.router import deepseek_v3_router


def one(value: float) -> torch.Tensor:
    return torch.tensor([value])


def test_fr_44_clamped_swiglu_uses_all_its_constants():
    oai = Activation(kind=ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.0, limit=7.0)
    assert gated_product(oai, one(10.0), one(10.0)).item() == pytest.approx(55.9996, abs=1e-4)
    clamp = Activation(kind=ActivationKind.SWIGLU_CLAMP, limit=10.0)
    assert gated_product(clamp, one(20.0), one(-30.0)).item() == pytest.approx(-99.995, abs=1e-3)


def test_fr_44_the_step_form_clamps_after_silu():
    step = Activation(kind=ActivationKind.SWIGLUSTEP, limit=7.0)
    clamp = Activation(kind=ActivationKind.SWIGLU_CLAMP, limit=7.0)
    assert gate_value(step, one(20.0)).item() == 7.0
    assert gate_value(clamp, one(20.0)).item() == pytest.approx(6.99362, abs=1e-4)


def halved_weight_layer(place: RouterWeight) -> float:
    """E = 1, k = 1, w = 0.5, gate = up = 1 at weight 1."""
    weights = LayerWeights(
        w1=(constant_projection(1.0, 1, 16, 32), constant_projection(1.0, 1, 16, 32)),
        w2=constant_projection(1.0, 1, 32, 16),
        w1_alpha=torch.ones(1, 2),
        w2_alpha=torch.ones(1, 1),
    )
    x = torch.zeros(1, 32)
    x[0, 0] = 1.0
    ids = torch.zeros(1, 1, dtype=torch.int64)
    activation = Activation(kind=ActivationKind.SWIGLU)
    return layer_reference(x, ids, torch.full((1, 1), 0.5), weights, activation, router_weight=place)[0, 0].item()


def test_fr_45_the_weight_goes_on_the_input_once():
    assert halved_weight_layer(RouterWeight.INPUT) == pytest.approx(0.155615, abs=1e-6)
    assert halved_weight_layer(RouterWeight.COMBINE) == pytest.approx(0.365529, abs=1e-6)


@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize("w4a4", [True, False])
def test_fr_45_each_route_has_its_own_scaled_copy(top_k, w4a4):
    """With the weight on the input, weights of 1/2 equal halved tokens with weights of 1."""
    numerics = Numerics(router_weight=RouterWeight.INPUT)
    layer = Layer(top_k=top_k, w4a4=w4a4, numerics=numerics, tokens=13)
    halved = layer.buffers() | {"topk_weights": torch.full_like(layer.topk_weights, 0.5)}
    plain = layer.buffers() | {"topk_weights": torch.ones_like(layer.topk_weights), "x": layer.x / 2}
    first, second = (run_pipeline(layer.ops(), b, first_expert=layer.first_expert)["y"] for b in (halved, plain))
    assert torch.equal(first, second)


@pytest.mark.parametrize("combine", CombineMode)
@pytest.mark.parametrize("epilogue", [Epilogue.COMPACT, Epilogue.FUSED_FP4, Epilogue.INTERLEAVED])
def test_fr_46_ids_outside_the_rank_add_exactly_nothing(combine, epilogue):
    layer = Layer(tokens=4, top_k=2, combine=combine, epilogue=epilogue, first_expert=0)
    ids = torch.tensor([[0, -1], [layer.experts, 3], [-1, layer.experts], [2, 4]])
    only_local = torch.where((ids >= 0) & (ids < layer.experts), ids, 10_000)
    results = [run_pipeline(layer.ops(), layer.buffers() | {"topk_ids": each})["y"] for each in (ids, only_local)]
    assert torch.equal(results[0], results[1])
    assert not results[0][2].any()
    assert results[0][[0, 1, 3]].any(-1).all()


def test_fr_47_the_scaling_factor_multiplies_routed_weights_once():
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    _, weights = deepseek_v3_router(1, 2.5)(logits)
    routed, shared = torch.ones(5), torch.ones(5)
    torch.testing.assert_close(weights[:, 0] * routed + shared, torch.full((5,), 3.5))


def test_sd_07_the_gates_rounding_is_a_declared_point():
    activation = Activation(kind=ActivationKind.SWIGLU)
    gate, up = torch.linspace(0.1, 4, 400), torch.linspace(3, 0.2, 400)
    exact = gated_product(activation, gate, up, Round.FP32)
    rounded = gated_product(activation, gate, up, Round.BF16)
    assert torch.equal(exact, gate_value(activation, gate) * up_value(activation, up))
    assert torch.equal(rounded, to_bf16(gate_value(activation, gate)).float() * up)
    assert not torch.equal(exact, rounded)


@pytest.mark.parametrize("epilogue", [Epilogue.COMPACT, Epilogue.FUSED_FP4])
def test_sd_07_both_rounding_points_reach_the_layer(epilogue):
    layers = [
        Layer(epilogue=epilogue, intermediate=112, numerics=Numerics(gate_round=point))
        for point in (Round.FP32, Round.BF16)
    ]
    codes = [run_pipeline(each.ops(), each.buffers(), first_expert=each.first_expert)["h_codes"] for each in layers]
    assert not torch.equal(codes[0], codes[1])
