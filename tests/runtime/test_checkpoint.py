"""Every naming convention reads back to the same canonical bytes, and every damage is one error that names it."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from runtime.writers import (
    COMPRESSED_NVFP4,
    MODELOPT_NVFP4,
    fused,
    per_expert,
    random_weights,
    stacked,
    write_checkpoint,
)

from moegen.core.enums import ActFormat, GateUpOrder
from moegen.core.errors import CheckpointError
from moegen.runtime.checkpoint import Checkpoint, ExpertWeights, Projection, read_quant_config

PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
W123 = {"gate": "w1", "up": "w3", "down": "w2"}
UNGATED = {"up": "up_proj", "down": "down_proj"}
SHAPE = {"hidden": 64, "intermediate": 48}
CONTAINER = "model.layers.2.mlp.experts"


def assert_equal(read: ExpertWeights, written: ExpertWeights) -> None:
    for side in ("gate", "up", "down"):
        a, b = getattr(read, side), getattr(written, side)
        assert (a is None) == (b is None)
        for field in fields(Projection) if b is not None else ():
            x, y = getattr(a, field.name), getattr(b, field.name)
            if y is not None:
                torch.testing.assert_close(x, y, rtol=1e-6 if x.is_floating_point() else 0, atol=0)


@pytest.mark.parametrize(
    ("container", "leaves", "compressed"),
    [
        (CONTAINER, PROJECTIONS, False),
        (CONTAINER, PROJECTIONS, True),
        ("model.language_model.layers.2.mlp.experts", PROJECTIONS, False),
        ("language_model.model.layers.2.mlp.experts", PROJECTIONS, False),
        ("model.language_model.layers.2.experts", PROJECTIONS, False),
        ("layers.2.ffn.experts", W123, False),
        ("language_model.model.layers.2.block_sparse_moe.experts", W123, False),
        ("layers.2.experts", W123, False),
        ("backbone.layers.2.mixer.experts", UNGATED, False),
        ("backbone.layers.2.mixer.experts", UNGATED, True),
    ],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_per_expert_names_read_back_bit_for_bit(
    tmp_path: Path, container: str, leaves: dict[str, str], compressed: bool, shards: int
) -> None:
    gated = "gate" in leaves
    written = random_weights(gated=gated, bias=compressed)
    tensors = per_expert(written, container, leaves, compressed=compressed)
    quantization = COMPRESSED_NVFP4 if compressed else MODELOPT_NVFP4
    write_checkpoint(tmp_path, tensors, quantization, experts=3, shards=shards)
    read = Checkpoint(tmp_path).read_experts(2, **SHAPE, gated=gated, bias=compressed, static_inputs=True)
    assert_equal(read, written)


def test_stacked_names_read_back(tmp_path: Path) -> None:
    written = random_weights()
    write_checkpoint(tmp_path, stacked(written, "model.layers.2.moe"), MODELOPT_NVFP4, experts=3)
    checkpoint = Checkpoint(tmp_path)
    assert_equal(checkpoint.read_experts(2, **SHAPE, static_inputs=True), written)
    part = checkpoint.read_experts(2, **SHAPE, static_inputs=True, first_expert=1, experts=2)
    assert_equal(part, written.experts_slice(1, 2))
    assert part.first_expert == 1


def one_scale(weights: ExpertWeights) -> ExpertWeights:
    """All second-level and input scales of a side equal, and gate's equal to up's."""

    def same(side: Projection, second: float, inputs: float) -> Projection:
        count = (side.experts,)
        return replace(side, second=torch.full(count, second), input=torch.full(count, inputs))

    assert weights.gate is not None
    return replace(
        weights,
        gate=same(weights.gate, 0.002, 0.05),
        up=same(weights.up, 0.002, 0.05),
        down=same(weights.down, 0.003, 0.07),
    )


@pytest.mark.parametrize(("block", "interleaved"), [("mlp", True), ("feed_forward", False)])
def test_fused_columns_are_transposed_and_split(tmp_path: Path, block: str, interleaved: bool) -> None:
    written = one_scale(random_weights(bias=interleaved))
    tensors = fused(written, f"model.layers.2.{block}.experts", interleaved=interleaved)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=3)
    order = GateUpOrder.INTERLEAVED if interleaved else GateUpOrder.GATE_UP
    checkpoint = Checkpoint(tmp_path)
    read = checkpoint.read_experts(2, **SHAPE, bias=interleaved, static_inputs=True, order=order)
    assert_equal(read, written)
    part = checkpoint.read_experts(2, **SHAPE, bias=interleaved, static_inputs=True, first_expert=2, experts=1)
    assert_equal(part, written.experts_slice(2, 1))
    with pytest.raises(CheckpointError, match="gate_up_order"):
        checkpoint.read_experts(2, **SHAPE, bias=interleaved, order=GateUpOrder.UP_GATE)


def test_fused_rows_keep_one_scale_per_half(tmp_path: Path) -> None:
    written = random_weights()
    tensors = fused(written, "model.language_model.layers.2.mlp.experts", interleaved=False, transposed=False)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=3)
    assert_equal(Checkpoint(tmp_path).read_experts(2, **SHAPE, static_inputs=True), written)


def test_float4_dtype_reads_as_bytes(tmp_path: Path) -> None:
    """FR-27: codes stored as float4_e2m1fn_x2 are the same bytes."""
    written = random_weights()
    tensors = per_expert(written, CONTAINER, PROJECTIONS)
    for name in [name for name in tensors if name.endswith(".weight")]:
        tensors[name] = tensors[name].view(torch.float4_e2m1fn_x2)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=3)
    assert_equal(Checkpoint(tmp_path).read_experts(2, **SHAPE, static_inputs=True), written)


def damaged(tmp_path: Path, change: dict[str, torch.Tensor | None]) -> Checkpoint:
    tensors = per_expert(random_weights(), CONTAINER, PROJECTIONS)
    for name, tensor in change.items():
        full = f"{CONTAINER}.{name}"
        if tensor is None:
            del tensors[full]
        else:
            tensors[full] = tensor
    return Checkpoint(write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"1.up_proj.weight": torch.zeros(48, 64)}, r"1\.up_proj\.weight: dtype F32"),
        ({"1.up_proj.weight": torch.zeros(48, 64, dtype=torch.bfloat16)}, r"1\.up_proj\.weight: dtype BF16"),
        ({"0.down_proj.weight": torch.zeros(64, 25, dtype=torch.uint8)}, r"shape \[64, 25\], expected \[64, 24\]"),
        ({"0.gate_proj.weight_scale": torch.zeros(4, 48, dtype=torch.uint8)}, r"shape \[4, 48\], expected \[48, 4\]"),
        ({"2.gate_proj.weight_scale_2": torch.tensor(float("nan"))}, r"2\.gate_proj\.weight_scale_2: scale \[nan\]"),
        ({"2.gate_proj.weight_scale_2": torch.tensor(0.0)}, "positive finite"),
        ({"2.down_proj.input_scale": torch.tensor(float("inf"))}, r"2\.down_proj\.input_scale"),
        ({"3.up_proj.weight_scale_2": torch.tensor(0.1)}, r"1 left over: 3\.up_proj\.weight_scale_2"),
        ({"1.up_proj.weight_zero_point": torch.tensor(0.1)}, r"left over: 1\.up_proj\.weight_zero_point"),
        (
            {"1.up_proj.weight_scale": None, "0.down_proj.weight": None},
            r"2 missing: 1\.up_proj\.weight_scale, 0\.down_proj",
        ),
    ],
)
def test_damage_is_one_error_that_names_the_tensor(
    tmp_path: Path, change: dict[str, torch.Tensor | None], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        damaged(tmp_path, change).read_experts(2, **SHAPE, static_inputs=True)
    assert "layer 2" in error.value.where
    assert error.value.fix


@pytest.mark.parametrize("gated", [False, True])
def test_a_gate_that_only_one_side_knows_is_refused(tmp_path: Path, gated: bool) -> None:
    """A gate that nobody reads would be weights skipped silently."""
    leaves, container = (PROJECTIONS, CONTAINER) if gated else (UNGATED, "backbone.layers.2.mixer.experts")
    tensors = per_expert(random_weights(gated=gated), container, leaves)
    checkpoint = Checkpoint(write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=3))
    checkpoint.read_experts(2, **SHAPE, gated=gated)
    with pytest.raises(CheckpointError, match="the experts have a gate" if gated else "the experts have no gate"):
        checkpoint.read_experts(2, **SHAPE, gated=not gated)


def test_missing_files_and_layers(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no safetensors"):
        Checkpoint(tmp_path)
    tensors = per_expert(random_weights(), CONTAINER, PROJECTIONS)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=3, shards=3)
    with pytest.raises(CheckpointError, match=r"layers that have some: 2"):
        Checkpoint(tmp_path).read_experts(7, **SHAPE)
    with pytest.raises(CheckpointError, match="experts 2 … 3 of 3"):
        Checkpoint(tmp_path).read_experts(2, **SHAPE, first_expert=2, experts=2)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00003"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("keep", [3, 100, -7])
def test_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    tensors = per_expert(random_weights(), CONTAINER, PROJECTIONS)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=3, shards=2)
    file = tmp_path / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="truncated") as error:
        Checkpoint(tmp_path).read_experts(2, **SHAPE)
    assert error.value.where == str(file)


def test_index_that_promises_too_much(tmp_path: Path) -> None:
    tensors = per_expert(random_weights(), CONTAINER, PROJECTIONS)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=3, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("0.up_proj.weight_scale_2", "0.up_proj.weight_scale_9"))
    with pytest.raises(
        CheckpointError, match=r"missing: 0\.up_proj\.weight_scale_2.*left over: 0\.up_proj\.weight_scale_9"
    ):
        Checkpoint(tmp_path).read_experts(2, **SHAPE)
    index.write_text("{")
    with pytest.raises(CheckpointError, match="damaged index"):
        Checkpoint(tmp_path)


def test_quantisation_without_nvfp4_is_refused(tmp_path: Path) -> None:
    for quantization, message in [
        ({"quant_method": "awq"}, "awq"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "FP8"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}},
            "no compressed-tensors group",
        ),
    ]:
        write_checkpoint(tmp_path, {"x": torch.zeros(1)}, quantization, experts=3)
        with pytest.raises(CheckpointError, match=message):
            Checkpoint(tmp_path)


def test_activation_format_comes_from_the_config(tmp_path: Path) -> None:
    weight_only = {**COMPRESSED_NVFP4["config_groups"]["group_0"], "input_activations": None}
    cases = [
        (MODELOPT_NVFP4, ActFormat.NVFP4),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, ActFormat.BF16),
        ({"quant_method": "fp8", "moe_quant_algo": "NVFP4"}, ActFormat.NVFP4),
        (COMPRESSED_NVFP4, ActFormat.NVFP4),
        ({**COMPRESSED_NVFP4, "config_groups": {"group_0": weight_only}}, ActFormat.BF16),
    ]
    for quantization, expected in cases:
        write_checkpoint(tmp_path, {"x": torch.zeros(1)}, quantization, experts=3)
        config = read_quant_config(tmp_path)
        assert config is not None
        assert config.act_format is expected


def test_unread_input_scales_are_no_leftovers(tmp_path: Path) -> None:
    """A W4A16 layer reads a W4A4 checkpoint: input scales are left aside, not complained about."""
    checkpoint = damaged(tmp_path, {"1.down_proj.input_scale": None})
    assert checkpoint.read_experts(2, **SHAPE).down.input is None
