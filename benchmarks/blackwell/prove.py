"""Proves the Blackwell kernels in the interpreter: every pair of choices of the gemms, and cuts of whole models.

    PYTHONPATH=.:tests python benchmarks/blackwell/prove.py benchmarks/blackwell/proof.json [--jobs N] [--compile-only]

Gemms are those of ``tests/blackwell/grid.py`` (W4A4) and ``tests/w4a16/grid.py``, layers ``tests/blackwell/cuts.py``.
Everything is compiled without a GPU, first, into ``build/proof``, which may then be carried to a machine without
compilers. Gemms run under four schedules, one of them with the race detector, layers under two; every byte must equal
the reference and be the same under all schedules, and nothing may be reported. Cases that the file holds already, for
the same kernels, are kept. Compiled and interpreted, not run on hardware.
"""

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from blackwell.cuts import CUTS, built, opened, pipelines, run_pipeline
from blackwell.grid import every_pair
from blackwell.workshop import FOUR_SCHEDULES, Workshop, checked
from kernels.cases import Case, buffers
from kernels.compare import check_op
from w4a16.grid import every_pair as every_w4a16_pair

from moegen.cli.console import progress
from moegen.codegen.variant import Variant
from moegen.core.canonical import digest
from moegen.core.enums import Target
from moegen.core.package import read_manifest
from moegen.ptx.options import ADVERSARIES
from moegen.ptx.runner import InterpreterRunner

WORK = Path("build/proof")
BLOCK = 32
"""Kernels that one compiler process makes."""
TWO_SCHEDULES = ADVERSARIES[:2]


@dataclass(frozen=True)
class Gemm:
    """A gemm to prove: what it is called, its kernel, its batch."""

    group: str
    name: str
    variant: Variant
    case: Case


def gemms() -> list[Gemm]:
    """All of them, in a fixed order."""
    found = [Gemm("gemm W4A4", item.name, item.variant, item.case) for item in every_pair()]
    return found + [Gemm("gemm W4A16", item.name, item.variant(), item.case) for item in every_w4a16_pair()]


def workshop() -> Workshop:
    """Where compiled gemms lie."""
    (WORK / "gemms").mkdir(parents=True, exist_ok=True)
    return Workshop(WORK / "gemms")


def layer_folder(cut: str) -> Path:
    """Where a cut's package and its artifacts lie."""
    return WORK / "layers" / cut.replace(", ", "-")


