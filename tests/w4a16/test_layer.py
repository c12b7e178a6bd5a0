"""Whole W4A16 layers for sm_100a, spec file to output, on interpreted kernels: a small cut of gpt_oss."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.packages import TestPackage, generate_package, make_inputs, reference_output, spec_with
from runtime.writers import random_weights
from w4a16.workshop import SCHEDULES

from moegen.build.builder import build
from moegen.core.enums import Epilogue, OpKind, RouterWeight, Target
from moegen.ptx.runner import InterpreterRunner
from moegen.runtime import ExpertWeights, MoELayer, load

EXPERTS, HIDDEN, INTERMEDIATE = 5, 208, 144
PLACES = (RouterWeight.COMBINE, RouterWeight.INPUT)


def spec_of(place: RouterWeight) -> dict[str, Any]:
    """Two epilogues on two targets, one schedule each. Many tokens with weights on the input are gathered by an op of
    their own, any others by gemm1."""
    return spec_with(
        name=f"gpt_oss_cut_{place.value}",
        geometry={"hidden": HIDDEN, "intermediate": INTERMEDIATE, "experts": EXPERTS, "top_k": 2},
        activation={"kind": "swiglu_oai", "alpha": 1.702, "limit": 7.0, "beta": 1.0},
        weights={"bias": True},
        activations={"format": "bf16", "activation_scale": None},
        scale_layout={"weights": "swizzle_128x4"},
        numerics={"router_weight": place.value},
        epilogues=["interleaved", "compact"],
        targets=["cpu", "sm_100a"],
    ) | {
        "schedules": {
            "cpu": {"rows": [8], "cols": [32], "k_chunk": [64], "unroll": [2]},
            "sm_100a": {"tokens": [8], "rows": [64], "k": [128], "stages": [3], "warps": [4]},
        },
        "tune": {"tokens": [16 if place is RouterWeight.COMBINE else 65536], "routing": ["uniform"], "pipelines": 2},
    }


def exact_weights() -> ExpertWeights:
    """Block scales of 1 and 2, and one element in each row of W2: every sum is exact in any order."""
    weights = random_weights(EXPERTS, HIDDEN, INTERMEDIATE, bias=True)
    generator = torch.Generator().manual_seed(5)

    def units(scales: torch.Tensor) -> torch.Tensor:
        drawn = torch.randint(0, 2, scales.shape, generator=generator)
        return torch.tensor([0x38, 0x40], dtype=torch.uint8)[drawn]

    assert weights.gate is not None
    gate, up, down = (replace(side, scales=units(side.scales)) for side in (weights.gate, weights.up, weights.down))
    kept = torch.randint(0, down.codes.shape[2], (*down.codes.shape[:2], 1), generator=generator)
    codes = torch.zeros_like(down.codes).scatter_(2, kept, 0x07)
    return replace(weights, gate=gate, up=up, down=replace(down, codes=codes))


def built_package(place: RouterWeight, folder: Path) -> TestPackage:
    """Both targets' kernels."""
    made = generate_package(spec_of(place), folder)
    report = build(made.directory, store=made.store)
    assert not report.disabled, report.disabled
    assert not report.failed, report.failed[0].log
    return made


def layer_of(package: TestPackage, runner: InterpreterRunner | None, epilogue: Epilogue) -> MoELayer:
    """The layer on interpreted sm_100a kernels, or without a runner on the CPU's."""
    target = Target.CPU if runner is None else Target.SM_100A
    loaded = load(
        package.directory, target=target, store=package.store, runner=runner, epilogue=epilogue, max_tokens=16
    )
    return loaded.from_tensors(exact_weights())


@pytest.mark.parametrize("place", PLACES)
def test_a_layer_gives_the_bytes_of_the_cpu_target_and_of_the_reference(place: RouterWeight, tmp_path: Path) -> None:
    package = built_package(place, tmp_path)
    for epilogue in (Epilogue.INTERLEAVED, Epilogue.COMPACT):
        runner = InterpreterRunner(Target.SM_100A, SCHEDULES)
        layer, cpu = layer_of(package, runner, epilogue), layer_of(package, None, epilogue)
        x, ids, weights = make_inputs(layer, 13, experts=EXPERTS)
        x = (x * 4).round() / 2
        ids[0, 0] = EXPERTS + 3
        pipeline = layer.engine.decide(13).pipeline
        y = layer(x, ids, weights)
        assert torch.equal(y, reference_output(layer, pipeline, x, ids, weights))
        assert torch.equal(y, cpu(x, ids, weights))
        assert torch.count_nonzero(y) > 0
        kinds = {step.op.kind for step in layer.engine.pipelines[pipeline].steps}
        assert (OpKind.GATHER in kinds) == (place is RouterWeight.INPUT)
        assert (OpKind.DEINTERLEAVE in kinds) == (epilogue is Epilogue.INTERLEAVED)
        assert layer(*make_inputs(layer, 0, experts=EXPERTS)).shape == (0, HIDDEN)
        assert torch.count_nonzero(layer(x, torch.full_like(ids, -1), weights)) == 0
        assert not [report for result in runner.results for report in result.reports]
