"""MoELayer on the torch reference: what it computes, what it accepts, and what it refuses."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import faults
import pytest
import torch
from faults import guards
from runtime.packages import TestPackage, make_inputs, reference_output, reference_package, spec_with
from runtime.writers import MODELOPT_NVFP4, per_expert, random_weights, write_checkpoint

from moegen.core.enums import ActivationKind, CombineMode, Epilogue
from moegen.core.errors import CheckpointError, MoegenError, NotBuilt, StoreError, TensorError
from moegen.core.ops import Activation
from moegen.numerics.reference.layer import layer_reference
from moegen.runtime import ExpertWeights, FusedMatrix, MoELayer, experts_per_rank, fused_experts, prepare_experts
from moegen.runtime.calibration import layer_weights
from moegen.store.artifacts import ArtifactStore

TOKENS = 11


@pytest.mark.parametrize("epilogue", list(Epilogue))
def test_each_epilogue_computes_the_reference(tiny: TestPackage, weights: ExpertWeights, epilogue: Epilogue) -> None:
    layer = tiny.load(epilogue=epilogue).from_tensors(weights)
    inputs = make_inputs(layer, TOKENS)
    decision = layer.engine.decide(TOKENS)
    assert layer.engine.pipelines[decision.pipeline].epilogue is epilogue
    y = layer(*inputs)
    assert y.shape == (TOKENS, 64)
    assert y.dtype is torch.bfloat16
    assert torch.equal(y, reference_output(layer, decision.pipeline, *inputs))
    assert y.float().abs().max() > 0


@guards(faults.buffers_without_lifetimes)
def test_epilogues_of_one_numerics_class_agree_bit_for_bit(
    tiny: TestPackage, weights: ExpertWeights, tmp_path: Path
) -> None:
    outputs = []
    for epilogue in Epilogue:
        layer = tiny.load(epilogue=epilogue).from_tensors(weights)
        outputs.append(layer(*make_inputs(layer, TOKENS)))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def without_inputs(weights: ExpertWeights) -> ExpertWeights:
    """The same weights, from a checkpoint without static input scales."""
    return ExpertWeights(
        gate=None if weights.gate is None else replace(weights.gate, input=None),
        up=replace(weights.up, input=None),
        down=replace(weights.down, input=None),
    )


SPECS = {
    "w4a16": spec_with(activations={"format": "bf16", "activation_scale": None}, epilogues=["interleaved", "compact"]),
    "dynamic": spec_with(
        activations={"activation_scale": {"gemm1": "dynamic_tensor", "gemm2": "dynamic_tensor"}}, epilogues=["compact"]
    ),
    "ungated": spec_with(activation={"kind": "relu2"}, epilogues=["compact", "fused_fp4"]),
    "bias": spec_with(weights={"bias": True}),
    "atomic": spec_with(combine=["atomic"], epilogues=["fused_fp4"]),
    "pre_quant": spec_with(numerics={"router_weight": "pre_quant"}),
    "input": spec_with(numerics={"router_weight": "input"}),
    "linear": spec_with(scale_layout={"activations": "linear", "weights": "linear"}),
    "fp16": spec_with(activations={"dtype": "fp16"}, epilogues=["fused_fp4"]),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_layer_computes_the_reference(tmp_path, name: str) -> None:
    spec = SPECS[name]
    made = reference_package(spec, tmp_path)
    weights = random_weights(experts=7, gated=name != "ungated", bias=name == "bias")
    if name in ("dynamic", "w4a16"):
        weights = without_inputs(weights)
    layer = made.load().from_tensors(weights)
    inputs = make_inputs(layer, TOKENS)
    assert torch.equal(layer(*inputs), reference_output(layer, layer.engine.decide(TOKENS).pipeline, *inputs))


def test_scales_are_read_only_where_kernels_need_them(tmp_path) -> None:
    """gemm1 dynamic, gemm2 static: gate's and up's input scales may be missing, down's may not."""
    mixed = spec_with(
        activations={"activation_scale": {"gemm1": "dynamic_tensor", "gemm2": "static"}}, epilogues=["fused_fp4"]
    )
    loaded = reference_package(mixed, tmp_path).load()
    weights = random_weights(experts=7)
    partly = replace(without_inputs(weights), down=weights.down)
    layer = loaded.from_tensors(partly)
    inputs = make_inputs(layer, TOKENS)
    name = layer.engine.decide(TOKENS).pipeline
    assert torch.equal(layer(*inputs), reference_output(layer, name, *inputs))
    with pytest.raises(CheckpointError, match="static activation scale"):
        loaded.from_tensors(without_inputs(weights))
    leaves = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    write_checkpoint(tmp_path, per_expert(partly, "model.layers.0.mlp.experts", leaves), MODELOPT_NVFP4, experts=7)
    assert torch.equal(loaded.from_checkpoint(tmp_path, 0)(*inputs), layer(*inputs))


