"""What the runtime binds for another target's pipelines, private weight packs included, computes the same layer: shown
without that target's hardware by running its ops on the reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.packages import generate_package, make_inputs, spec_with
from runtime.reference_runner import ReferenceRunner, publish_reference
from runtime.writers import random_weights

from moegen.core.enums import Target
from moegen.core.errors import MoegenError
from moegen.core.package import read_manifest, write_manifest
from moegen.runtime import load

FORMS: dict[str, dict[str, Any]] = {
    "w4a4": {"epilogues": ["interleaved", "compact", "fused_fp4"]},
    "w4a16": {
        "activations": {"format": "bf16", "activation_scale": None},
        "epilogues": ["interleaved", "compact"],
    },
    "w4a16_fp16": {
        "activations": {"format": "bf16", "dtype": "fp16", "activation_scale": None},
        "numerics": {"pre_quant_round": "fp32"},
        "epilogues": ["interleaved", "compact"],
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_sm_90a_pipelines_compute_what_the_cpu_computes(tmp_path: Path, form: str) -> None:
    """I = 64 leaves the last unit of the Hopper pack half empty."""
    spec = spec_with(
        geometry={"hidden": 128, "intermediate": 64},
        targets=["cpu", "sm_90a"],
        schedules=None,
        tune={"pipelines": 5},
        **FORMS[form],
    )
    made = generate_package(spec, tmp_path)
    package = read_manifest(made.directory)
    for target in package.targets:
        publish_reference(package, target, made.store)
    weights = random_weights(7, 128, 64)
    options: dict[str, Any] = {"runner": ReferenceRunner(), "store": made.store, "max_tokens": 40}
    pipelines = package.targets[Target.SM_90A].pipelines
    assert {step.op.weight_pack for pipeline in pipelines for step in pipeline.steps} - {"", "rows8"}
    for pipeline in pipelines:
        layer = load(made.directory, target="sm_90a", pipeline=pipeline.name, **options).from_tensors(weights)
        cpu = load(made.directory, target="cpu", epilogue=pipeline.epilogue, **options).from_tensors(weights)
        inputs = make_inputs(layer, 33)
        with layer.engine.pool.slot() as slot:
            slot.workspace.poison(0x7F)
        assert torch.equal(layer(*inputs), cpu(*inputs)), pipeline.name


def test_a_target_without_whole_pipelines_says_what_it_lacks(tmp_path: Path) -> None:
    made = generate_package(spec_with(targets=["cpu", "sm_90a"], schedules=None), tmp_path)
    package = read_manifest(made.directory)
    lacking = replace(
        package.targets[Target.SM_90A], default="", pipelines=(), rejected=(("route", "sm_90a has no route kernel"),)
    )
    write_manifest(replace(package, targets={**package.targets, Target.SM_90A: lacking}), made.directory)
    with pytest.raises(MoegenError, match="route: sm_90a has no route kernel"):
        load(made.directory, target="sm_90a", runner=ReferenceRunner(), store=made.store)


def test_a_gpu_target_without_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = generate_package(spec_with(targets=["cpu", "sm_90a"], schedules=None), tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MoegenError, match="torch sees none"):
        load(made.directory, target="sm_90a", store=made.store)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (10, 3))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: "NVIDIA B300")
    with pytest.raises(MoegenError, match="sm_90a does not run on NVIDIA B300"):
        load(made.directory, target="sm_90a", store=made.store)
