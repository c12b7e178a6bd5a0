"""Failures of loaders, dispatchers and workspaces that people met in public, with the right values asserted."""

import threading
from dataclasses import replace
from pathlib import Path

import faults
import pytest
import torch
from faults import guards
from runtime.packages import TestPackage, make_inputs, reference_package, spec_with
from runtime.writers import MODELOPT_NVFP4, fused, fused_forms, per_expert, random_weights, write_checkpoint

from moegen.core.enums import Epilogue, GateUpOrder
from moegen.core.errors import CheckpointError, LayoutError, MoegenError
from moegen.core.package import read_manifest
from moegen.numerics import e2m1, e4m3
from moegen.runtime import ExpertWeights, FusedMatrix, Projection, experts_per_rank, prepare_experts
from moegen.runtime.decision import Source
from moegen.runtime.workspace import plan_arena
from moegen.store.tables import Candidate, Point, Table, freeze, table_path

W4A16 = spec_with(activations={"format": "bf16", "activation_scale": None}, epilogues=["interleaved", "compact"])


@pytest.fixture(scope="module")
def w4a16(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    return reference_package(W4A16, tmp_path_factory.mktemp("w4a16"))


@pytest.fixture(scope="module")
def w4a4(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    return reference_package(spec_with(), tmp_path_factory.mktemp("w4a4"))


def constant(rows: int, columns: int, code: int, second: float) -> Projection:
    """Every row is ``code`` in column 0 and 0 elsewhere, block scale 1, for 7 experts."""
    codes = torch.zeros(7, rows, columns // 2, dtype=torch.uint8)
    codes[:, :, 0] = code
    scales = torch.full((7, rows, columns // 16), 0x38, dtype=torch.uint8)
    return Projection(codes=codes, scales=scales, second=torch.full((7,), second))


def one_row(layer, value: float = 1.0) -> torch.Tensor:
    """Output element of a token whose column 0 is ``value``, routed once with weight 1."""
    x = torch.zeros(1, 64, dtype=torch.bfloat16)
    x[0, 0] = value
    ids = torch.tensor([[0, -1, -1]])
    return layer(x, ids, torch.ones(1, 3))[0, 0].float()


def test_fr_06_no_tokens(w4a16: TestPackage, w4a4: TestPackage) -> None:
    for made in (w4a16, w4a4):
        layer = made.load().from_tensors(random_weights(experts=7))
        compiled = torch.compile(lambda *a, layer=layer: layer(*a), backend="aot_eager", fullgraph=True)
        for call in (layer, compiled):
            y = call(*make_inputs(layer, 0))
            assert y.shape == (0, 64)
            assert y.dtype is torch.bfloat16
        assert layer.engine.book.runner.launches == []


@pytest.mark.parametrize("intermediate", [704, 640])
def test_fr_08_tensor_parallel_shares_sum_to_the_whole(tmp_path: Path, intermediate: int) -> None:
    """I = 704 over 2 and 4 ranks leaves 352 and 176 columns, multiples of neither 64 nor 128."""
    weights = random_weights(3, 128, intermediate, bias=True)
    outputs = {}
    for ranks in (1, 2, 4):
        geometry = {"hidden": 128, "intermediate": intermediate // ranks, "experts": 3, "top_k": 2}
        spec = spec_with(geometry=geometry, weights={"bias": True}, epilogues=["fused_fp4"], tune={"pipelines": 1})
        loaded = reference_package(spec, tmp_path / str(ranks)).load()
        layers = [loaded.from_tensors(weights.intermediate_slice(rank, ranks)) for rank in range(ranks)]
        inputs = make_inputs(layers[0], 9, experts=3)
        outputs[ranks] = sum(layer(*inputs).float() for layer in layers)
        assert all(layer(*inputs).shape == (9, 128) for layer in layers)
    for ranks in (2, 4):
        assert (outputs[ranks] - outputs[1]).norm() / outputs[1].norm() < 5e-3
    with pytest.raises(CheckpointError, match="cuts a block of 16"):
        weights.intermediate_slice(0, 8 if intermediate == 704 else 16)


@pytest.mark.parametrize(
    ("experts", "ranks", "sizes"),
    [(30, 8, [4] * 6 + [3] * 2), (128, 6, [22, 22, 21, 21, 21, 21]), (60, 8, [8] * 4 + [7] * 4), (7, 7, [1] * 7)],
)
def test_fr_15_every_expert_has_one_owner(experts: int, ranks: int, sizes: list[int]) -> None:
    split = experts_per_rank(experts, ranks)
    assert [len(part) for part in split] == sizes
    assert [expert for part in split for expert in part] == list(range(experts))
    with pytest.raises(MoegenError):
        experts_per_rank(ranks - 1, ranks)


@guards(faults.order_taken_for_granted)
def test_fr_18_gate_and_up_are_not_swapped(w4a16: TestPackage, tmp_path: Path) -> None:
    """gate 2, up -1: silu(2)·(-1) = -1.7616; swapped it would be silu(-1)·2 = -0.5379."""
    gate, up = constant(48, 64, code=0x4, second=1.0), constant(48, 64, code=0xA, second=1.0)
    assert e2m1.decode(torch.tensor([0x4, 0xA], dtype=torch.uint8)).tolist() == [2.0, -1.0]
    down = constant(64, 48, code=0x2, second=1.0)
    layer = w4a16.load().from_tensors(ExpertWeights(gate=gate, up=up, down=down))
    assert one_row(layer).item() == pytest.approx(-1.7616, rel=4e-3)
    matrix = {name: torch.cat((getattr(up, name), getattr(gate, name)), 1) for name in ("codes", "scales")}
    swapped = prepare_experts(
        w4a16.load(),
        FusedMatrix(second=torch.ones(7, 2), **matrix),
        FusedMatrix(codes=down.codes, scales=down.scales, second=down.second),
        order=GateUpOrder.UP_GATE,
    )
    assert one_row(swapped).item() == pytest.approx(-1.7616, rel=4e-3)
    inputs = random_weights(experts=7)
    tensors = fused(inputs, "model.layers.0.feed_forward.experts", interleaved=False)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=7)
    other = reference_package(spec_with(weights={"gate_up_order": "up_gate"}), tmp_path / "package")
    with pytest.raises(CheckpointError, match="the spec says otherwise"):
        other.load().from_checkpoint(tmp_path, 0)


@guards(faults.one_alpha_for_both_halves)
def test_fr_19_gate_and_up_keep_their_own_second_level_scale(w4a16: TestPackage, tmp_path: Path) -> None:
    """Same codes and block scales; gate 3.85e-5, up 4.83e-5: their ratio must be 1.2545 in what gemm1 reads."""
    gate, up = constant(48, 64, 0x2, 3.85e-5), constant(48, 64, 0x2, 4.83e-5)
    layer = w4a16.load().from_tensors(ExpertWeights(gate=gate, up=up, down=constant(64, 48, 0x2, 1.0)))
    (alpha,) = (tensor for key, tensor in layer.engine.bank._tensors.items() if key[-1] == "w1_alpha")
    assert alpha.shape == (7, 2)
    assert (alpha[0, 1] / alpha[0, 0]).item() == pytest.approx(1.2545, abs=1e-4)
    assert layer.scale_report.unequal_pairs == 7
    g, u = 3.85e-5 * 2.0**14, 4.83e-5 * 2.0**14
    expected = g / (1 + torch.exp(torch.tensor(-g))).item() * u
    assert one_row(layer, 2.0**14).item() == pytest.approx(expected, rel=8e-3)


@guards(faults.slices_start_at_zero)
def test_fr_20_every_rank_quantises_tokens_with_the_layers_scale(w4a4: TestPackage, tmp_path: Path) -> None:
    """gemm1's one scale is the maximum over all experts of the layer, on rank 1 too; gemm2's are the rank's own."""
    weights = random_weights(experts=14)
    assert weights.gate is not None
    powers = torch.tensor([2.0**-i for i in range(14)])
    weights = replace(
        weights,
        gate=replace(weights.gate, input=powers),
        up=replace(weights.up, input=powers),
        down=replace(weights.down, input=powers),
    )
    leaves = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    write_checkpoint(tmp_path, per_expert(weights, "model.layers.0.mlp.experts", leaves), MODELOPT_NVFP4, experts=14)
    made = reference_package(spec_with(geometry={"experts": 14, "local_experts": 7}), tmp_path / "rank")
    rank1 = made.load().from_checkpoint(tmp_path, 0, first_expert=7, experts=7)
    tensors = {key[-1]: tensor for key, tensor in rank1.engine.bank._tensors.items()}
    assert tensors["x_scale"].tolist() == [[1.0, 1.0]]
    assert tensors["h_scale"][:, 1].tolist() == [2.0**-i for i in range(7, 14)]
    assert rank1.scale_report.gemm1_input == 1.0
    with pytest.raises(CheckpointError, match="14 experts, the package was generated for 7"):
        w4a4.load().from_checkpoint(tmp_path, 0)


def test_fr_27_float4_and_column_views_are_the_same_bytes(w4a4: TestPackage) -> None:
    weights = random_weights(experts=7)
    loaded = w4a4.load()
    plain = loaded.from_tensors(weights)
    inputs = make_inputs(plain, 9)
    expected = plain(*inputs)
    forms, w2 = fused_forms(weights)
    for w13 in forms:
        assert torch.equal(prepare_experts(loaded, w13, w2)(*inputs), expected)


def test_sd_05_transposed_or_swizzled_scales_are_refused(w4a4: TestPackage) -> None:
    weights = random_weights(experts=7)
    assert weights.gate is not None
    codes = torch.cat((weights.gate.codes, weights.up.codes), 1)
    scales = torch.cat((weights.gate.scales, weights.up.scales), 1)
    down = weights.down
    w2 = FusedMatrix(codes=down.codes, scales=down.scales, second=down.second, input=down.input)
    for wrong in (
        scales.transpose(1, 2),
        scales.transpose(1, 2).contiguous(),
        torch.zeros(7, 128, 4, dtype=torch.uint8),
    ):
        w13 = FusedMatrix(codes=codes, scales=wrong, second=weights.up.second, input=weights.up.input)
        with pytest.raises(LayoutError):
            prepare_experts(w4a4.load(), w13, w2)


@guards(faults.reload_makes_new_storage)
def test_fr_28_reload_equals_a_fresh_layer_and_keeps_storage(w4a4: TestPackage, tmp_path: Path) -> None:
    leaves = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    a, b = random_weights(experts=7, seed=1), random_weights(experts=7, seed=2)
    write_checkpoint(tmp_path, per_expert(b, "model.layers.4.mlp.experts", leaves), MODELOPT_NVFP4, experts=7)
    loaded = w4a4.load()
    layer, fresh = loaded.from_tensors(a), loaded.from_tensors(b)
    compiled = torch.compile(lambda *args: layer(*args), backend="aot_eager", fullgraph=True)
    inputs = make_inputs(layer, 9)
    before = compiled(*inputs)
    places = {key: tensor.data_ptr() for key, tensor in layer.engine.bank._tensors.items()}
    layer.reload(b)
    assert torch.equal(layer(*inputs), fresh(*inputs))
    assert torch.equal(compiled(*inputs), fresh(*inputs))
    assert not torch.equal(before, fresh(*inputs))
    layer.reload(a)
    assert torch.equal(layer(*inputs), before)
    layer.reload_checkpoint(tmp_path, 4)
    torch.testing.assert_close(layer(*inputs), fresh(*inputs), rtol=2e-2, atol=2e-2)
    assert places == {key: tensor.data_ptr() for key, tensor in layer.engine.bank._tensors.items()}
    with pytest.raises(CheckpointError, match="6 experts from 0"):
        layer.reload(b.experts_slice(0, 6))


def test_fr_32_eight_threads_load_and_call_at_once(w4a4: TestPackage) -> None:
    weights = random_weights(experts=7)
    loaded = w4a4.load()
    expected = loaded.from_tensors(weights)
    inputs = make_inputs(expected, 13)
    wanted, results, gate = expected(*inputs), [], threading.Barrier(8)

    def first_call() -> None:
        gate.wait()
        results.append(loaded.from_tensors(weights)(*inputs))

    threads = [threading.Thread(target=first_call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(torch.equal(result, wanted) for result in results)


@guards(faults.dispatch_has_buckets_of_its_own)
def test_fr_38_every_t_up_to_twice_the_maximum_is_served(w4a4: TestPackage, tmp_path: Path) -> None:
    """The awkward point: T = 3500 between tuned 2048 and 4096, and T above the tuned maximum."""
    from moegen.runtime.environment import current_environment
    from moegen.store.artifacts import ArtifactStore

    loaded = w4a4.load(max_tokens=64)
    names = sorted(loaded.decider.pipelines)
    points = tuple(
        Point(
            tokens=tokens,
            routing="uniform",
            winner=names[index % len(names)],
            candidates=tuple(
                Candidate(pipeline=name, median_us=tokens * (1.0 if name == names[index % len(names)] else 1.5))
                for name in names
            ),
        )
        for index, tokens in enumerate((64, 2048, 4096))
    )
    table = Table(
        package=loaded.package.offer_digest(loaded.target),
        name=loaded.package.name,
        environment=current_environment(loaded.runner.facts),
        policy={},
        selection={},
        numerics=loaded.decider.pipelines[names[0]].numerics,
        points=points,
    )
    store = ArtifactStore(tmp_path, (w4a4.store.home,))
    freeze(table, table_path(store.home, table))
    decider = TestPackage(directory=w4a4.directory, store=store).load(max_tokens=8192).decider
    sources = {decider.decide(tokens).source for tokens in range(32, 8193)}
    assert sources == {Source.EXACT, Source.INTERPOLATED, Source.CLAMPED}
    far = {decider.decide(tokens).source for tokens in range(1, 32)}
    assert far <= {Source.CLAMPED, Source.MODEL}
    assert decider.decide(3500).source is Source.INTERPOLATED
    assert decider.decide(8192).pipeline == points[-1].winner


@pytest.mark.parametrize("foreign", [-1, 7, 2**31 - 1])
def test_fr_46_foreign_ids_add_exactly_nothing(w4a4: TestPackage, foreign: int) -> None:
    for epilogue in Epilogue:
        layer = w4a4.load(epilogue=epilogue).from_tensors(random_weights(experts=7))
        x, ids, weights = make_inputs(layer, 4)
        kept = ids.clone()
        ids[1] = foreign
        ids[2, 0] = foreign
        with layer.engine.pool.slot() as slot:
            slot.workspace.poison(0x7F)
        y = layer(x, ids, weights)
        assert torch.count_nonzero(y[1]) == 0
        weights_without = weights.clone()
        weights_without[2, 0] = 0.0
        assert torch.equal(y[2], layer(x, kept, weights_without)[2])
        assert torch.equal(y[0], layer(x, kept, weights)[0])


def test_fr_48_workspace_keeps_to_its_bound_and_never_grows_with_ranks(tmp_path: Path) -> None:
    """E = 256 on 8 ranks: 32 local experts, T = 8192, k = 8, H = 7168."""
    sizes = {}
    for ranks in (1, 8):
        geometry = {"hidden": 7168, "intermediate": 2048, "experts": 256 // ranks, "top_k": 8}
        made = spec_with(name=f"ep{ranks}", geometry=geometry, tune={"tokens": [8192], "pipelines": 3})
        from runtime.packages import generate_package

        package = read_manifest(generate_package(made, tmp_path).directory)
        for pipeline in next(iter(package.targets.values())).pipelines:
            plan = plan_arena(pipeline, 8192)
            rows = 8192 * 8 + 256 // ranks * (pipeline.row_tile - 1)
            widest = {Epilogue.INTERLEAVED: 2 * 2 * 2048, Epilogue.COMPACT: 2 * 2048, Epilogue.FUSED_FP4: 0}
            row_bytes = 2 * 7168 + (7168 + 2048) * 9 // 16 + widest[pipeline.epilogue] + 64
            assert plan.total <= rows * row_bytes + (1 << 20)
            sizes[ranks, pipeline.epilogue] = plan.total
    for epilogue in Epilogue:
        assert sizes[8, epilogue] <= sizes[1, epilogue]


def test_fr_02_scale_bytes_that_are_nan_are_refused(w4a4: TestPackage) -> None:
    weights = random_weights(experts=7)
    bad = weights.up.scales.clone()
    bad[3, 5, 1] = 0x7F
    assert torch.isnan(e4m3.decode(bad[3, 5, 1]))
    with pytest.raises(CheckpointError, match=r"up.scales\[3, 5, 1\] is NaN"):
        w4a4.load().from_tensors(replace(weights, up=replace(weights.up, scales=bad)))
