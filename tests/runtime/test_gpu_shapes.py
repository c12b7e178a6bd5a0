"""Field cases of shapes and routing on a GPU: every pipeline that planning makes, bit for bit and on stale memory.

Those of single kernels are in ``tests/hopper/test_gpu_field_cases.py``, sizes beyond 32 bits in ``test_gpu_sizes.py``,
graphs, streams and threads in ``test_gpu.py``.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.packages import TestPackage, gpu_package, make_inputs, reference_output
from runtime.writers import random_weights

from moegen.core.abi import arguments
from moegen.core.enums import Target
from moegen.runtime import LoadedPackage, MoELayer, load
from moegen.tune.gate import gate_tolerance, judge
from moegen.tune.verify import verify_pipelines

pytestmark = pytest.mark.gpu
W4A16: dict[str, Any] = {
    "activations": {"format": "bf16"},
    "scale_layout": {"weights": "swizzle_128x4"},
    "numerics": {"gate_round": "fp32"},
}
INTERMEDIATE = (704, 640)
FEW: dict[str, Any] = {"pipelines": 3, "tokens": [40], "routing": ["uniform"]}
SHAPES = {
    "fr_09_scale_columns_of_5_and_29": {"hidden": 80, "intermediate": 464, "experts": 7, "top_k": 3},
    "fr_09_scale_columns_of_29_and_22": {"hidden": 464, "intermediate": 352, "experts": 5, "top_k": 2},
    "fr_10_ragged_hidden": {"hidden": 144, "intermediate": 64, "experts": 2, "top_k": 1},
    "fr_13_more_than_256_experts": {"hidden": 64, "intermediate": 48, "experts": 512, "top_k": 10},
}


MODES = {"w4a4": ["interleaved", "compact", "fused_fp4"], "w4a16": ["interleaved", "compact"]}
EXPERTS = {"uneven": (6, 40, 0, 18), "hot": (0,) * 31 + (257,)}
RANKS = (1, 2, 4)


def every_mode(name: str, formats: str) -> dict[str, Any]:
    """A shape with every epilogue of a format."""
    fields = W4A16 if formats == "w4a16" else {}
    return {"geometry": SHAPES[name], "epilogues": MODES[formats], "tune": FEW, **fields}


def compact(hidden: int, intermediate: int, experts: int, top_k: int) -> dict[str, Any]:
    """A W4A16 layer."""
    geometry = {"hidden": hidden, "intermediate": intermediate, "experts": experts, "top_k": top_k}
    return {"geometry": geometry, "epilogues": ["compact"], "tune": FEW, **W4A16}


def share(intermediate: int, ranks: int) -> dict[str, Any]:
    """What each of some tensor-parallel ranks computes."""
    return compact(256, intermediate // ranks, 3, 2)


PACKAGES = [
    *(every_mode(name, formats) for name in SHAPES for formats in MODES),
    *(compact(80, 144, len(counts), 1) for counts in EXPERTS.values()),
    *(share(intermediate, ranks) for intermediate in INTERMEDIATE for ranks in RANKS),
]
"""Every package that these tests build."""


def loaded(made: TestPackage, **options: object) -> LoadedPackage:
    return load(made.directory, target=Target.SM_90A, store=made.store, **options)


@pytest.mark.parametrize("formats", MODES)
@pytest.mark.parametrize("name", SHAPES)
def test_fr_16_every_pipeline_passes_verification(tmp_path: Path, name: str, formats: str) -> None:
    """One token and 33 fill no scale tile, and three poisons must not show."""
    made = gpu_package(tmp_path, **every_mode(name, formats))
    checks = list(verify_pipelines(loaded(made).book))
    assert len(checks) >= len(MODES[formats])
    assert not [f"{check.pipeline}: {check.reason}" for check in checks if not check.passed]


@pytest.mark.parametrize("name", EXPERTS)
def test_fr_07_empty_and_hot_experts(tmp_path: Path, name: str) -> None:
    counts = EXPERTS[name]
    experts = len(counts)
    made = gpu_package(tmp_path, **compact(80, 144, experts, 1))
    layer = loaded(made, max_tokens=300).from_tensors(random_weights(experts, 80, 144, 3))
    spoil_idle(layer, torch.tensor(counts, device="cuda") == 0)
    ids = torch.repeat_interleave(torch.arange(experts), torch.tensor(counts))[:, None]
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(5))].cuda()
    x, _, routed = (tensor.cuda() for tensor in make_inputs(layer, len(ids), experts=experts))
    name = layer.engine.decide(len(ids)).pipeline
    first = layer(x, ids, routed)
    verdict = judge(first.cpu(), reference_output(layer, name, x, ids, routed), gate_tolerance(False, 144), seed=3)
    assert verdict.passed, verdict.reason
    assert all(torch.equal(layer(x, ids, routed), first) for _ in range(50))


def spoil_idle(layer: MoELayer, idle: torch.Tensor) -> None:
    """Experts that no token reaches get NaN second-level scales and packed bytes of 0xFF: nothing of theirs counts."""
    for pipeline in layer.engine.pipelines.values():
        for step in pipeline.steps:
            for argument in arguments(step.op):
                tensor = layer.engine.bank.get(step.op, argument)
                if tensor is not None and argument.role == "weight":
                    tensor[idle] = 0xFF if tensor.dtype is torch.uint8 else torch.nan


@pytest.mark.parametrize("intermediate", INTERMEDIATE)
def test_fr_08_tensor_parallel_shares_sum_to_the_whole(tmp_path: Path, intermediate: int) -> None:
    outputs = {}
    weights = random_weights(3, 256, intermediate, 4)
    for ranks in RANKS:
        package = loaded(gpu_package(tmp_path / str(ranks), **share(intermediate, ranks)))
        total = torch.zeros(40, 256, device="cuda")
        for rank in range(ranks):
            layer = package.from_tensors(weights.intermediate_slice(rank, ranks))
            x, ids, routed = (tensor.cuda() for tensor in make_inputs(layer, 40, experts=3))
            total += layer(x, ids, routed).float()
        outputs[ranks] = total
    for ranks in RANKS[1:]:
        assert (outputs[ranks] - outputs[1]).norm() / outputs[1].norm() <= 1e-2