def test_no_tokens_launch_nothing(layer: MoELayer) -> None:
    y = layer(*make_inputs(layer, 0))
    assert y.shape == (0, 64)
    assert y.dtype is torch.bfloat16
    assert sum(layer.engine.decider.counts.values()) == 0


def test_int32_ids_and_foreign_ids(layer: MoELayer) -> None:
    x, ids, weights = make_inputs(layer, TOKENS)
    assert torch.equal(layer(x, ids.int(), weights), layer(x, ids, weights))
    ids[3] = -1
    ids[5] = 7
    y = layer(x, ids, weights)
    assert torch.equal(y[3], torch.zeros(64, dtype=torch.bfloat16))
    assert torch.equal(y[5], torch.zeros(64, dtype=torch.bfloat16))
    assert torch.count_nonzero(layer(x, torch.full_like(ids, -1), weights)) == 0


def test_a_call_leaves_its_inputs_alone(layer: MoELayer) -> None:
    inputs = make_inputs(layer, TOKENS)
    before = [tensor.clone() for tensor in inputs]
    layer(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, lambda t: t.float(), r"x is \[11, 64\] torch.float32"),
        (0, lambda t: t[:, :32].contiguous(), r"expected \[T, 64\]"),
        (0, lambda t: t[None], "x is"),
        (0, lambda t: t.repeat(1, 2)[:, ::2], "contiguous"),
        (0, lambda t: t.to("meta"), "on cpu, where the weights are"),
        (0, lambda t: t.requires_grad_(), "no backward"),
        (1, lambda t: t.to(torch.int16), "int64 or int32"),
        (1, lambda t: t.float(), "topk_ids"),
        (1, lambda t: t[:, :2].contiguous(), r"expected \[11, 3\]"),
        (1, lambda t: t[:5], r"topk_ids is \[5, 3\]"),
        (1, lambda t: t.t().contiguous().t(), "contiguous"),
        (2, lambda t: t.bfloat16(), r"expected \[11, 3\] float32"),
        (2, lambda t: t.to("meta"), "topk_weights"),
        (2, lambda t: t.flatten(), "topk_weights"),
    ],
)
def test_wrong_tensors_are_refused_by_name(layer: MoELayer, index: int, change, message: str) -> None:
    inputs = list(make_inputs(layer, TOKENS))
    inputs[index] = change(inputs[index])
    with pytest.raises(TensorError, match=message) as error:
        layer(*inputs)
    assert error.value.where in ("x", "topk_ids", "topk_weights")
    assert error.value.fix


def test_more_tokens_than_declared_are_refused(tiny: TestPackage, weights: ExpertWeights) -> None:
    layer = tiny.load(max_tokens=8).from_tensors(weights)
    layer(*make_inputs(layer, 8))
    with pytest.raises(TensorError, match="declared for 8") as error:
        layer(*make_inputs(layer, 9))
    assert "max_tokens=9" in error.value.fix


def test_weights_of_another_geometry_are_refused(tiny: TestPackage) -> None:
    loaded = tiny.load()
    good = random_weights(experts=7)
    cases = [
        (random_weights(experts=8), "8 experts"),
        (random_weights(experts=7, gated=False), "without a gate"),
        (random_weights(experts=7, hidden=96), r"gate.codes has shape \(7, 48, 48\), expected \(7, 48, 32\)"),
        (replace(good, up=replace(good.up, second=torch.zeros(7))), r"up.second\[0\] is 0.0"),
        (replace(good, down=replace(good.down, input=None)), "static activation scale"),
        (replace(good, down=replace(good.down, codes=good.down.codes.float())), "down.codes is torch.float32"),
    ]
    for bad, message in cases:
        with pytest.raises(CheckpointError, match=message):
            loaded.from_tensors(bad)


