"""Builds every kernel of the benchmark, without a GPU: `python -m benchmarks.hopper.build FOLDER [shape ...]`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.hopper.configs import BY_TOKENS, FAST_FROM, MODE_TOKENS, SHAPES, configs, full_config, mode_configs
from benchmarks.hopper.ours import pipeline
from moegen.build.nvcc import Nvcc
from moegen.build.toolchain import CompileJob, Outcome, Status
from moegen.codegen.catalogs.sm90_block import CATALOG
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.paths import data_root


def wanted(shapes: list[str]) -> dict[str, Variant]:
    """Distinct variants by folder name."""
    found: dict[str, Variant] = {}
    for shape in shapes:
        for tokens in BY_TOKENS[shape]:
            fast = configs(shape, tokens, fast=True) if tokens >= FAST_FROM else []
            full = full_config(shape, tokens)
            for config in (*configs(shape, tokens), *fast, *([full] if full else [])):
                for variant in pipeline(SHAPES[shape], config):
                    found[variant.digest[:24]] = variant
    return found


def wanted_modes(shapes: list[str]) -> dict[str, Variant]:
    """The same for benchmarks/hopper/modes.py."""
    found: dict[str, Variant] = {}
    for shape in shapes:
        for tokens in MODE_TOKENS:
            for config in mode_configs(shape, tokens).values():
                for variant in pipeline(SHAPES[shape], config):
                    found[variant.digest[:24]] = variant
    return found


def build(folder: Path, variants: dict[str, Variant], parallel: int) -> int:
    """Compiles what the folder lacks; returns the number of failures."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs: list[CompileJob] = []
    for name, variant in variants.items():
        target = folder / name
        if (target / "kernel.so").exists():
            continue
        target.mkdir(exist_ok=True)
        source = target / "source.cu"
        source.write_text(render(variant, CATALOG).text)
        jobs.append(
            CompileJob(name=name, source=source, symbol=variant.op.kind.value, include=(data_root("templates"),))
        )
    failures = 0

    def done(job: CompileJob, outcome: Outcome) -> None:
        nonlocal failures
        variant = variants[job.name]
        serial = [line for line in outcome.log.splitlines() if "C75" in line]
        print(f"{outcome.status.value} {outcome.seconds:.0f} s {variant.name} {outcome.meta} {serial[:2]}", flush=True)
        if outcome.status is not Status.OK:
            failures += 1
            print(outcome.log[:2000], flush=True)
            return
        outcome.files["kernel.so"].rename(job.source.parent / "kernel.so")

    if jobs:
        with tempfile.TemporaryDirectory(dir=folder) as work:
            Nvcc("sm_90a").compile(jobs, Path(work), parallel, done)
    return failures


if __name__ == "__main__":
    shapes = sys.argv[2:] or list(SHAPES)
    made = wanted(shapes) | wanted_modes(shapes)
    print(len(made), "variants")
    sys.exit(build(Path(sys.argv[1]), made, os.cpu_count() or 1))
