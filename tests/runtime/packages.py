"""Small generated packages for the tests: any corner of the spec, on the torch reference or on g++ kernels."""

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from runtime.reference_runner import ReferenceRunner, publish_reference

from moegen.build.builder import build
from moegen.codegen.packaging import generate
from moegen.core.abi import arguments
from moegen.core.enums import Target
from moegen.core.package import read_manifest
from moegen.numerics.reference import run_pipeline
from moegen.runtime import LoadedPackage, MoELayer, load
from moegen.store.artifacts import ArtifactStore

STORE = "store"
KEPT: tuple[Path, ...] = ()
"""Stores of kernels built before the session: ``pytest --kernels``."""
# No two of H, I, 2I, E and T·k of the tests are equal.
SPEC: dict[str, Any] = {
    "name": "tiny",
    "source": "made for the runtime's tests; not a model's geometry",
    "geometry": {"hidden": 64, "intermediate": 48, "experts": 7, "top_k": 3},
    "activation": {"kind": "swiglu"},
    "weights": {"format": "nvfp4", "gate_up_order": "gate_up", "bias": False},
    "activations": {"format": "nvfp4", "activation_scale": {"gemm1": "static", "gemm2": "static"}},
    "scale_layout": {"activations": "swizzle_128x4", "weights": "swizzle_128x4"},
    "numerics": {"pre_quant_round": "bf16"},
    "epilogues": ["interleaved", "compact", "fused_fp4"],
    "combine": ["ordered"],
    "targets": ["cpu"],
    "schedules": {"cpu": {"rows": [4], "cols": [32], "k_chunk": [64], "unroll": [2]}},
    "tune": {"tokens": [1, 4, 16, 64], "routing": ["uniform", "one_hot"], "pipelines": 3},
}


def spec_with(**changes: Any) -> dict[str, Any]:
    """SPEC with sections replaced or, where both are mappings, updated; None leaves a section out."""
    spec = deepcopy(SPEC)
    for name, value in changes.items():
        spec[name] = {**spec[name], **value} if isinstance(value, dict) and name in spec else value
    return {name: value for name, value in spec.items() if value is not None}


@dataclass(frozen=True)
class TestPackage:
    """A generated package and the store that serves it."""

    __test__ = False
    directory: Path
    store: ArtifactStore

    def load(self, **options: Any) -> LoadedPackage:
        """The package on the reference runner, unless ``runner=None`` asks for real kernels."""
        options.setdefault("runner", ReferenceRunner())
        return load(self.directory, target=Target.CPU, store=self.store, **options)


def generate_package(spec: dict[str, Any], folder: Path) -> TestPackage:
    """Writes and generates a spec; nothing is built."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    directory = folder / "generated" / spec["name"]
    generate(path, directory)
    return TestPackage(directory=directory, store=ArtifactStore(folder / "home"))


def reference_package(spec: dict[str, Any], folder: Path) -> TestPackage:
    """A package whose artifacts are reference ops."""
    made = generate_package(spec, folder)
    publish_reference(read_manifest(made.directory), Target.CPU, made.store)
    return made


def compiled_package(spec: dict[str, Any], folder: Path) -> TestPackage:
    """A package built with g++."""
    made = generate_package(spec, folder)
    report = build(made.directory, [Target.CPU], store=made.store)
    assert not report.failed, report.failed[0].log
    return made


def generate_gpu_package(folder: Path, **changes: Any) -> TestPackage:
    """A package for sm_90a as the catalog plans it: SPEC at a larger geometry, with whole sections replaced by
    ``changes``."""
    spec = spec_with(
        geometry={"hidden": 256, "intermediate": 160, "experts": 7},
        targets=["sm_90a"],
        schedules=None,
        tune={"pipelines": 3, "tokens": [64]},
    )
    return generate_package(spec | changes, folder)


def build_for_gpu(made: TestPackage, store: ArtifactStore, jobs: int | None = None) -> None:
    """Builds what the store and its packs lack."""
    report = build(made.directory, [Target.SM_90A], store=store, jobs=jobs)
    assert not report.disabled
    assert not report.failed, report.failed[0].log


def gpu_package(folder: Path, **changes: Any) -> TestPackage:
    """A package built for sm_90a: see :func:`generate_gpu_package`."""
    made = generate_gpu_package(folder, **changes)
    made = replace(made, store=ArtifactStore(made.store.home, KEPT))
    build_for_gpu(made, made.store)
    return made


def make_inputs(
    layer: MoELayer, tokens: int, seed: int = 0, experts: int = 7
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, distinct ids of each token, weights that sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    engine = layer.engine
    x = torch.randn(tokens, engine.hidden, generator=generator).to(engine.dtype)
    scores = torch.rand(tokens, experts, generator=generator)
    top = scores.topk(engine.top_k, dim=-1)
    return x, top.indices, (top.values / top.values.sum(-1, keepdim=True)).float()


def reference_output(
    layer: MoELayer, name: str, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """What the reference computes from the layer's own packed weights through one pipeline: where the layer lies, then
    brought to the CPU."""
    pipeline = layer.engine.pipelines[name]
    buffers = {"x": x, "topk_ids": ids, "topk_weights": weights}
    for step in pipeline.steps:
        for argument in arguments(step.op):
            tensor = layer.engine.bank.get(step.op, argument)
            if tensor is not None:
                buffers[argument.name] = tensor
    with layer.engine.device:
        result = run_pipeline([step.op for step in pipeline.steps], buffers, first_expert=layer.first_expert)
    return result["y"].cpu()
