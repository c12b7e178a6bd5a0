"""One small MoE layer on interpreted sm_100a kernels: time under four schedules.

    python -m benchmarks.ptx.layer [--rounds 3]

T = 32, H = 256, I = 128, E = 4, k = 2, W4A4 with the fused epilogue: route, quantize, gemm1, gemm2, combine. The output
must equal the torch reference, bit for bit, under every schedule.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from blackwell.test_layer import EXPERTS, SPEC  # noqa: E402
from runtime.packages import generate_package, make_inputs, reference_output  # noqa: E402
from runtime.writers import random_weights  # noqa: E402

from moegen.build.builder import build  # noqa: E402
from moegen.core.enums import Target  # noqa: E402
from moegen.ptx.options import Options  # noqa: E402
from moegen.ptx.runner import InterpreterRunner  # noqa: E402
from moegen.runtime import load  # noqa: E402

TOKENS = 32
SCHEDULES = {
    "four schedules": tuple(Options(seed=seed) for seed in range(4)),
    "four schedules, one with the race detector": (Options(races=True), *(Options(seed=seed) for seed in range(3))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        package = generate_package(SPEC, Path(folder))
        report = build(package.directory, [Target.SM_100A], store=package.store)
        assert not report.failed, report.failed[0].log
        for name, schedules in SCHEDULES.items():
            runner = InterpreterRunner(Target.SM_100A, schedules)
            loaded = load(package.directory, target=Target.SM_100A, store=package.store, runner=runner)
            layer = loaded.from_tensors(random_weights(experts=EXPERTS, hidden=256, intermediate=128))
            inputs = make_inputs(layer, TOKENS, seed=TOKENS, experts=EXPERTS)
            expected = reference_output(layer, layer.engine.decide(TOKENS).pipeline, *inputs)
            times = []
            for _ in range(rounds):
                begin = time.perf_counter()
                y = layer(*inputs)
                times.append(time.perf_counter() - begin)
                assert torch.equal(y, expected)
            assert not [found for result in runner.results for found in result.reports]
            print(f"{name}: {statistics.median(times):.2f} s ({min(times):.2f} … {max(times):.2f}), {rounds} rounds")


if __name__ == "__main__":
    main()