def test_expert_parallel_ranks_sum_to_the_whole(tmp_path, weights: ExpertWeights) -> None:
    whole = reference_package(spec_with(name="whole"), tmp_path / "whole").load().from_tensors(weights)
    made = reference_package(spec_with(name="rank", geometry={"experts": 7, "local_experts": 4}), tmp_path / "rank")
    inputs = make_inputs(whole, TOKENS)
    total = torch.zeros(TOKENS, 64)
    for held in experts_per_rank(7, 2):
        rank = made.load().from_tensors(weights.experts_slice(held.start, len(held)))
        assert rank.first_expert == held.start
        total += rank(*inputs).float()
    expected = whole(*inputs).float()
    assert (total - expected).norm() / expected.norm() < 5e-3


def test_two_packages_share_nothing_and_two_layers_share_the_workspace(
    tiny: TestPackage, weights: ExpertWeights
) -> None:
    loaded = tiny.load()
    first, second = loaded.from_tensors(weights), loaded.from_tensors(random_weights(experts=7, seed=9))
    assert first.engine.pool is second.engine.pool
    inputs = make_inputs(first, TOKENS)
    alone = first(*inputs)
    second(*inputs)
    assert torch.equal(first(*inputs), alone)
    assert loaded.workspace_bytes == first.workspace_bytes == first.engine.pool.allocated_bytes


def test_stale_bytes_in_the_workspace_change_nothing(tiny: TestPackage, weights: ExpertWeights) -> None:
    for epilogue in Epilogue:
        layer = tiny.load(epilogue=epilogue).from_tensors(weights)
        inputs = make_inputs(layer, TOKENS)
        clean = layer(*inputs)
        for poison in (0x7F, 0xFF, 0x7E):
            with layer.engine.pool.slot() as slot:
                slot.workspace.poison(poison)
            assert torch.equal(layer(*inputs), clean)


def test_combine_is_ordered_unless_asked(tmp_path, weights: ExpertWeights) -> None:
    made = reference_package(spec_with(combine=["ordered", "atomic"], tune={"pipelines": 6}), tmp_path)
    assert {p.combine for p in made.load().decider.pipelines.values()} == {CombineMode.ORDERED}
    asked = made.load(combine="atomic")
    assert {p.combine for p in asked.decider.pipelines.values()} == {CombineMode.ATOMIC}


def test_numerics_classes_are_never_mixed(tmp_path) -> None:
    """pre_quant_round fp32: only the fused mode has the declared class; the others round to bf16."""
    made = reference_package(spec_with(numerics={"pre_quant_round": "fp32"}), tmp_path)
    declared = made.load()
    assert {p.epilogue for p in declared.decider.pipelines.values()} == {Epilogue.FUSED_FP4}
    compact = made.load(epilogue="compact")
    (numerics,) = {p.numerics for p in compact.decider.pipelines.values()}
    other = made.load(numerics=numerics)
    assert {p.epilogue for p in other.decider.pipelines.values()} == {Epilogue.INTERLEAVED, Epilogue.COMPACT}


def test_a_mode_the_package_lacks_is_refused_with_its_reason(tmp_path) -> None:
    made = reference_package(SPECS["dynamic"], tmp_path)
    with pytest.raises(MoegenError, match="needs a static gemm2 scale"):
        made.load(epilogue="fused_fp4")
    with pytest.raises(MoegenError, match="no pipeline fits"):
        made.load(pipeline="nonsense")


def test_not_built_says_which_command(tiny: TestPackage, tmp_path) -> None:
    with pytest.raises(NotBuilt) as error:
        TestPackage(directory=tiny.directory, store=ArtifactStore(tmp_path / "empty")).load()
    assert error.value.fix == f"moegen build {tiny.directory} --target cpu"
    assert str(tmp_path / "empty") in error.value.where


def test_no_manifest_no_target(tiny: TestPackage, tmp_path) -> None:
    from moegen.runtime import load

    with pytest.raises(StoreError, match="no manifest"):
        load(tmp_path)
    with pytest.raises(MoegenError, match="no target sm_90a"):
        load(tiny.directory, target="sm_90a")
    with pytest.raises(MoegenError, match="no target hopper"):
        load(tiny.directory, target="hopper")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"epilogue": "fused"}, "interleaved, compact, fused_fp4"),
        ({"combine": "any"}, "ordered"),
        ({"max_tokens": -1}, "-1"),
    ],
)
def test_unknown_options_are_refused(tiny: TestPackage, option: dict[str, Any], message: str) -> None:
    with pytest.raises(MoegenError, match=message):
        tiny.load(**option)


def test_compiled_without_graph_breaks(layer: MoELayer) -> None:
    inputs = make_inputs(layer, TOKENS)

    def block(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return layer(x * 2, ids, weights) + x

    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*inputs), block(*inputs))
    empty = make_inputs(layer, 0)
    assert compiled(*empty).shape == (0, 64)


