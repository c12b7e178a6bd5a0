"""Writes the experts of a layer in every checkpoint form, so that readers are tested against files."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from moegen.runtime import FusedMatrix
from moegen.runtime.checkpoint import ExpertWeights, Projection

MODELOPT_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
COMPRESSED_NVFP4 = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": "local"},
        }
    },
    "ignore": ["lm_head"],
}


def random_projection(experts: int, rows: int, columns: int, seed: int, *, bias: bool = False) -> Projection:
    """Any codes, finite scale bytes, distinct second-level scales below 1, distinct input scales."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    return Projection(
        codes=torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8, generator=generator),
        scales=torch.randint(0x28, 0x50, (experts, rows, columns // 16), dtype=torch.uint8, generator=generator),
        second=0.001 + 0.01 * uniform(experts),
        input=0.001 + 0.01 * uniform(experts),
        bias=uniform(experts, rows).bfloat16().float() if bias else None,
    )


def random_weights(
    experts: int = 3, hidden: int = 64, intermediate: int = 48, seed: int = 0, *, gated: bool = True, bias: bool = False
) -> ExpertWeights:
    gate = random_projection(experts, intermediate, hidden, seed, bias=bias) if gated else None
    up = random_projection(experts, intermediate, hidden, seed + 1, bias=bias)
    return ExpertWeights(gate=gate, up=up, down=random_projection(experts, hidden, intermediate, seed + 2, bias=bias))


def fused_forms(weights: ExpertWeights, device: str = "cpu") -> tuple[list[FusedMatrix], FusedMatrix]:
    """W13 three times, its codes as bytes, as float4 pairs and as a view into a wider tensor; and W2. All on
    ``device``."""
    gate, up, down = weights.gate, weights.up, weights.down
    assert gate is not None
    assert gate.input is not None
    assert up.input is not None
    codes = torch.cat((gate.codes, up.codes), 1).to(device)
    wider = torch.cat((codes, torch.full_like(codes, 0x77)), 2)
    forms = (codes, codes.view(torch.float4_e2m1fn_x2), wider[:, :, : codes.shape[2]])
    common = {
        "scales": torch.cat((gate.scales, up.scales), 1).to(device),
        "second": torch.stack((gate.second, up.second), 1).to(device),
        "input": torch.maximum(gate.input, up.input).to(device),
    }
    held = {name: getattr(down, name).to(device) for name in ("codes", "scales", "second", "input")}
    return [FusedMatrix(codes=form, **common) for form in forms], FusedMatrix(**held)


def per_expert(
    weights: ExpertWeights, container: str, leaves: dict[str, str], *, compressed: bool = False
) -> dict[str, torch.Tensor]:
    """One tensor per expert, side and suffix. ``leaves``: side → leaf name."""
    tensors: dict[str, torch.Tensor] = {}
    for side, leaf in leaves.items():
        bank: Projection = getattr(weights, side)
        for expert in range(bank.experts):
            base = f"{container}.{expert}.{leaf}"
            scales = bank.scales[expert].view(torch.float8_e4m3fn).clone()
            if compressed:
                tensors[f"{base}.weight_packed"] = bank.codes[expert].clone()
                tensors[f"{base}.weight_global_scale"] = bank.second[expert].reciprocal().reshape(1)
                if bank.input is not None:
                    tensors[f"{base}.input_global_scale"] = bank.input[expert].reciprocal().reshape(1)
            else:
                tensors[f"{base}.weight"] = bank.codes[expert].clone()
                tensors[f"{base}.weight_scale_2"] = bank.second[expert].clone()
                if bank.input is not None:
                    tensors[f"{base}.input_scale"] = bank.input[expert].clone()
            tensors[f"{base}.weight_scale"] = scales
            if bank.bias is not None:
                tensors[f"{base}.bias"] = bank.bias[expert].bfloat16()
    return tensors


def stacked(weights: ExpertWeights, container: str) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for side in ("gate", "up", "down"):
        bank: Projection = getattr(weights, side)
        base = f"{container}.{side}_proj"
        tensors |= {
            f"{base}.weight": bank.codes.clone(),
            f"{base}.weight_scale": bank.scales.view(torch.float8_e4m3fn).clone(),
            f"{base}.weight_scale_2": bank.second.clone(),
        }
        assert bank.input is not None
        tensors[f"{base}.input_scale"] = bank.input.clone()
    return tensors


def fused(
    weights: ExpertWeights, container: str, *, interleaved: bool, transposed: bool = True
) -> dict[str, torch.Tensor]:
    """gate_up_proj and down_proj for all experts; transposed: K before N, and expert 0's scales for all of them."""
    assert weights.gate is not None

    def join(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return torch.stack((gate, up), 2).flatten(1, 2) if interleaved else torch.cat((gate, up), 1)

    def stored(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(1, 2).contiguous() if transposed else tensor.contiguous()

    gate, up, down = weights.gate, weights.up, weights.down
    assert gate.input is not None
    assert up.input is not None
    assert down.input is not None
    halves = torch.stack((gate.second, up.second), 1), torch.stack((gate.input, up.input), 1)
    tensors = {
        "gate_up_proj": stored(join(gate.codes, up.codes)),
        "gate_up_proj_weight_scale": stored(join(gate.scales, up.scales)).view(torch.float8_e4m3fn),
        "gate_up_proj_weight_scale_2": gate.second[0].clone() if transposed else halves[0],
        "gate_up_proj_input_scale": gate.input[0].clone() if transposed else halves[1],
        "down_proj": stored(down.codes),
        "down_proj_weight_scale": stored(down.scales).view(torch.float8_e4m3fn),
        "down_proj_weight_scale_2": down.second[0].clone() if transposed else down.second.clone(),
        "down_proj_input_scale": down.input[0].clone() if transposed else down.input.clone(),
    }
    if gate.bias is not None and up.bias is not None and down.bias is not None:
        tensors["gate_up_proj_bias"] = join(gate.bias, up.bias).bfloat16()
        tensors["down_proj_bias"] = down.bias.bfloat16()
    return {f"{container}.{name}": tensor for name, tensor in tensors.items()}


def write_checkpoint(
    directory: Path,
    tensors: dict[str, torch.Tensor],
    quantization: dict[str, Any] | None,
    *,
    experts: int,
    shards: int = 1,
) -> Path:
    """Saves tensors (and an index when there are several shards) and a config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"num_experts": experts}
    if quantization is not None:
        config["quantization_config"] = quantization
    (directory / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, directory / "model.safetensors")
        return directory
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, directory / file)
        weight_map |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory
