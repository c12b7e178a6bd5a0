"""Mutation test of our own Blackwell gemms: does the proof notice when one PTX instruction is deleted or changed?

    PYTHONPATH=.:tests python -m benchmarks.blackwell.mutation benchmarks/blackwell/mutation.json [--sample 150]

Mutants are those of ``benchmarks/ptx/mutation.py``, a sample of each kernel's, fixed by a seed. A mutant is judged as
the proof judges a kernel: launched on the interpreter under its five adversaries, each with the race detector, it must
write the reference's bytes and give no finding. Survivors are listed with line and text; ``class`` is filled in by hand
and kept when the same mutant survives again. Fates are noted in ``build/mutation`` as they come, so an interrupted run
goes on where it was, and a larger sample holds a smaller one.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from blackwell.small import FUSED, PAIR, SWAPPED
from blackwell.workshop import Workshop, checked
from kernels.cases import buffers
from kernels.compare import check_op

from moegen.build.toolchain import OBJECT, PTX
from moegen.cli.console import progress
from moegen.core.canonical import digest
from moegen.core.enums import Target
from moegen.ptx import ADVERSARIES, ExecutionError, PtxError
from moegen.ptx.parser import parse
from moegen.ptx.runner import InterpreterRunner

WORK = Path("build/mutation")
SEED = 7
PATIENCE = 10
"""A mutant that takes so many times the steps of the kernel itself never ends."""
KERNELS = {"gemm1 fused_fp4, one CTA": FUSED, "gemm1 compact, CTA pairs": PAIR, "gemm2, swapped": SWAPPED}


@dataclass(frozen=True)
class Mutant:
    """One changed line of a kernel's PTX."""

    line: int
    what: str
    new: str

    @property
    def name(self) -> str:
        """What tells mutants of a kernel apart."""
        return f"{self.line} {self.what} -> {self.new.strip()}"

    def text(self, original: str) -> str:
        """The whole PTX with the change."""
        lines = original.splitlines()
        lines[self.line - 1] = self.new
        return "\n".join(lines)


def folder(kernel: str) -> Path:
    """Where a kernel's object, PTX and mutants lie."""
    return WORK / kernel.replace(",", "").replace(" ", "-")


def prepare() -> None:
    """Compiles the kernels and writes their mutants down, so that a machine without compilers can judge them."""
    from benchmarks.ptx.mutation import mutants

    (WORK / "compiled").mkdir(parents=True, exist_ok=True)
    shop = Workshop(WORK / "compiled")
    shop.prepare([case.variant for case in KERNELS.values()])
    for name, case in KERNELS.items():
        place = folder(name)
        place.mkdir(exist_ok=True)
        for file in (OBJECT, PTX):
            shutil.copy(shop.directory(case.variant) / file, place / file)
        text = (place / PTX).read_text()
        found = [(line, what, changed.splitlines()[line - 1]) for line, what, changed in mutants(text)]
        (place / "mutants.json").write_text(json.dumps(found, indent=0))


def sampled(kernel: str, count: int) -> list[Mutant]:
    """``count`` of a kernel's mutants, or all, in an order that the seed fixes."""
    found = [Mutant(*item) for item in json.loads((folder(kernel) / "mutants.json").read_text())]
    random.Random(SEED).shuffle(found)
    return found[:count]


def run(kernel: str, directory: Path, most_steps: int) -> int:
    """Proves the kernel in ``directory`` under every adversary; returns the most steps of a run.

    Raises:
        AssertionError: other bytes than the reference's, or a finding.
        PtxError: whatever stops the interpreter.
    """
    case, steps = KERNELS[kernel], 0
    for options in ADVERSARIES:
        runner = InterpreterRunner(Target.SM_100A, [replace(options, races=True, max_steps=most_steps)])
        check_op(checked(runner, directory, case.kind.value), case.op, case.case, buffers(case.case))
        steps = max(steps, *(result.stats.steps for result in runner.results))
    return steps


def judge(kernel: str, mutant: Mutant, most_steps: int) -> tuple[str, float]:
    """What became of a mutant, and the seconds that it took."""
    began = time.monotonic()
    torch.set_num_threads(1)
    return _fate(kernel, mutant, most_steps), round(time.monotonic() - began, 1)


