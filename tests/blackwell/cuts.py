"""Small cuts of the shipped models, run as whole layers through the public layer on the interpreter.

A cut keeps everything that decides which kernels run: activation with its constants, contract, bias, gate/up order,
scale layouts, top_k, epilogues, and the remainders of H and I modulo 128. Experts are twice top_k. Of what planning
keeps, a cut runs the best pipeline of every epilogue, and those with the least, the middle and the largest row tile.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from runtime.packages import TestPackage, generate_package, reference_output

from moegen.build.builder import build
from moegen.core.enums import Target
from moegen.core.package import Pipeline, read_manifest, write_manifest
from moegen.core.paths import data_root
from moegen.ptx.options import Options
from moegen.ptx.runner import InterpreterRunner
from moegen.runtime import load
from moegen.store.artifacts import ArtifactStore
from moegen.tune.inputs import shape_of
from moegen.tune.routing import Routing, RoutingKind
from moegen.tune.verify import exact_inputs, exact_weights, same_bits

TOKENS = (3,)
SEED = 5
W4A4 = {
    "activations": {"format": "nvfp4", "activation_scale": {"gemm1": "static", "gemm2": "static"}},
    "scale_layout": {"activations": "swizzle_128x4", "weights": "swizzle_128x4"},
    "epilogues": ["interleaved", "compact", "fused_fp4"],
}


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A shipped spec with another geometry, and other changes where the model's own form is not the one wanted."""

    model: str
    hidden: int
    intermediate: int
    changes: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, target: Target) -> dict[str, Any]:
        """The spec as plain values. One pipeline a mode and row tile is enough."""
        spec = yaml.safe_load((data_root("specs") / "models" / f"{self.model}.yaml").read_text())
        top_k = spec["geometry"]["top_k"]
        cut = {"hidden": self.hidden, "intermediate": self.intermediate, "experts": 2 * top_k, "top_k": top_k}
        tune = {"tokens": list(TOKENS), "routing": ["uniform"], "pipelines": 1}
        spec.pop("schedules", None)  # what was measured at the model's own size
        return {**spec, "geometry": cut, "targets": [target.value], "tune": tune, **self.changes}


CUTS = {
    "dsv3": Cut(model="dsv3", hidden=256, intermediate=128),
    "qwen3_30b_a3b": Cut(model="qwen3_30b_a3b", hidden=128, intermediate=256),
    "deepseek_v4_flash": Cut(model="deepseek_v4_flash", hidden=384, intermediate=128),
    "gpt_oss_120b, W4A4": Cut(model="gpt_oss_120b", hidden=192, intermediate=192, changes=W4A4),
    "gpt_oss_120b": Cut(model="gpt_oss_120b", hidden=192, intermediate=192),
}


@dataclass(frozen=True, kw_only=True)
class LayerResult:
    """One pipeline at one batch: whether the layer's bytes were the reference's under all schedules."""

    cut: str
    pipeline: str
    tokens: int
    equal: bool
    error: str
    schedules: int
    instructions: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def chosen(offered: Sequence[Pipeline]) -> tuple[Pipeline, ...]:
    """The first of every epilogue, and of the least, the middle and the largest row tile."""
    tiles = sorted({pipeline.row_tile for pipeline in offered})
    wanted = [("epilogue", epilogue) for epilogue in dict.fromkeys(pipeline.epilogue for pipeline in offered)]
    wanted += [("row_tile", tile) for tile in (tiles[0], tiles[len(tiles) // 2], tiles[-1])]
    firsts = [next(item for item in offered if getattr(item, name) == value) for name, value in wanted]
    return tuple(dict.fromkeys(firsts))


def built(name: str, folder: Path, jobs: int = 1, target: Target = Target.SM_100A) -> TestPackage:
    """A cut's package with the chosen pipelines, built below ``folder``; every variant must compile."""
    made = generate_package(CUTS[name].spec(target), folder)
    package = read_manifest(made.directory)
    offer = package.targets[target]
    kept = chosen(offer.pipelines)
    used = {step.variant for pipeline in kept for step in pipeline.steps}
    sources = tuple(source for source in offer.sources if source.variant in used)
    smaller = replace(offer, default=kept[0].name, pipelines=kept, sources=sources)
    write_manifest(replace(package, targets={target: smaller}), made.directory)
    report = build(made.directory, [target], jobs=jobs, store=made.store)
    assert not report.disabled, report.disabled
    assert not report.failed, report.failed[0].log
    return made


def opened(name: str, folder: Path) -> TestPackage:
    """What :func:`built` left below ``folder``; needs no compiler."""
    return TestPackage(directory=folder / "generated" / CUTS[name].model, store=ArtifactStore(folder / "home"))


def pipelines(package: TestPackage, target: Target = Target.SM_100A) -> tuple[Pipeline, ...]:
    """What a cut's package offers."""
    return read_manifest(package.directory).targets[target].pipelines


def run_pipeline(
    name: str, package: TestPackage, pipeline: Pipeline, schedules: Sequence[Options]
) -> Iterator[LayerResult]:
    """One pipeline of a package through the layer that a model calls."""
    shape = shape_of(pipeline)
    runner = InterpreterRunner(pipeline.target, schedules)
    loaded = load(package.directory, target=pipeline.target, store=package.store, runner=runner, pipeline=pipeline.name)
    layer = loaded.from_tensors(exact_weights(shape, SEED))
    for tokens in TOKENS:
        inputs = exact_inputs(shape, tokens, Routing(kind=RoutingKind.UNIFORM), SEED)
        began, before = time.monotonic(), len(runner.results)
        error, equal = "", False
        try:
            found = layer(inputs.x, inputs.topk_ids, inputs.topk_weights)
            wanted = reference_output(layer, pipeline.name, inputs.x, inputs.topk_ids, inputs.topk_weights)
            equal = same_bits(found, wanted) and bool(torch.count_nonzero(wanted))
        except Exception as problem:  # whatever fails is this pipeline's result
            error = f"{type(problem).__name__}: {problem}"[:500]
        results = runner.results[before:]
        reports = [str(report) for result in results for report in result.reports]
        yield LayerResult(
            cut=name,
            pipeline=pipeline.name,
            tokens=tokens,
            equal=equal and not reports,
            error=error or "; ".join(reports[:2]),
            schedules=len(schedules),
            instructions=sum(result.stats.instructions for result in results) // len(schedules),
            seconds=round(time.monotonic() - began, 1),
        )