def test_custom_op_passes_opcheck(layer: MoELayer) -> None:
    torch.library.opcheck(torch.ops.moegen.moe_layer.default, (*make_inputs(layer, 5), layer._handle))


def test_compiled_code_of_a_dead_layer_says_so(layer: MoELayer) -> None:
    inputs = make_inputs(layer, 2)
    with pytest.raises(MoegenError, match="gone"):
        torch.ops.moegen.moe_layer(*inputs, 2**40)


def test_eight_threads_make_the_first_call_at_once(tiny: TestPackage, weights: ExpertWeights) -> None:
    layer = tiny.load().from_tensors(weights)
    inputs = [make_inputs(layer, 5 + index, seed=index) for index in range(8)]
    expected = [tiny.load().from_tensors(weights)(*one) for one in inputs]
    results: list[torch.Tensor | None] = [None] * 8
    gate = threading.Barrier(8)

    def call(index: int) -> None:
        gate.wait()
        results[index] = layer(*inputs[index])

    threads = [threading.Thread(target=call, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, wanted in zip(results, expected, strict=True):
        assert result is not None
        assert torch.equal(result, wanted)
    assert sum(layer.engine.decider.counts.values()) == 8


def test_functional_form_equals_the_layer(tiny: TestPackage, weights: ExpertWeights) -> None:
    loaded = tiny.load()
    layer = loaded.from_tensors(weights)
    gate, up, down = weights.gate, weights.up, weights.down
    assert gate is not None
    assert gate.input is not None
    assert up.input is not None
    w13 = FusedMatrix(
        codes=torch.cat((gate.codes, up.codes), 1).view(torch.float4_e2m1fn_x2),
        scales=torch.cat((gate.scales, up.scales), 1).view(torch.float8_e4m3fn),
        second=torch.stack((gate.second, up.second), 1),
        input=torch.stack((gate.input, up.input), 1),
    )
    w2 = FusedMatrix(codes=down.codes, scales=down.scales, second=down.second, input=down.input)
    prepared = prepare_experts(loaded, w13, w2)
    inputs = make_inputs(layer, TOKENS)
    assert torch.equal(fused_experts(*inputs, prepared), layer(*inputs))


def test_explain_walks_back_to_the_spec(layer: MoELayer) -> None:
    layer(*make_inputs(layer, TOKENS))
    text = str(layer.explain(tokens=TOKENS))
    explanation = layer.explain(tokens=TOKENS)
    assert explanation.decision.source.value == "model"
    assert explanation.counts == {"model": 1}
    for step in explanation.steps:
        assert step.variant in text
        assert step.artifact[:16] in text
        assert step.source.is_file()
        assert step.artifact_directory.is_dir()
    path, line, _ = explanation.spec[0]
    assert path.read_text().splitlines()[line - 1].startswith("geometry:")
    with pytest.raises(MoegenError):
        layer.explain(tokens=0)


def test_print_of_a_model_shows_the_layer(layer: MoELayer) -> None:
    assert "tiny, cpu, experts 0 … 6, hidden 64, top_k 3" in repr(layer)


def test_calibrated_scales_serve_a_checkpoint_without_any(tiny: TestPackage, weights: ExpertWeights) -> None:
    """Scales from samples: gemm1's maps the samples' amax to 2688, and the layer stays close to W4A16."""
    loaded = tiny.load()
    bare = without_inputs(weights)
    with pytest.raises(CheckpointError, match="static activation scale"):
        loaded.from_tensors(bare)
    x, ids, router = make_inputs(loaded.from_tensors(weights), 40)
    ids[ids == 6] = 0
    filled = loaded.calibrate(bare, x, ids, router, headroom=2.0)
    assert filled.up.input is not None
    assert filled.down.input is not None
    assert filled.up.input.tolist() == pytest.approx([2.0 * x.float().abs().max().item() / 2688] * 7, rel=1e-6)
    assert filled.down.input[6] == filled.down.input[:6].max(), "no sample reached expert 6"
    layer = loaded.from_tensors(filled)
    expected = layer_reference(x, ids, router, layer_weights(filled), Activation(kind=ActivationKind.SWIGLU))
    got = layer(x, ids, router).float()
    assert torch.nn.functional.cosine_similarity(got.flatten(), expected.flatten().float(), dim=0) > 0.97
    with pytest.raises(TensorError, match="no sample reached any expert"):
        loaded.calibrate(bare, x, torch.full_like(ids, -1), router)
