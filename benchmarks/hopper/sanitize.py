"""Runs the GPU tests of single kernels under compute-sanitizer, side by side, and prints what each run ended with.

    PYTHONPATH=.:tests python -m hopper.prebuild KERNELS
    python -m benchmarks.hopper.sanitize KERNELS --out FOLDER [--jobs 16] [--tools memcheck,racecheck] [--parts gemm1]

The parts hold every kernel family. Gemms run on the geometries that fill token tiles of every width (301 tokens, three
experts) or whose rings of stages wrap (K of 2064 and 1616); results are compared with the reference as in any test run.
The exit status is 1 when a tool found something or a test failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck")
GEMMS = "test_gpu_gemms.py"
LADDERS = ("n8", "n16_64", "n24_96", "n8_128", "n88_152", "n48_160", "n256")
#: Name -> test file, selection. Test ids hold the variant's name: h720 and h2064 are the geometries.
PARTS = {
    **{f"gemms, {name}": ("test_gpu_gemms.py", f"w_{name}- and (h720 or h2064)") for name in LADDERS},
    "route": ("test_gpu_streams.py", "route and not 5000"),  # 30,000 slots take racecheck minutes
    "quantizers": ("test_gpu_streams.py", "quantize"),
    "gather, arrange, deinterleave, combine": ("test_gpu_streams.py", "not route and not quantize"),
    "the same of fp16 tokens and products": ("test_gpu_formats.py", "not pipeline"),
    "the whole layer in one kernel": ("test_gpu_block.py", "not streams"),
    "field cases": ("test_gpu_field_cases.py", ""),
}
CLEAN = re.compile(r"(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\))$")


@dataclass(frozen=True)
class Run:
    """One part under one tool: the tool's summary line, pytest's last line, and whether both are as they must be."""

    tool: str
    part: str
    summary: str
    tests: str
    clean: bool


def run(tool: str, part: str, kernels: Path, out: Path) -> Run:
    """Runs a part; its whole output goes to a file of ``out``."""
    file, selection = PARTS[part]
    log = out / f"{tool}_{re.sub('[^a-z0-9]+', '_', part)}.txt"
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "pytest"]
    command += ["-m", "gpu", f"--kernels={kernels}", f"tests/hopper/{file}"]
    command += ["-k", selection] if selection else []
    with log.open("w") as stream:
        status = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
    lines = log.read_text(errors="replace").splitlines()
    summary = next((line for line in reversed(lines) if "SUMMARY:" in line), "no summary").strip("= ")
    tests = next((line for line in reversed(lines) if re.search(r"\d+ passed", line)), "no tests passed").strip("= ")
    clean = status == 0 and bool(CLEAN.search(summary)) and "failed" not in tests and "error" not in tests
    return Run(tool=tool, part=part, summary=summary, tests=tests, clean=clean)


def run_all(tools: list[str], parts: list[str], kernels: Path, out: Path, jobs: int) -> Iterator[Run]:
    """Every part under every tool, as they end."""
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, tool, part, kernels, out) for tool, part in product(tools, parts)]
        for future in as_completed(futures):
            yield future.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--parts", default="", help="regular expression for names of parts")
    options = parser.parse_args()
    parts = [part for part in PARTS if re.search(options.parts, part)]
    clean = True
    for found in run_all(options.tools.split(","), parts, options.kernels, options.out, options.jobs):
        print(f"| {found.part} | {found.tool} | {found.summary} | {found.tests} |", flush=True)
        clean &= found.clean
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
