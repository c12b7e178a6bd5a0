"""Quantises a model's experts to NVFP4 with the compressed-tensors library and writes a checkpoint folder.

Gate and up keep second-level scales of their own, and input scales come from sample tokens sent through every expert.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp, generate_gparam
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

BLOCK = 16
HEADROOM = 1.05
"""Room above the largest calibrated activation, for tokens that the samples did not have."""
SCHEMES = ("NVFP4", "NVFP4A16")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Amax:
    """Largest magnitudes seen by one layer's experts: ``x`` of their input, ``h [E]`` of each down projection's."""

    x: torch.Tensor
    h: torch.Tensor


def calibrate(model: PreTrainedModel, tokens: torch.Tensor) -> dict[int, Amax]:
    """Runs sample tokens and sends every token through every expert, so that no expert is left without a scale."""
    seen: dict[int, Amax] = {}
    numbers = {id(module): number for number, module in experts_of(model).items()}
    original = model.config._experts_implementation

    def observe(module, hidden_states, top_k_index, top_k_weights):
        gate, up = torch.matmul(hidden_states, module.gate_up_proj.transpose(1, 2)).chunk(2, dim=-1)
        hidden = module.act_fn(gate) * up
        seen[numbers[id(module)]] = Amax(x=hidden_states.abs().amax().float(), h=hidden.abs().amax((1, 2)).float())
        return type(module).forward.__wrapped__(module, hidden_states, top_k_index, top_k_weights)

    ALL_EXPERTS_FUNCTIONS.register("observe", observe)
    model.set_experts_implementation("observe")
    with torch.inference_mode():
        model(tokens)
    model.set_experts_implementation(original)
    return seen


def experts_of(model: PreTrainedModel) -> dict[int, torch.nn.Module]:
    """Layer number → experts module of a Qwen3-MoE model."""
    return {number: layer.mlp.experts for number, layer in enumerate(model.model.layers)}


def scheme_of(name: str) -> QuantizationScheme:
    """The library's preset: ``NVFP4`` (W4A4) or ``NVFP4A16`` (W4A16)."""
    return preset_name_to_scheme(name, ["Linear"])


def fake_quantise(values: torch.Tensor, arguments: QuantizationArgs, global_scale: torch.Tensor) -> torch.Tensor:
    """Rounds activations to NVFP4 and back with the library's quantiser, in fp32; same dtype."""
    scale, zero = compute_dynamic_scales_and_zp(values.float(), arguments, None, global_scale)
    return fake_quantize(values.float(), scale, zero, arguments, global_scale=global_scale).to(values.dtype)


def quantise_weight(weight: torch.Tensor, scheme: QuantizationScheme) -> Tensors:
    """One matrix ``[N, K]`` as ``weight_packed``, ``weight_scale`` and ``weight_global_scale``."""
    values = weight.float()
    blocks = values.unflatten(-1, (-1, BLOCK))
    global_scale = generate_gparam(values.amin(), values.amax())
    scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights, global_scale)
    state = {"weight": values, "weight_scale": scale.float(), "weight_global_scale": global_scale}
    return NVFP4PackedCompressor.compress(state, scheme)


def quantise_experts(model: PreTrainedModel, scheme_name: str, seen: dict[int, Amax]) -> Tensors:
    """Every expert's tensors under the names of a checkpoint."""
    scheme = scheme_of(scheme_name)
    tensors: Tensors = {}
    for number, module in experts_of(model).items():
        for expert in range(module.num_experts):
            gate, up = module.gate_up_proj[expert].detach().chunk(2, dim=0)
            sides = {"gate_proj": gate, "up_proj": up, "down_proj": module.down_proj[expert].detach()}
            for leaf, weight in sides.items():
                state = quantise_weight(weight, scheme)
                if scheme.input_activations is not None:
                    amax = HEADROOM * (seen[number].h[expert] if leaf == "down_proj" else seen[number].x)
                    state["input_global_scale"] = generate_gparam(-amax, amax)
                prefix = f"model.layers.{number}.mlp.experts.{expert}.{leaf}"
                tensors |= {f"{prefix}.{name}": tensor.contiguous() for name, tensor in state.items()}
    return tensors


def save_checkpoint(model: PreTrainedModel, directory: Path, scheme_name: str, tokens: torch.Tensor) -> Path:
    """Writes config.json and model.safetensors: experts in NVFP4, everything else as the model has it."""
    scheme = scheme_of(scheme_name)
    seen = calibrate(model, tokens) if scheme.input_activations is not None else {}
    tensors = {name: t.detach().contiguous() for name, t in model.state_dict().items() if ".mlp.experts." not in name}
    tensors |= quantise_experts(model, scheme_name, seen)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    config = json.loads(model.config.to_json_string(use_diff=False))
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    return directory


def dequantise_experts(model: PreTrainedModel, tensors: Tensors, scheme_name: str) -> None:
    """Replaces a model's expert weights by what the compressed-tensors library reads back from a checkpoint."""
    scheme = scheme_of(scheme_name)
    with torch.no_grad():
        for number, module in experts_of(model).items():
            for expert in range(module.num_experts):
                read = _reader(tensors, f"model.layers.{number}.mlp.experts.{expert}", scheme)
                module.gate_up_proj[expert].copy_(torch.cat((read("gate_proj"), read("up_proj"))))
                module.down_proj[expert].copy_(read("down_proj"))


def quantise_activations(model: PreTrainedModel, tensors: Tensors, scheme_name: str) -> None:
    """Makes a model of dequantised weights also round its experts' inputs to NVFP4, as W4A4 kernels do.

    The library's own quantiser does it, with the checkpoint's input scales; everything else stays transformers' own.
    """
    arguments = scheme_of(scheme_name).input_activations
    numbers = {id(module): number for number, module in experts_of(model).items()}

    def forward(module, hidden_states, top_k_index, top_k_weights):
        total = torch.zeros_like(hidden_states, dtype=torch.float32)
        for expert in range(module.num_experts):
            token, slot = torch.where(top_k_index == expert)
            if not len(token):
                continue
            prefix = f"model.layers.{numbers[id(module)]}.mlp.experts.{expert}"
            rows = fake_quantise(hidden_states[token], arguments, tensors[f"{prefix}.up_proj.input_global_scale"])
            gate, up = torch.nn.functional.linear(rows, module.gate_up_proj[expert]).chunk(2, dim=-1)
            down_scale = tensors[f"{prefix}.down_proj.input_global_scale"]
            hidden = fake_quantise(module.act_fn(gate) * up, arguments, down_scale)
            out = torch.nn.functional.linear(hidden, module.down_proj[expert])
            total.index_add_(0, token, out.float() * top_k_weights[token, slot, None].float())
        return total.to(hidden_states.dtype)

    ALL_EXPERTS_FUNCTIONS.register("nvfp4_activations", forward)
    model.set_experts_implementation("nvfp4_activations")


def _reader(tensors: Tensors, prefix: str, scheme: QuantizationScheme) -> Callable[[str], torch.Tensor]:
    def read(leaf: str) -> torch.Tensor:
        names = ("weight_packed", "weight_scale", "weight_global_scale")
        state = {name: tensors[f"{prefix}.{leaf}.{name}"] for name in names}
        return NVFP4PackedCompressor.decompress(state, scheme)["weight"]

    return read
