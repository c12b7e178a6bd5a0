"""Host cost of serving: a decision that is already known, a new one, and a whole call above its kernels.

    python benchmarks/runtime/decision.py [--json]

``moegen's own part`` is a whole call whose five kernels do nothing: checks, output, decision, lock, arguments. The
other figures run a tiny layer on compiled CPU kernels with one thread.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from runtime.packages import SPEC, compiled_package, make_inputs, reference_package  # noqa: E402
from runtime.reference_runner import ReferenceRunner  # noqa: E402
from runtime.writers import random_weights  # noqa: E402

from moegen.core.runner import Kernel  # noqa: E402
from moegen.runtime import CpuRunner  # noqa: E402

ROUNDS = 9


class IdleRunner(ReferenceRunner):
    """Kernels that return at once."""

    def load(self, directory: Path, symbol: str) -> Kernel:
        return lambda *arguments: None


def microseconds(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median, least and most of :data:`ROUNDS` rounds, microseconds per call."""
    call()
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        rounds.append((time.perf_counter_ns() - start) / repeats / 1000)
    return {"median": statistics.median(rounds), "least": min(rounds), "most": max(rounds)}


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """Every figure, by name."""
    idle = reference_package(SPEC, folder / "idle").load(runner=IdleRunner()).from_tensors(random_weights(experts=7))
    layer = (
        compiled_package(SPEC, folder / "cpu").load(runner=CpuRunner(threads=1)).from_tensors(random_weights(experts=7))
    )
    inputs = make_inputs(layer, 4)
    compiled = torch.compile(lambda *args: layer(*args), backend="aot_eager", fullgraph=True)
    figures = {
        "decision, known T": microseconds(lambda: layer.engine.decide(4), 20_000),
        "decision, new T": microseconds(lambda: layer.engine.decider._resolve(5), 2_000),
        "moegen's own part of a call": microseconds(lambda: idle(*inputs), 5_000),
        "whole call, T = 4": microseconds(lambda: layer(*inputs), 500),
        "whole call in torch.compile, T = 4": microseconds(lambda: compiled(*inputs), 500),
    }
    with layer.engine.pool.slot() as slot:
        bound = layer.engine.bound(layer.engine.decide(4).pipeline, 4, slot)
        y = torch.empty_like(inputs[0])
        figures["its launches alone, T = 4"] = microseconds(lambda: bound.launch(*inputs, y, 0), 500)
    return figures


def main() -> None:
    """Prints one line a figure, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    if arguments.json:
        print(json.dumps(figures, indent=1))
        return
    for name, figure in figures.items():
        print(f"{name:36} {figure['median']:9.3f} µs  ({figure['least']:.3f} … {figure['most']:.3f})")


if __name__ == "__main__":
    main()