def compile_all(only: str, jobs: int) -> None:
    """Compiles what is missing of the groups asked for, and notes with what."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    compile_gemms([gemm.variant for gemm in gemms() if gemm.group.startswith(only)], jobs)
    cuts = [cut for cut in CUTS if f"layer {cut}".startswith(only)]
    with progress("compile layers", len(cuts)) as lane:
        for cut in cuts:
            built(cut, layer_folder(cut), jobs)
            lane.advance(cut)
    facts = {"commit": commit, "nvidia-cutlass-dsl": version("nvidia-cutlass-dsl")}
    (WORK / "compiled.json").write_text(json.dumps(facts))


def compile_gemms(variants: Sequence[Variant], jobs: int) -> None:
    """Compiles in blocks, so that an interrupted run goes on where it was."""
    shop = workshop()
    with progress("compile gemms", len(variants)) as lane:
        for start in range(0, len(variants), BLOCK):
            block = variants[start : start + BLOCK]
            shop.prepare(block, jobs)
            for variant in block:
                lane.advance(variant.op.kind.value)


def prove_gemm(number: int, began_with: str) -> list[dict[str, Any]]:
    """Runs one gemm; the result says what was wrong, if anything."""
    torch.set_num_threads(1)
    gemm, began = gemms()[number], time.monotonic()
    runner = InterpreterRunner(Target.SM_100A, FOUR_SCHEDULES)
    error = ""
    try:
        entry = checked(runner, workshop().directory(gemm.variant), gemm.variant.op.kind.value)
        check_op(entry, gemm.variant.op, gemm.case, buffers(gemm.case))
    except Exception as problem:  # whatever fails is this case's result
        error = f"{type(problem).__name__}: {problem}"[:500]
    return [
        {
            "group": gemm.group,
            "case": gemm.name,
            "kernels": began_with,
            "schedule": gemm.variant.schedule.name,
            "equal": not error,
            "error": error,
            "schedules": len(runner.results),
            "instructions": max((run.stats.instructions for run in runner.results), default=0),
            "seconds": round(time.monotonic() - began, 1),
        }
    ]


def prove_layer(cut: str, number: int, began_with: str) -> list[dict[str, Any]]:
    """Runs one pipeline of a cut at every batch."""
    torch.set_num_threads(1)
    package = opened(cut, layer_folder(cut))
    pipeline = pipelines(package)[number]
    return [
        {"group": f"layer {cut}", "case": f"{pipeline.name} T={result.tokens}", "kernels": began_with}
        | {key: value for key, value in result.as_dict().items() if key not in ("cut", "pipeline", "tokens")}
        for result in run_pipeline(cut, package, pipeline, TWO_SCHEDULES)
    ]


@dataclass(frozen=True)
class Task:
    """A unit of work: ``kernels`` names what was compiled, so that an old result is known to be of the same."""

    run: Any
    arguments: tuple[Any, ...]
    group: str
    name: str
    kernels: str


def tasks(only: str) -> Iterator[Task]:
    """What there is to prove in the groups asked for; long ones first."""
    for cut in CUTS:
        if not f"layer {cut}".startswith(only):
            continue
        package = opened(cut, layer_folder(cut))
        offered = read_manifest(package.directory).targets[Target.SM_100A]
        sources = {source.variant: (source.digest, source.closure) for source in offered.sources}
        for number, pipeline in enumerate(offered.pipelines):
            kernels = digest([sources[step.variant] for step in pipeline.steps], "moegen.proof")[:16]
            yield Task(prove_layer, (cut, number), f"layer {cut}", pipeline.name, kernels)
    shop = workshop()
    for number, gemm in enumerate(gemms()):
        if not gemm.group.startswith(only):
            continue
        source = shop.rendered(gemm.variant).source
        kernels = digest([source.digest, source.closure], "moegen.proof")[:16]
        yield Task(prove_gemm, (number,), gemm.group, gemm.name, kernels)


def prove_all(path: Path, only: str, jobs: int) -> list[dict[str, Any]]:
    """Proves what the file does not hold, and writes the file after each task; returns what was asked for."""
    wanted = list(tasks(only))
    facts = json.loads((WORK / "compiled.json").read_text())
    read = json.loads(path.read_text())["cases"] if path.exists() else []
    old = [row for row in read if row.get("kernels")]
    kept = {(row["group"], row["case"]): row for row in old if row["equal"]}
    others = [row for row in old if not row["group"].startswith(only)]
    cases: dict[int, list[dict[str, Any]]] = {}
    for number, task in enumerate(wanted):
        same = [row for row in kept.values() if _is_of(row, task)]
        if same:
            cases[number] = same
    todo = [number for number in range(len(wanted)) if number not in cases]
    context = multiprocessing.get_context("spawn")
    with progress("prove", len(todo)) as lane, ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(wanted[n].run, *wanted[n].arguments, wanted[n].kernels): n for n in todo}
        for future in as_completed(futures):
            rows = [{**row, "commit": facts["commit"][:10]} for row in future.result()]
            cases[futures[future]] = rows
            done = [row for number in sorted(cases) for row in cases[number]]
            write(path, facts, others + done)
            lane.advance("; ".join(row["error"] or "equal" for row in rows))
    return [row for rows in cases.values() for row in rows]


def _is_of(row: dict[str, Any], task: Task) -> bool:
    named = row["case"] == task.name or row["case"].startswith(f"{task.name} T=")
    return row["group"] == task.group and row["kernels"] == task.kernels and named


def write(path: Path, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Writes the file, one case a line."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    record = {
        "what": "compiled and interpreted, not run on hardware",
        "date": date.today().isoformat(),
        **facts,
        "planned": {"gemms": len(gemms()), "cuts": list(CUTS)},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "torch": torch.__version__,
        "groups": {
            name: {
                "cases": len(members),
                "equal": sum(row["equal"] for row in members),
                "instructions": sum(row["instructions"] * row["schedules"] for row in members),
                "seconds": round(sum(row["seconds"] for row in members)),
            }
            for name, members in groups.items()
        },
    }
    head = json.dumps(record, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(f'{head},\n "cases": [\n{lines}\n ]\n}}\n')


def main() -> None:
    """Compiles, proves, and fails when a case did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", default="", help="groups whose names start so: 'gemm W4A4', 'layer dsv3', ...")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--no-compile", action="store_true", help="build/proof holds everything already")
    asked = parser.parse_args()
    if not asked.no_compile:
        compile_all(asked.only, asked.jobs)
    if asked.compile_only:
        return
    rows = prove_all(asked.file, asked.only, asked.jobs)
    failed = [row for row in rows if not row["equal"]]
    for row in failed:
        print(row["group"], row["case"], row["error"])
    print(f"{len(rows) - len(failed)} of {len(rows)} cases equal the reference")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
