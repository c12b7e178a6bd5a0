"""Checkpoint loading failures that people met in public, each with the right values asserted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import faults
import pytest
import torch
from faults import guards
from runtime.writers import COMPRESSED_NVFP4, MODELOPT_NVFP4, per_expert, random_weights, write_checkpoint

from moegen.core.errors import CheckpointError
from moegen.runtime.checkpoint import Checkpoint, Projection
from moegen.runtime.checkpoint.quant_config import excludes

LEAVES = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
SHAPE = {"hidden": 64, "intermediate": 48}


def container(layer: int) -> str:
    return f"model.layers.{layer}.mlp.experts"


@guards(faults.slices_start_at_zero)
def test_fr_20_expert_parallel_slices_cut_every_scale_alike(tmp_path: Path) -> None:
    weights = random_weights(experts=8)
    powers = torch.tensor([2.0**-i for i in range(8)])
    weights = replace(weights, down=replace(weights.down, input=powers))
    write_checkpoint(tmp_path, per_expert(weights, container(0), LEAVES), MODELOPT_NVFP4, experts=8)
    rank1 = Checkpoint(tmp_path).read_experts(0, **SHAPE, static_inputs=True, first_expert=4, experts=4)
    assert rank1.down.input is not None
    assert rank1.down.input.tolist() == [2.0**-i for i in range(4, 8)]
    assert torch.equal(rank1.down.second, weights.down.second[4:])
    assert torch.equal(rank1.down.codes, weights.down.codes[4:])


@guards(faults.last_input_scale_wins)
def test_fr_21_gate_and_up_input_scales_do_not_overwrite_each_other(tmp_path: Path) -> None:
    weights = random_weights(experts=1)
    assert weights.gate is not None
    for gate, up in ((0.5, 0.25), (0.25, 0.5)):
        changed = replace(
            weights,
            gate=replace(weights.gate, input=torch.tensor([gate])),
            up=replace(weights.up, input=torch.tensor([up])),
        )
        folder = tmp_path / f"{gate}"
        write_checkpoint(folder, per_expert(changed, container(0), LEAVES), MODELOPT_NVFP4, experts=1)
        combined = Checkpoint(folder).read_experts(0, **SHAPE, static_inputs=True).gate_input()
        assert combined is not None
        assert combined.tolist() == [0.5]


@pytest.mark.parametrize("suffix", ["input_scale", "weight_scale_2"])
@guards(faults.keys_unaccounted)
def test_fr_22_scale_of_one_expert_is_missing(tmp_path: Path, suffix: str) -> None:
    tensors = per_expert(random_weights(experts=4), container(0), LEAVES)
    del tensors[f"{container(0)}.2.down_proj.{suffix}"]
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=4)
    with pytest.raises(CheckpointError, match=rf"1 missing: 2\.down_proj\.{suffix}"):
        Checkpoint(tmp_path).read_experts(0, **SHAPE, static_inputs=True)


def test_fr_23_divide_and_multiply_forms_load_alike(tmp_path: Path) -> None:
    weights = random_weights(experts=1)

    def at(side: Projection) -> Projection:
        return replace(side, second=torch.tensor([1 / 3584]), input=torch.tensor([1 / 1792]))

    assert weights.gate is not None
    weights = replace(weights, gate=at(weights.gate), up=at(weights.up), down=at(weights.down))
    one = write_checkpoint(tmp_path / "m", per_expert(weights, container(0), LEAVES), MODELOPT_NVFP4, experts=1)
    two = per_expert(weights, container(0), LEAVES, compressed=True)
    for leaf in LEAVES.values():
        two[f"{container(0)}.0.{leaf}.weight_global_scale"] = torch.tensor([3584.0])
        two[f"{container(0)}.0.{leaf}.input_global_scale"] = torch.tensor([1792.0])
    other = write_checkpoint(tmp_path / "c", two, COMPRESSED_NVFP4, experts=1)
    first, second = (Checkpoint(path).read_experts(0, **SHAPE, static_inputs=True) for path in (one, other))
    for a, b in ((first.up, second.up), (first.down, second.down)):
        assert torch.equal(a.second, b.second)
        assert torch.equal(a.codes, b.codes)
        assert torch.equal(a.scales, b.scales)
        assert a.input is not None
        assert b.input is not None
        assert torch.equal(a.input, b.input)


@pytest.mark.parametrize("compressed", [False, True])
@guards(faults.any_scale_form)
def test_fr_23_scale_in_the_other_form_is_refused(tmp_path: Path, compressed: bool) -> None:
    tensors = per_expert(random_weights(experts=1), container(0), LEAVES, compressed=compressed)
    name = f"{container(0)}.0.up_proj.{'weight_global_scale' if compressed else 'weight_scale_2'}"
    tensors[name] = tensors[name].reciprocal()
    write_checkpoint(tmp_path, tensors, COMPRESSED_NVFP4 if compressed else MODELOPT_NVFP4, experts=1)
    with pytest.raises(CheckpointError, match="the form cannot be told"):
        Checkpoint(tmp_path).read_experts(0, **SHAPE)


def test_fr_23_names_that_contradict_the_config_are_refused(tmp_path: Path) -> None:
    tensors = per_expert(random_weights(experts=1), container(0), LEAVES, compressed=True)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=1)
    with pytest.raises(CheckpointError, match="cannot be told"):
        Checkpoint(tmp_path).read_experts(0, **SHAPE)


@pytest.mark.parametrize("leaves", [LEAVES, {"gate": "w1", "up": "w3", "down": "w2"}])
@guards(faults.keys_unaccounted)
def test_fr_24_every_key_is_accounted_for(tmp_path: Path, leaves: dict[str, str]) -> None:
    tensors = per_expert(random_weights(), container(0), leaves)
    write_checkpoint(tmp_path / "good", tensors, MODELOPT_NVFP4, experts=3)
    Checkpoint(tmp_path / "good").read_experts(0, **SHAPE, static_inputs=True)
    tensors[f"{container(0)}.1.{leaves['up']}.weight_scale_3"] = torch.zeros(1)
    del tensors[f"{container(0)}.0.{leaves['gate']}.weight_scale"]
    write_checkpoint(tmp_path / "bad", tensors, MODELOPT_NVFP4, experts=3)
    with pytest.raises(CheckpointError) as error:
        Checkpoint(tmp_path / "bad").read_experts(0, **SHAPE, static_inputs=True)
    assert f"1 missing: 0.{leaves['gate']}.weight_scale" in error.value.what
    assert f"1 left over: 1.{leaves['up']}.weight_scale_3" in error.value.what


@pytest.mark.parametrize(
    "ignore",
    [
        [f"model.layers.1.mlp.experts.{e}.{leaf}" for e in range(3) for leaf in LEAVES.values()],
        ["model.layers.1*"],
        [r"re:model\.layers\.1\..*"],
        ["model.layers.1.mlp.experts"],
    ],
)
@pytest.mark.parametrize("base", [MODELOPT_NVFP4, COMPRESSED_NVFP4])
@guards(faults.exclude_lists_ignored)
def test_fr_25_exclude_lists_reach_fused_experts(tmp_path: Path, ignore: list[str], base: dict[str, Any]) -> None:
    compressed = base is COMPRESSED_NVFP4
    tensors = per_expert(random_weights(), container(0), LEAVES, compressed=compressed)
    tensors |= per_expert(random_weights(seed=5), container(10), LEAVES, compressed=compressed)
    for expert in range(3):
        for leaf, shape in (("gate_proj", (48, 64)), ("up_proj", (48, 64)), ("down_proj", (64, 48))):
            tensors[f"{container(1)}.{expert}.{leaf}.weight"] = torch.zeros(shape, dtype=torch.bfloat16)
    write_checkpoint(tmp_path, tensors, {**base, "ignore": ["lm_head", *ignore]}, experts=3)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.layers == (0, 1, 10)
    assert checkpoint.quantised_layers() == (0, 10)
    checkpoint.read_experts(0, **SHAPE)
    with pytest.raises(CheckpointError, match="excluded from quantisation"):
        checkpoint.read_experts(1, **SHAPE)


def test_fr_25_half_excluded_layer_is_refused(tmp_path: Path) -> None:
    tensors = per_expert(random_weights(), container(0), LEAVES)
    quantization = {**MODELOPT_NVFP4, "ignore": ["model.layers.0.mlp.experts.1"]}
    write_checkpoint(tmp_path, tensors, quantization, experts=3)
    with pytest.raises(CheckpointError, match="3 of 9 expert modules are excluded"):
        Checkpoint(tmp_path).quantised_layers()


@pytest.mark.parametrize(
    ("pattern", "module", "expected"),
    [
        ("model.layers.1*", "model.layers.1.mlp.experts.0.up_proj", True),
        ("model.layers.1*", "model.layers.10.mlp.experts.0.up_proj", False),
        ("model.layers.1", "model.layers.1.mlp", True),
        ("model.layers.1", "model.layers.10.mlp", False),
        ("*.mlp.experts", "model.layers.1.mlp.experts.0.up_proj", True),
        ("*shared_experts*", "model.layers.1.mlp.experts.0.up_proj", False),
        (r"re:.*\.0\.up_proj$", "model.layers.1.mlp.experts.0.up_proj", True),
        (r"re:(?i)MODEL\.layers\.1\.", "model.layers.1.mlp.experts.0.up_proj", True),
        (r"re:.*mlp\.gate$", "model.layers.1.mlp.gate_proj", False),
        ("model.layers.?.mlp", "model.layers.1.mlp.experts.0.up_proj", True),
        ("lm_head", "model.layers.1.mlp.experts.0.up_proj", False),
    ],
)
def test_fr_25_patterns(pattern: str, module: str, expected: bool) -> None:
    assert excludes(pattern, module) is expected


def test_fr_25_a_list_of_quantised_layers_excludes_the_others(tmp_path: Path) -> None:
    """ModelOpt's mixed precision names what it quantised; experts named as FP8, or not at all, are not NVFP4."""
    tensors = per_expert(random_weights(), container(0), LEAVES)
    tensors |= per_expert(random_weights(), container(1), LEAVES)
    listed = {
        "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"},
        "model.layers.1.mlp.experts": {"quant_algo": "FP8"},
    }
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    write_checkpoint(tmp_path, tensors, quantization, experts=3)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.quantised_layers() == (0,)
    with pytest.raises(CheckpointError, match="quantized_layers"):
        checkpoint.read_experts(1, **SHAPE)


def test_fr_25_a_broken_pattern_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"x": torch.zeros(1)}, {**MODELOPT_NVFP4, "ignore": ["re:layers.(1"]}, experts=3)
    with pytest.raises(CheckpointError, match=r"'re:layers\.\(1' is no regular expression"):
        Checkpoint(tmp_path)


def test_fr_26_keys_outside_the_experts_never_abort(tmp_path: Path) -> None:
    tensors = per_expert(random_weights(), container(0), LEAVES)
    for name in ("k_proj.k_scale", "v_proj.v_scale"):
        tensors[f"model.layers.0.self_attn.{name}"] = torch.ones(())
    tensors["mtp.layers.0.mlp.experts.gate_up_proj"] = torch.zeros(2, 2, dtype=torch.bfloat16)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=3)
    assert Checkpoint(tmp_path).read_experts(0, **SHAPE, static_inputs=True).experts == 3
