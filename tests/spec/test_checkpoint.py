"""Specs written from the configs of each known family, and the refusal of everything else."""

from pathlib import Path
from typing import Any

import pytest

from moegen.core.errors import SpecError
from moegen.spec import LayerSpec, load_spec, new_from_checkpoint
from moegen.spec.families import FAMILIES, REFUSED

MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
NVFP4_WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


def compressed(input_activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"weights": NVFP4_WEIGHTS, "input_activations": input_activations, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": group},
    }


SIZES = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
ROUTED = {"hidden_size": 7168, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8}
LOCAL = {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2}
#: config → (H, I, E, k, kind, alpha, beta, limit, linear_beta, order, bias, router weight)
CONFIGS: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    (
        {"model_type": "qwen3_moe", "hidden_act": "silu", "intermediate_size": 6144, **SIZES},
        (2048, 768, 128, 8, "swiglu", None, None, None, None, "gate_up", False, "combine"),
    ),
    (
        {"model_type": "deepseek_v3", "hidden_act": "silu", "intermediate_size": 18432, **ROUTED},
        (7168, 2048, 256, 8, "swiglu", None, None, None, None, "gate_up", False, "combine"),
    ),
    (
        {"model_type": "deepseek_v4", "swiglu_limit": 10.0, **ROUTED},
        (7168, 2048, 256, 8, "swiglu_clamp", None, None, 10.0, None, "gate_up", False, "combine"),
    ),
    (
        {"model_type": "mixtral", **LOCAL},
        (4096, 14336, 8, 2, "swiglu", None, None, None, None, "gate_up", False, "combine"),
    ),
    (
        {"model_type": "gpt_oss", "swiglu_limit": 7.0, **LOCAL, "hidden_size": 2880, "intermediate_size": 2880},
        (2880, 2880, 8, 2, "swiglu_oai", 1.702, 1.0, 7.0, None, "interleaved", True, "combine"),
    ),
    (
        {"model_type": "llama4", "text_config": {"model_type": "llama4_text", **LOCAL, "num_experts_per_tok": 1}},
        (4096, 14336, 8, 1, "swiglu", None, None, None, None, "gate_up", False, "input"),
    ),
    (
        {"model_type": "nemotron_h", "mlp_hidden_act": "relu2", "moe_latent_size": 1024, **ROUTED},
        (1024, 2048, 256, 8, "relu2", None, None, None, None, "gate_up", False, "combine"),
    ),
    (
        {"model_type": "nemotron_h", "mlp_hidden_act": "relu2", "moe_latent_size": None, **ROUTED},
        (7168, 2048, 256, 8, "relu2", None, None, None, None, "gate_up", False, "combine"),
    ),
    (
        {
            "model_type": "gemma4",
            "text_config": {
                "model_type": "gemma4_text",
                "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": 2816,
                "moe_intermediate_size": 704,
                "num_experts": 128,
                "top_k_experts": 8,
            },
        },
        (2816, 704, 128, 8, "geglu_tanh", None, None, None, None, "gate_up", False, "combine"),
    ),
    (
        {
            "model_type": "kimi_k3",
            "text_config": {
                "model_type": "kimi_linear",
                "hidden_act": "situ",
                "hidden_size": 7168,
                "routed_expert_hidden_size": 3584,
                "moe_intermediate_size": 3072,
                "num_experts": 896,
                "num_experts_per_token": 16,
                "activation_situ_beta": 4.0,
                "activation_situ_linear_beta": 25.0,
            },
        },
        (3584, 3072, 896, 16, "situ", None, 4.0, None, 25.0, "gate_up", False, "combine"),
    ),
    (
        {"model_type": "minimax_m3_vl_text", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, **LOCAL},
        (4096, 14336, 8, 2, "swiglu_oai", 1.702, 1.0, 7.0, None, "gate_up", False, "combine"),
    ),
]


def written(folder: Path, config: dict[str, Any], quant: dict[str, Any] | None = MODELOPT) -> LayerSpec:
    path = folder / "spec.yaml"
    path.write_text(new_from_checkpoint(config, quant, source='a "quoted"\nsource: with: colons'))
    return load_spec(path)


