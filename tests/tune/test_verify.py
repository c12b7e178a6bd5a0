"""What ``verify`` must notice: kernels that are nearly right, on the reference runner with one fault each."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runtime.packages import TestPackage, reference_package, spec_with
from runtime.reference_runner import ReferenceRunner

from moegen.core.abi import arguments
from moegen.core.enums import OpKind, Target
from moegen.core.ops import op_from_json
from moegen.core.runner import Kernel
from moegen.runtime.workspace import plan_arena
from moegen.tune.inputs import package_shape
from moegen.tune.rig import make_rig, open_book
from moegen.tune.routing import parse_routing
from moegen.tune.verify import PipelineCheck, exact_inputs, exact_weights, first_difference, verify_pipelines

SPEC = spec_with(tune={"tokens": [1, 8], "routing": ["uniform"], "pipelines": 3})
Buffers = dict[str, torch.Tensor]
Fault = Callable[[Buffers, Buffers], None]


class FaultyRunner(ReferenceRunner):
    """The reference, but after each launch of ``kind`` its buffers, as they were and as they are, go through
    ``fault``."""

    def __init__(self, kind: OpKind, fault: Fault) -> None:
        super().__init__()
        self._kind, self._fault = kind, fault

    def load(self, directory: Path, symbol: str) -> Kernel:
        kernel = super().load(directory, symbol)
        if symbol != self._kind.value:
            return kernel
        op = op_from_json(json.loads((directory / "op.json").read_text()))
        names = [argument.name for argument in arguments(op)]

        def launch(*values: object) -> None:
            now = {n: v for n, v in zip(names, values, strict=False) if isinstance(v, torch.Tensor)}
            before = {name: tensor.clone() for name, tensor in now.items()}
            kernel(*values)
            self._fault(before, now)

        return launch


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    return reference_package(SPEC, tmp_path_factory.mktemp("verify"))


def check(package: TestPackage, monkeypatch: pytest.MonkeyPatch, runner: ReferenceRunner) -> list[PipelineCheck]:
    monkeypatch.setenv("MOEGEN_HOME", str(package.store.home))
    return list(verify_pipelines(open_book(package.directory, Target.CPU, runner)))


def last_element_of_last_row(before: Buffers, now: Buffers) -> None:
    now["y"][-1, -1] += 1


def one_bit(before: Buffers, now: Buffers) -> None:
    bits = now["y"].view(torch.int16)
    bits[0, 0] ^= 1


def last_row_not_written(before: Buffers, now: Buffers) -> None:
    now["y"][-1] = before["y"][-1]


def test_right_kernels_pass(package: TestPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(package, monkeypatch, ReferenceRunner())
    assert len(found) == 3
    assert all(item.passed and item.exact and item.poison and item.gate.passed for item in found)


CORNERS = {
    "W4A16": {"activations": {"format": "bf16", "activation_scale": None}, "epilogues": ["interleaved", "compact"]},
    "not gated": {"activation": {"kind": "relu2"}, "epilogues": ["compact", "fused_fp4"]},
    "bias": {"weights": {"bias": True}},
    "dynamic scales": {
        "activations": {"activation_scale": {"gemm1": "dynamic_tensor", "gemm2": "dynamic_tensor"}},
        "epilogues": ["interleaved", "compact"],
    },
    "weight before the second quantiser": {"numerics": {"router_weight": "pre_quant"}},
    "another contract": {"numerics": {"contract": "modelopt"}},
    "atomic": {"combine": ["atomic"]},
    "fp16": {"activations": {"dtype": "fp16"}, "numerics": {"pre_quant_round": "fp32"}},
}


@pytest.mark.parametrize("corner", CORNERS)
def test_right_kernels_pass_in_every_corner_of_the_spec(
    corner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tune = {"tokens": [1], "routing": ["uniform"], "pipelines": 2}
    made = reference_package(spec_with(**SPEC | CORNERS[corner] | {"tune": tune}), tmp_path)
    found = check(made, monkeypatch, ReferenceRunner())
    assert found
    assert [item.reason for item in found] == [""] * len(found)
    assert {item.exact for item in found} == {None if corner == "atomic" else True}


def test_one_wrong_element_fails_every_part(package: TestPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    for item in check(package, monkeypatch, FaultyRunner(OpKind.COMBINE, last_element_of_last_row)):
        assert not item.passed
        assert item.exact is False
        assert not item.gate.passed
        assert "T=1 uniform: exact data, row 0, block 3, column 63" in item.reason


def test_one_wrong_bit_passes_the_gate_and_fails_the_exact_part(
    package: TestPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for item in check(package, monkeypatch, FaultyRunner(OpKind.COMBINE, one_bit)):
        assert item.gate.passed
        assert item.exact is False
        assert "column 0" in item.reason


def test_stale_memory_shows(package: TestPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    for item in check(package, monkeypatch, FaultyRunner(OpKind.COMBINE, last_row_not_written)):
        assert not item.poison
        assert "what the buffers held before" in item.reason


def test_exact_data_exercises_the_activation(package: TestPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates near zero and far from it, and outputs that differ from token to token: a constant kernel must not pass."""
    monkeypatch.setenv("MOEGEN_HOME", str(package.store.home))
    book = open_book(package.directory, Target.CPU, ReferenceRunner())
    shape = package_shape(book)
    rig = make_rig(book, exact_weights(shape, 1))
    inputs = exact_inputs(shape, 33, parse_routing("uniform"), 1)
    compact = next(name for name in rig.pipelines if name.startswith("compact"))
    buffers = rig.reference(compact, inputs)
    values = buffers["h_rows"].float()
    real = values[buffers["row_slot"] >= 0]
    assert (real.abs() < 0.1).float().mean() > 0.02
    assert (real.abs() > 1).float().mean() > 0.02
    assert len(set(map(tuple, buffers["y"].tolist()))) == 33


def test_first_difference_counts_elements_not_bytes() -> None:
    want = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    got = want.clone()
    got[1, 1] = -5.0
    assert first_difference(got, want) == "row 1, block 0, column 1: -5, reference 4; 1 elements differ"
    assert first_difference(want, want.clone()) == ""


def test_steps_can_be_repeated_where_buffers_share_no_bytes(
    package: TestPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are timed alone, after a whole call: none may find its inputs overwritten by a later one."""
    monkeypatch.setenv("MOEGEN_HOME", str(package.store.home))
    book = open_book(package.directory, Target.CPU, ReferenceRunner())
    shape = package_shape(book)
    rig = make_rig(book, exact_weights(shape, 1))
    inputs = exact_inputs(shape, 9, parse_routing("uniform"), 1)
    for name, pipeline in rig.pipelines.items():
        expected = rig.run(name, inputs, poison=0x7F)
        again = torch.empty_like(expected)
        caller = (inputs.x, inputs.topk_ids, inputs.topk_weights, again, 0)
        bound = rig.bound(name, 9, reuse=False)
        bound.launch(*caller)
        for index in reversed(range(len(pipeline.steps))):
            bound.launches[index](caller)
        assert torch.equal(again, expected)
        sizes = [region.size for region in plan_arena(pipeline, 9, reuse=False).regions.values()]
        assert plan_arena(pipeline, 9, reuse=False).arena == sum(sizes) > plan_arena(pipeline, 9).arena
