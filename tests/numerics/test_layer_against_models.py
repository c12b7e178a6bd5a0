"""The plain layer against the models' own expert code in transformers: activation, gate/up order, bias, weights.

The whole pipeline is then held to the plain layer in test_reference.py.
"""

from types import SimpleNamespace

import pytest
import torch
from numerics.layers import Layer
from torch import nn
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextExperts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.inkling2.modeling_inkling2 import Inkling2Experts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts

from moegen.core.enums import ActivationKind
from moegen.core.ops import Activation
from moegen.numerics import layer_reference
from moegen.numerics.layouts import GateUpRows
from moegen.numerics.reference.layer import weight_matrix

HIDDEN, INTERMEDIATE, EXPERTS = 80, 48, 5
MODELS = {
    "qwen3_moe": (Qwen3MoeExperts, Activation(kind=ActivationKind.SWIGLU)),
    "deepseek_v4": (DeepseekV4Experts, Activation(kind=ActivationKind.SWIGLU_CLAMP, limit=1.5)),
    "step3p7": (Step3p7Experts, Activation(kind=ActivationKind.SWIGLUSTEP, limit=1.2)),
    "gemma4": (Gemma4TextExperts, Activation(kind=ActivationKind.GEGLU_TANH)),
    "inkling2": (Inkling2Experts, Activation(kind=ActivationKind.SITU, beta=4.0, linear_beta=25.0)),
    "nemotron_h": (NemotronHExperts, Activation(kind=ActivationKind.RELU2)),
    "gpt_oss": (GptOssExperts, Activation(kind=ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.0, limit=2.0)),
}


def config(activation: Activation) -> SimpleNamespace:
    return SimpleNamespace(
        num_experts=EXPERTS,
        num_local_experts=EXPERTS,
        n_routed_experts=EXPERTS,
        hidden_size=HIDDEN,
        moe_intermediate_size=INTERMEDIATE,
        intermediate_size=INTERMEDIATE,
        moe_latent_size=None,
        hidden_act="silu",
        hidden_activation="gelu_pytorch_tanh",
        mlp_hidden_act="relu2",
        swiglu_alpha=activation.alpha,
        swiglu_limit=activation.limit,
        mlp_gate_softcap=activation.beta,
        mlp_up_softcap=activation.linear_beta,
        _experts_implementation="eager",
    )


def matrices(layer: Layer, expert: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """fp64 halves of W1 ``[I, H]`` and W2 ``[H, I]``."""
    weights = layer.weights
    halves = [
        weight_matrix(half, weights.w1_alpha[expert, index], expert, torch.float64)
        for index, half in enumerate(weights.w1)
    ]
    return halves, weight_matrix(weights.w2, weights.w2_alpha[expert, 0], expert, torch.float64)


def load(module: nn.Module, layer: Layer) -> None:
    """Gives a model's experts the layer's dequantised weights in the model's own order."""
    weights = layer.weights
    for expert in range(EXPERTS):
        halves, down = matrices(layer, expert)
        if isinstance(module, GptOssExperts):
            assert weights.w1_bias is not None
            assert weights.w2_bias is not None
            rows = GateUpRows(interleave=1)
            module.gate_up_proj[expert] = rows.pack(*halves).T
            module.down_proj[expert] = down.T
            gate_bias, up_bias = (half[expert] for half in weights.w1_bias)
            module.gate_up_proj_bias[expert] = rows.pack(gate_bias, up_bias, dim=-1)
            module.down_proj_bias[expert] = weights.w2_bias[expert]
        elif isinstance(module, NemotronHExperts):
            module.up_proj[expert], module.down_proj[expert] = halves[0], down
        else:
            module.gate_up_proj[expert], module.down_proj[expert] = GateUpRows().pack(*halves), down


@pytest.mark.parametrize("name", MODELS)
def test_the_layer_computes_what_the_model_computes(name):
    experts_class, activation = MODELS[name]
    layer = Layer(activation=activation, bias=name == "gpt_oss", single=False, first_expert=0, tokens=23)
    made = config(activation)
    module = (experts_class(made, activation.limit) if name == "step3p7" else experts_class(made)).double()
    x = layer.x.double()
    ids = torch.randint(0, EXPERTS, (layer.tokens, layer.top_k), generator=layer.generator(30))
    with torch.no_grad():
        load(module, layer)
        expected = module(x, ids, layer.topk_weights.double())
        got = layer_reference(layer.x, ids, layer.topk_weights, layer.weights, activation)
    # inkling2 activates and sums in fp32.
    tolerance = 1e-5 if name == "inkling2" else 1e-12
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    assert expected.abs().max() > 0.1