@pytest.mark.parametrize(("config", "expected"), CONFIGS, ids=[config["model_type"] for config, _ in CONFIGS])
def test_family(tmp_path: Path, config: dict[str, Any], expected: tuple[Any, ...]) -> None:
    spec = written(tmp_path, config)
    geometry, activation = spec.geometry, spec.activation
    assert expected == (
        geometry.hidden,
        geometry.intermediate,
        geometry.experts,
        geometry.top_k,
        activation.kind.value,
        activation.alpha,
        activation.beta,
        activation.limit,
        activation.linear_beta,
        spec.weights.gate_up_order.value,
        spec.weights.bias,
        spec.numerics.router_weight.value,
    )


QWEN = CONFIGS[0][0]


@pytest.mark.parametrize(
    ("quant", "act_format"),
    [
        (MODELOPT, "nvfp4"),
        ({"quantization": {"quant_algo": "W4A16_NVFP4"}}, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "fp8", "moe_quant_algo": "NVFP4"}, "nvfp4"),
        (
            {
                "quantization": {
                    "quant_algo": "MIXED_PRECISION",
                    "quantized_layers": {
                        "model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4"},
                        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                    },
                }
            },
            "bf16",
        ),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16, "dynamic": "local"}), "nvfp4"),
        (compressed(None), "bf16"),
    ],
)
def test_activation_format(tmp_path: Path, quant: dict[str, Any], act_format: str) -> None:
    spec = written(tmp_path, QWEN, quant)
    assert spec.activations.format.value == act_format
    assert ("fused_fp4" in [epilogue.value for epilogue in spec.epilogues]) == (act_format == "nvfp4")


def test_quantisation_is_read_from_the_config_itself(tmp_path: Path) -> None:
    spec = written(tmp_path, {**QWEN, "quantization_config": compressed(None)}, None)
    assert spec.activations.format.value == "bf16"


@pytest.mark.parametrize(
    ("config", "quant", "message"),
    [
        ({**QWEN, "model_type": "unheard_of"}, MODELOPT, "model_type 'unheard_of' is not known"),
        ({**QWEN, "model_type": "muse_spark_text"}, MODELOPT, "RMSNorm"),
        (QWEN, None, "the weights are not NVFP4"),
        (QWEN, {"quant_method": "modelopt", "quant_algo": "FP8"}, "quant_algo is FP8"),
        (QWEN, {"quant_method": "compressed-tensors", "config_groups": {}}, "has no NVFP4 weights"),
        ({**QWEN, "hidden_act": "gelu"}, MODELOPT, "hidden_act is 'gelu'"),
        ({**QWEN, "num_experts": None}, MODELOPT, "num_experts"),
        ({**QWEN, "moe_intermediate_size": 770}, MODELOPT, "config.json: geometry.intermediate: 770 is not a multiple"),
        ({**QWEN, "model_type": "step3p5", "swiglu_limits": [0, 7.0]}, MODELOPT, "differ between layers"),
        ({**QWEN, "model_type": "deepseek_v4"}, MODELOPT, "swiglu_limit is not set"),
    ],
)
def test_what_cannot_be_served_is_refused(config: dict[str, Any], quant: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        new_from_checkpoint(config, quant)
    assert message in str(caught.value)


#: What the class defaults of these families leave out or set to no published size.
COMPLETED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1536},
    "gemma4_text": {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
    "nemotron_h": {"moe_intermediate_size": 1856},
}
NOT_IN_TRANSFORMERS = {"kimi_k2"}


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - NOT_IN_TRANSFORMERS))
def test_the_config_classes_of_transformers_are_read(tmp_path: Path, model_type: str) -> None:
    """Every key a family reads exists under that name in the library's own configs, as they are saved."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type](**COMPLETED.get(model_type, {})).to_dict()
    spec = written(tmp_path, config)
    assert spec.geometry.hidden in config.values()
    assert spec.geometry.experts in config.values()
    assert spec.activation.kind.gated == (model_type != "nemotron_h")


def test_a_given_name_must_be_a_name() -> None:
    with pytest.raises(SpecError, match="is not a name"):
        new_from_checkpoint(QWEN, MODELOPT, name="../../etc")


def test_no_family_is_both_known_and_refused() -> None:
    assert not set(FAMILIES) & set(REFUSED)
