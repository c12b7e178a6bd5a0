"""A rank of an expert-parallel group that holds fewer experts than a token takes: from spec to output."""

from pathlib import Path
from typing import Any

import pytest
import torch
from codegen.specs import spec
from runtime.packages import TestPackage, make_inputs, reference_package, spec_with
from runtime.reference_runner import ReferenceRunner
from runtime.writers import MODELOPT_NVFP4, per_expert, random_weights, write_checkpoint

from moegen.codegen import plan
from moegen.codegen.load import RoutingClass, expected_load
from moegen.core.abi import Dims
from moegen.core.enums import OpKind, Target
from moegen.core.errors import CheckpointError
from moegen.runtime import experts_per_rank
from moegen.tune.inputs import make_ids, package_shape
from moegen.tune.rig import open_book
from moegen.tune.routing import busiest_rank_first, parse_routing
from moegen.tune.verify import verify_pipelines

LAYER, RANKS, HELD, TOP_K = 14, 7, 2, 3
LEAVES = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def sizes(local: int | None) -> dict[str, Any]:
    values = {"hidden": 256, "intermediate": 160, "experts": 256, "top_k": 8}
    return values if local is None else {**values, "local_experts": local}


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    geometry = {"experts": LAYER, "local_experts": HELD, "top_k": TOP_K}
    return reference_package(spec_with(name="rank", geometry=geometry), tmp_path_factory.mktemp("rank"))


def test_a_rank_of_64_with_256_experts_and_top_8_is_planned() -> None:
    result = plan(spec(geometry=sizes(4)), Target.CPU)
    ops = {step.op.kind: step.op for pipeline in result.pipelines for step in pipeline.steps}
    assert {ops[kind].experts for kind in (OpKind.ROUTE, OpKind.GEMM1, OpKind.GEMM2)} == {4}
    assert ops[OpKind.ROUTE].top_k == 8
    assert all("-e4-k8-" in step.variant for p in result.pipelines for step in p.steps if step.op.kind is OpKind.GEMM1)


def test_a_spec_that_says_nothing_of_ranks_keeps_its_digest() -> None:
    assert "local_experts" not in spec(geometry=sizes(None)).model_dump(mode="json")["geometry"]
    assert spec(geometry=sizes(None)).digest != spec(geometry=sizes(256)).digest
    assert spec(geometry=sizes(4)).digest != spec(geometry=sizes(8)).digest


@pytest.mark.parametrize("local", [0, 257])
def test_a_rank_holds_between_one_and_all_experts(local: int) -> None:
    with pytest.raises(ValueError, match=f"geometry.local_experts: local_experts is {local} of 256 experts"):
        spec(geometry=sizes(local))


def test_fr_48_rows_never_grow_with_the_experts_of_other_ranks() -> None:
    rows = Dims(tokens=8192, top_k=8, experts=32, hidden=7168, intermediate=2048, row_tile=128)["R"]
    assert rows <= 8192 * 8 + 32 * 127


def test_the_time_model_counts_this_rank_alone() -> None:
    whole, rank = expected_load(4096, 256, 8, 1), expected_load(4096, 256, 8, 1, held=4)
    assert rank.rows == whole.rows // 64
    assert rank.tiles == pytest.approx(whole.tiles / 64)
    assert rank.hit_experts == pytest.approx(4)
    hot = expected_load(4096, 256, 8, 1, RoutingClass(kind="one_hot"), held=4)
    assert (hot.rows, hot.hit_experts) == (4096, 1)
    assert expected_load(64, 256, 8, 16, RoutingClass(kind="zipf", value=1.0), held=256) == expected_load(
        64, 256, 8, 16, RoutingClass(kind="zipf", value=1.0)
    )


@pytest.mark.parametrize("routing", ["uniform", "one_hot", "zipf=1.5"])
def test_tuning_inputs_are_those_of_the_busiest_rank(
    rank: TestPackage, monkeypatch: pytest.MonkeyPatch, routing: str
) -> None:
    monkeypatch.setenv("MOEGEN_HOME", str(rank.store.home))
    shape = package_shape(open_book(rank.directory, Target.CPU, ReferenceRunner()))
    assert (shape.experts, shape.layer_experts) == (HELD, LAYER)
    ids = make_ids(shape, parse_routing(routing), 50, 1)
    slots = torch.bincount(ids.flatten(), minlength=LAYER).unflatten(0, (RANKS, HELD)).sum(1)
    assert slots.argmax() == 0
    assert all(len(set(row)) == TOP_K for row in ids.tolist())


def test_renumbering_leaves_a_whole_layer_alone_and_counts_a_short_last_rank() -> None:
    ids = torch.tensor([[0, 4], [1, 4], [2, 4]])
    assert torch.equal(busiest_rank_first(ids, 5, 5), ids)
    assert busiest_rank_first(ids, 5, 2).tolist() == [[1, 0], [2, 0], [3, 0]]
    assert busiest_rank_first(ids[:, :1], 5, 2).tolist() == [[0], [1], [2]]


def test_ranks_sum_to_the_layer(rank: TestPackage, tmp_path: Path) -> None:
    weights = random_weights(experts=LAYER)
    write_checkpoint(tmp_path, per_expert(weights, "model.layers.0.mlp.experts", LEAVES), MODELOPT_NVFP4, experts=LAYER)
    made = reference_package(spec_with(name="whole", geometry={"experts": LAYER, "top_k": TOP_K}), tmp_path / "whole")
    whole = made.load().from_checkpoint(tmp_path, 0)
    inputs = make_inputs(whole, 20, experts=LAYER)
    total = torch.zeros(20, 64)
    for held in experts_per_rank(LAYER, RANKS):
        part = rank.load().from_checkpoint(tmp_path, 0, first_expert=held.start, experts=len(held))
        total += part(*inputs).float()
    expected = whole(*inputs).float()
    assert (total - expected).norm() / expected.norm() < 5e-3


def test_which_experts_a_rank_holds_must_be_said_and_exist(rank: TestPackage, tmp_path: Path) -> None:
    weights = random_weights(experts=LAYER)
    tensors = per_expert(weights, "model.layers.0.mlp.experts", LEAVES)
    write_checkpoint(tmp_path, tensors, MODELOPT_NVFP4, experts=LAYER)
    loaded = rank.load()
    with pytest.raises(CheckpointError, match="up to 2 of the 14 experts, and which was not said"):
        loaded.from_checkpoint(tmp_path, 0)
    with pytest.raises(CheckpointError, match=r"experts 13 … 14 of 14"):
        loaded.from_checkpoint(tmp_path, 0, first_expert=13, experts=2)
    with pytest.raises(CheckpointError, match=r"experts 14 … 15 of 14"):
        loaded.from_tensors(random_weights(experts=16).experts_slice(14, 2))
    with pytest.raises(CheckpointError, match="3 experts with a gate"):
        loaded.from_checkpoint(tmp_path, 0, first_expert=0, experts=3)


def test_a_rank_is_verified(rank: TestPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEGEN_HOME", str(rank.store.home))
    checks = list(verify_pipelines(open_book(rank.directory, Target.CPU, ReferenceRunner())))
    assert checks
    assert all(check.passed for check in checks), checks
