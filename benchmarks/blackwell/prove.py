"""Proves the sm_100a gemms in the interpreter: every pair of values of the grid in ``tests/blackwell/grid.py``.

    PYTHONPATH=.:tests python benchmarks/blackwell/prove.py benchmarks/blackwell/proof.json

Each case is compiled without a GPU and run under six schedules, one of them with the race detector; every byte must
equal the reference and be the same under all schedules, and nothing may be reported. Compiled and interpreted, not run
on hardware.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from blackwell.grid import GemmCase, every_pair
from blackwell.workshop import SCHEDULES, Workshop
from kernels.cases import buffers
from kernels.compare import check_op

from moegen.core.enums import Target
from moegen.ptx.runner import InterpreterRunner

JOBS = min(2, os.cpu_count() or 1)


def prove(number: int) -> dict[str, Any]:
    """Runs one case; the result says what was wrong, if anything."""
    torch.set_num_threads(1)
    case: GemmCase = every_pair()[number]
    variant = case.variant
    begin = time.monotonic()
    result: dict[str, Any] = {"op": variant.op.kind.value, "case": case.name, "schedule": variant.schedule.name}
    with tempfile.TemporaryDirectory() as folder:
        try:
            runner = InterpreterRunner(Target.SM_100A, SCHEDULES)
            entry = runner.load(Workshop(Path(folder)).directory(variant), variant.op.kind.value)
            result["compile_seconds"] = round(time.monotonic() - begin, 1)
            check_op(lambda *values: entry(*values[:-1]), variant.op, case.case, buffers(case.case))
        except Exception as error:  # whatever fails is this case's result
            return {**result, "equal": False, "error": f"{type(error).__name__}: {error}"[:500]}
    reports = [str(report) for run in runner.results for report in run.reports]
    return {
        **result,
        "equal": not reports,
        "reports": reports[:3],
        "schedules": len(runner.results),
        "instructions": max(run.stats.instructions for run in runner.results),
        "seconds": round(time.monotonic() - begin, 1),
    }


def main() -> None:
    """Proves every case, writes the file after each, and fails when one of them did."""
    path = Path(sys.argv[1])
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    count = len(every_pair())
    cases: dict[int, dict[str, Any]] = {}
    with ProcessPoolExecutor(JOBS, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(prove, number): number for number in range(count)}
        for future in as_completed(futures):
            cases[futures[future]] = future.result()
            record = {
                "what": "compiled and interpreted, not run on hardware",
                "date": date.today().isoformat(),
                "commit": commit,
                "cutlass-dsl": version("nvidia-cutlass-dsl"),
                "planned": count,
                "cases": [cases[number] for number in sorted(cases)],
            }
            path.write_text(json.dumps(record, indent=1) + "\n")
            print(f"{len(cases)}/{count}", cases[futures[future]], flush=True)
    failed = [case for case in cases.values() if not case["equal"]]
    print(f"{count - len(failed)} of {count} cases equal the reference")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
