"""Times the library's own block-scaled product (cuBLAS, through torch) at a spec's gemm shapes, on a Blackwell GPU.

    python benchmarks/blackwell/peers.py specs/quickstart.yaml OUT.json [--dry-run]

One dense NVFP4 product of all T·k rows with one expert's weights: what the two gemms of a layer would cost if every row
went to one expert. A grouped gemm has more weights to read, so this is a bound, not a like-for-like peer. Medians of
rounds between events, with the L2 cache flushed before each. ``--dry-run`` multiplies in fp32 on the CPU, to check
that shapes and output are right; its times mean nothing. Not run on hardware yet.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from moegen.core.abi import BLOCK, round_up
from moegen.spec.load import load_spec

ROUNDS = 30
FLUSH_BYTES = 512 << 20


def shapes(spec_file: Path) -> list[dict[str, Any]]:
    """(op, T, M, N, K) of every gemm at every token count that the spec tunes for."""
    spec = load_spec(spec_file)
    shape, halves = spec.geometry, 2 if spec.activation.kind.gated else 1
    gemms = {"gemm1": (halves * shape.intermediate, shape.hidden), "gemm2": (shape.hidden, shape.intermediate)}
    return [
        {"op": op, "tokens": tokens, "m": tokens * shape.top_k, "n": n, "k": k}
        for op, (n, k) in gemms.items()
        for tokens in spec.tune.tokens
    ]


def nvfp4_product(m: int, n: int, k: int) -> Callable[[], Any]:
    """A dense NVFP4 × NVFP4 product with random codes and unit scales, bf16 result."""

    def operand(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, device="cuda")
        tiles = round_up(rows, 128) * round_up(k // BLOCK, 4)
        scales = torch.full((tiles,), 0x38, dtype=torch.uint8, device="cuda")
        return codes.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e4m3fn)

    (a, scale_a), (b, scale_b) = operand(m), operand(n)
    return lambda: torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)


def time_us(call: Callable[[], Any]) -> dict[str, float]:
    """Median and spread of single calls between events, cold."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times = []
    for number in range(ROUNDS + 5):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if number >= 5:
            times.append(begin.elapsed_time(end) * 1000)
    return {"median_us": statistics.median(times), "least_us": min(times), "most_us": max(times)}


def dry_us(m: int, n: int, k: int) -> dict[str, float]:
    """One small product on the CPU."""
    a, b = torch.ones(min(m, 64), k), torch.ones(n, k)
    begin = time.perf_counter()
    assert float((a @ b.t())[0, 0]) == k
    return {"median_us": (time.perf_counter() - begin) * 1e6}


def main() -> None:
    """Times every shape; a shape that the library refuses is a row with its reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    asked = parser.parse_args()
    rows = []
    for row in shapes(asked.spec):
        size = row["m"], row["n"], row["k"]
        try:
            timed = dry_us(*size) if asked.dry_run else time_us(nvfp4_product(*size))
        except RuntimeError as error:
            timed = {"error": str(error).splitlines()[0]}
        rows.append({**row, **timed})
        print(rows[-1], flush=True)
    device = "CPU, dry run" if asked.dry_run else torch.cuda.get_device_name()
    asked.out.write_text(json.dumps({"device": device, "torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
