"""gemm1's three epilogues side by side on CPU kernels: time, and bytes written on the way to gemm2's input.

    python benchmarks/cpu/epilogues.py [--tokens 16 128] [--threads 1] [--json]

W4A4, SwiGLU, 8 experts of H = 2048 and I = 768 (the expert size of Qwen3-30B-A3B), k = 2, uniform routing. A mode's
time is gemm1 plus the op that turns its output into gemm2's codes: deinterleave_quantize, quantize, or none. The modes
are measured in turn, round after round, so that a busy machine disturbs all of them alike; the least time is the one to
compare. That all three yield the same codes is asserted. Bytes count padding rows, pitch and scale padding.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from kernels.cases import SWIZZLED, Case, buffers  # noqa: E402
from kernels.chain import variant_for  # noqa: E402
from kernels.harness import Workshop  # noqa: E402

from moegen.core.abi import Argument, arguments  # noqa: E402
from moegen.core.enums import Epilogue, OpKind, Round  # noqa: E402
from moegen.core.ops import Numerics, OpSpec  # noqa: E402

ROUNDS = 15
GEMM = {"cols": 64, "k_chunk": 512, "unroll": 4}
MIDDLE = (OpKind.GEMM1, OpKind.QUANTIZE, OpKind.DEINTERLEAVE_QUANTIZE)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One epilogue mode, ready to run: ``launch`` runs gemm1 and what follows it."""

    epilogue: Epilogue
    gemm1: Callable[[], None]
    rest: Callable[[], None]
    written: dict[str, int]
    held: dict[str, torch.Tensor]


def case_for(epilogue: Epilogue, tokens: int) -> Case:
    """The layer; bf16 rounding before quantising puts all modes into one numerics class."""
    return Case(
        hidden=2048,
        intermediate=768,
        experts=8,
        top_k=2,
        tokens=tokens,
        row_tile=32 if tokens >= 64 else 4,
        routing="uniform",
        epilogue=epilogue,
        row_scales=SWIZZLED,
        weight_scales=SWIZZLED,
        numerics=Numerics(pre_quant_round=Round.BF16),
    )


def prepare(workshop: Workshop, epilogue: Epilogue, tokens: int, threads: int) -> Mode:
    """Compiles a mode's kernels and binds them to one set of buffers."""
    case = case_for(epilogue, tokens)
    held, dims = buffers(case), case.dims()
    ops = [op for op in case.pipeline() if op.kind in MIDDLE and not (op.kind is OpKind.QUANTIZE and op.gather)]
    calls, written = [], {}
    for op in ops:
        for argument in arguments(op):
            if argument.access == "write":
                held[argument.name] = torch.zeros_like(held[argument.name])
                written[f"{op.kind.value} {argument.name}"] = bytes_written(argument, op, held, int(held["totals"][1]))
        gemm = op.kind is OpKind.GEMM1
        kernel = workshop.kernel(variant_for(op, **(GEMM if gemm else {})))
        values = [held[argument.name] for argument in arguments(op)]
        calls.append(lambda kernel=kernel, values=values: kernel(*values, threads))
    assert dims["R"] == len(held["row_slot"])
    rest = calls[1] if len(calls) > 1 else lambda: None
    return Mode(epilogue=epilogue, gemm1=calls[0], rest=rest, written=written, held=held)


def bytes_written(argument: Argument, op: OpSpec, held: dict[str, torch.Tensor], rows: int) -> int:
    """Bytes of the rows that a call defines."""
    if argument.shape[0] == "R128":
        rows = -(-rows // 128) * 128
    tensor = held[argument.name]
    return rows * tensor[0].numel() * tensor.element_size()


def milliseconds(call: Callable[[], None]) -> float:
    """Processor time of one call, all threads together: what a busy machine disturbs least."""
    start = time.process_time_ns()
    call()
    return (time.process_time_ns() - start) / 1e6


def summary(values: list[float]) -> dict[str, float]:
    """Least, median and 80th percentile."""
    ordered = sorted(values)
    return {"least": ordered[0], "median": statistics.median(ordered), "p80": ordered[int(0.8 * len(ordered))]}


def measure(workshop: Workshop, tokens: int, threads: int) -> list[dict[str, object]]:
    """One record a mode."""
    modes = [prepare(workshop, epilogue, tokens, threads) for epilogue in Epilogue]
    times: dict[tuple[Epilogue, str], list[float]] = {}
    for turn in range(ROUNDS + 1):
        for mode in modes[turn % 3 :] + modes[: turn % 3]:
            for part, call in (("gemm1", mode.gemm1), ("rest", mode.rest)):
                spent = milliseconds(call)
                if turn:  # the first round warms up
                    times.setdefault((mode.epilogue, part), []).append(spent)
    rows = int(modes[0].held["totals"][1])
    for mode in modes[1:]:
        assert torch.equal(mode.held["h_codes"][:rows], modes[0].held["h_codes"][:rows]), "modes disagree"
    return [
        {
            "epilogue": mode.epilogue.value,
            "tokens": tokens,
            "threads": threads,
            "gemm1_ms": summary(times[mode.epilogue, "gemm1"]),
            "rest_ms": summary(times[mode.epilogue, "rest"]),
            "gemm1_bytes": sum(size for name, size in mode.written.items() if name.startswith("gemm1")),
            "all_bytes": sum(mode.written.values()),
        }
        for mode in modes
    ]


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        records = [record for tokens in options.tokens for record in measure(workshop, tokens, options.threads)]
    if options.json:
        print(json.dumps(records, indent=1))
        return
    print("epilogue     tokens  gemm1 CPU ms: least median p80   after it: least   gemm1 writes   all writes")
    for record in records:
        gemm1, rest = record["gemm1_ms"], record["rest_ms"]
        print(
            f"{record['epilogue']:<12} {record['tokens']:>6} {gemm1['least']:>20.2f} {gemm1['median']:>6.2f} "  # type: ignore[index]
            f"{gemm1['p80']:>5.2f} {rest['least']:>16.3f} {record['gemm1_bytes']:>14,} {record['all_bytes']:>12,}"  # type: ignore[index]
        )


if __name__ == "__main__":
    main()