def _fate(kernel: str, mutant: Mutant, most_steps: int) -> str:
    """``survived``, ``invalid``, or how the mutant was noticed."""
    place = folder(kernel)
    text = mutant.text((place / PTX).read_text())
    try:
        parse(text)
    except PtxError:
        return "invalid"
    with tempfile.TemporaryDirectory() as made:
        shutil.copy(place / OBJECT, made)
        (Path(made) / PTX).write_text(text)
        try:
            run(kernel, Path(made), most_steps)
        except ExecutionError as error:
            return error.report.check.value if error.report is not None else "schedule-dependent"
        except PtxError as error:
            return type(error).__name__
        except AssertionError as error:
            said = error.args[0]
            return "wrong result" if isinstance(said, str) else said.check.value
    return "survived"


def judged(kernel: str, mutants: list[Mutant], jobs: int) -> dict[str, tuple[str, float]]:
    """Fate and seconds of each mutant by name; those that an earlier run judged of the same PTX are kept."""
    notes, text = folder(kernel) / "fates.json", (folder(kernel) / PTX).read_text()
    held = json.loads(notes.read_text()) if notes.exists() else {}
    fates = held["fates"] if held.get("ptx") == digest(text, "moegen.mutation") else {}
    todo = [mutant for mutant in mutants if mutant.name not in fates]
    most_steps = PATIENCE * run(kernel, folder(kernel), 2_000_000_000)
    context = multiprocessing.get_context("spawn")
    with progress(kernel, len(todo)) as lane, ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(judge, kernel, mutant, most_steps): mutant for mutant in todo}
        for future in as_completed(futures):
            fates[futures[future].name] = future.result()
            notes.write_text(json.dumps({"ptx": digest(text, "moegen.mutation"), "fates": fates}, indent=0))
            lane.advance(future.result()[0])
    return {mutant.name: tuple(fates[mutant.name]) for mutant in mutants}


def score(kernel: str, mutants: list[Mutant], jobs: int, known: dict[tuple[int, str], str]) -> dict[str, Any]:
    """Judges mutants of one kernel; ``known`` has classes of survivors by line and change."""
    found = judged(kernel, mutants, jobs)
    fates = Counter(fate for fate, _ in found.values())
    survivors = [
        {"line": mutant.line, "mutant": mutant.what, "class": known.get((mutant.line, mutant.what), "")}
        for mutant in mutants
        if found[mutant.name][0] == "survived"
    ]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    valid = len(mutants) - fates["invalid"]
    equivalent = sum(survivor["class"].startswith("equivalent") for survivor in survivors)
    return {
        "commit": commit.stdout.strip(),
        "date": date.today().isoformat(),
        "schedule": KERNELS[kernel].variant.schedule.name,
        "mutants": valid,
        "killed": valid - len(survivors),
        "equivalent": equivalent,
        "score": round((valid - len(survivors)) / valid, 3),
        "score of the others": round((valid - len(survivors)) / (valid - equivalent), 3),
        "by": dict(fates.most_common()),
        "survivors": sorted(survivors, key=lambda item: item["line"]),
        "seconds": round(sum(seconds for _, seconds in found.values())),
    }


def main() -> None:
    """Judges each kernel's sample and writes the file after each kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sample", type=int, default=150, help="mutants of each kernel")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", default="", help="kernels whose names start so")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--no-compile", action="store_true", help="build/mutation holds everything already")
    asked = parser.parse_args()
    if not asked.no_compile:
        prepare()
    if asked.compile_only:
        return
    old = json.loads(asked.file.read_text())["kernels"] if asked.file.exists() else {}
    table: dict[str, Any] = dict(old)
    for kernel in filter(lambda name: name.startswith(asked.only), KERNELS):
        found = json.loads((folder(kernel) / "mutants.json").read_text())
        known = {(item["line"], item["mutant"]): item["class"] for item in old.get(kernel, {}).get("survivors", [])}
        table[kernel] = {"of": len(found), **score(kernel, sampled(kernel, asked.sample), asked.jobs, known)}
        record = {"what": "compiled and interpreted", "seed": SEED, "kernels": table}
        asked.file.write_text(json.dumps(record, indent=1) + "\n")
        print(
            kernel,
            {key: table[kernel][key] for key in ("of", "mutants", "killed", "score", "by", "seconds")},
            flush=True,
        )
    sys.exit(0)


if __name__ == "__main__":
    main()
