"""Static scales from sample tokens."""

import pytest
import torch
from numerics.layers import Layer

from moegen.core.enums import Contract, RouterWeight
from moegen.core.errors import TensorError
from moegen.numerics import ActivationQuantizer, calibrate, layer_reference


def run(layer: Layer, **changes):
    arguments = {"x": layer.x, "topk_ids": layer.topk_ids, "topk_weights": layer.topk_weights} | changes
    return calibrate(
        arguments.pop("x"),
        arguments.pop("topk_ids"),
        arguments.pop("topk_weights"),
        layer.weights,
        layer.activation,
        first_expert=layer.first_expert,
        **arguments,
    )


def test_scales_map_the_largest_sample_to_the_top_of_the_range():
    layer = Layer(single=False)
    scales = run(layer)
    local = (layer.topk_ids >= layer.first_expert) & (layer.topk_ids < layer.first_expert + layer.experts)
    amax = layer.x[local.any(-1)].float().abs().max()
    assert scales.x_scale.shape == (1, 2)
    torch.testing.assert_close(scales.x_scale[0, 1], amax / 2688, rtol=1e-6, atol=0)
    assert scales.h_scale.shape == (layer.experts, 2)


def test_unseen_experts_are_named_and_take_the_coarsest_scale():
    layer = Layer(single=False)
    scales = run(layer)
    assert scales.unseen == (1,)
    assert scales.h_scale[1, 1] == scales.h_scale[:, 1].max()


def test_headroom_widens_every_scale():
    layer = Layer(single=False)
    plain, wide = run(layer), run(layer, headroom=2.0)
    torch.testing.assert_close(wide.h_scale[:, 1], 2 * plain.h_scale[:, 1])
    torch.testing.assert_close(wide.x_scale[:, 1], 2 * plain.x_scale[:, 1])


@pytest.mark.parametrize("place", [RouterWeight.INPUT, RouterWeight.PRE_QUANT])
def test_router_weights_count_where_they_are_applied(place):
    layer = Layer(single=False, bias=False)
    plain = run(layer, topk_weights=torch.ones_like(layer.topk_weights), router_weight=place)
    halved = run(layer, topk_weights=torch.full_like(layer.topk_weights, 0.5), router_weight=place)
    if place is RouterWeight.INPUT:
        torch.testing.assert_close(halved.x_scale[:, 1], 0.5 * plain.x_scale[:, 1])
    else:
        assert torch.equal(halved.x_scale, plain.x_scale)
        torch.testing.assert_close(halved.h_scale[:, 1], 0.5 * plain.h_scale[:, 1])


@pytest.mark.parametrize("contract", [Contract.TE, Contract.MODELOPT])
def test_calibrated_layers_are_close_to_unquantised_ones(contract):
    layer = Layer(single=False, hidden=144, intermediate=112, tokens=40)
    scales = run(layer, contract=contract)
    quantizer = ActivationQuantizer(contract=contract, x_scale=scales.x_scale, h_scale=scales.h_scale)
    got, expected = (
        layer_reference(
            layer.x,
            layer.topk_ids,
            layer.topk_weights,
            layer.weights,
            layer.activation,
            quantizer=each,
            first_expert=layer.first_expert,
        )
        for each in (quantizer, None)
    )
    cosine = torch.nn.functional.cosine_similarity(got.flatten(), expected.flatten(), dim=0)
    assert cosine > 0.985
    assert 0.97 <= got.norm() / expected.norm() <= 1.03


def test_samples_that_reach_no_expert_are_refused():
    layer = Layer()
    with pytest.raises(TensorError, match="no sample reached any expert"):
        run(layer, topk_ids=torch.full_like(layer.topk_ids, -1))
