"""Runs NVIDIA's unmodified examples in the interpreter and writes what came out as JSON.

``MOEGEN_CUTLASS=<checkout> python -m benchmarks.ptx.sm100a.prove benchmarks/ptx/sm100a/results.json``
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.ptx.sm100a import checkout, pretend, published
from moegen.ptx import ADVERSARIES, Options

TUTORIALS = [(0, (256, 512, 768, 1)), (0, (128, 256, 256, 2)), (1, (256, 512, 768, 1)), (1, (512, 256, 1280, 2))]
#: (mnkl, tile, cluster, format)
DENSE = [
    ((256, 256, 768, 1), (128, 64), (1, 1), "nvfp4"),
    ((384, 256, 768, 1), (128, 128), (1, 1), "nvfp4"),
    ((256, 384, 512, 1), (128, 192), (1, 1), "nvfp4"),
    ((256, 512, 512, 1), (128, 256), (1, 2), "nvfp4"),
    ((512, 256, 512, 1), (256, 64), (2, 1), "nvfp4"),
    ((512, 256, 768, 1), (256, 128), (2, 1), "nvfp4"),
    ((512, 384, 512, 1), (256, 192), (2, 1), "nvfp4"),
    ((512, 512, 512, 2), (256, 256), (2, 2), "nvfp4"),
    ((1024, 256, 512, 1), (256, 128), (4, 1), "nvfp4"),
    ((200, 320, 288, 1), (128, 128), (1, 1), "nvfp4"),
    ((200, 320, 288, 1), (128, 64), (1, 1), "nvfp4"),
    ((328, 192, 352, 1), (256, 128), (2, 1), "nvfp4"),
    ((256, 256, 7168, 1), (256, 256), (2, 1), "nvfp4"),
    ((256, 256, 768, 1), (128, 128), (1, 1), "mxfp4"),
    ((512, 256, 768, 1), (256, 128), (2, 1), "mxfp8"),
]
SCALED = [
    {"scenario": "2Dx3D", "kind": "nvfp4", "experts": 4},
    {"scenario": "2Dx3D", "kind": "nvfp4", "experts": 8, "hidden": 512, "intermediate": 384, "seed": 1},
    {"scenario": "2Dx3D", "kind": "nvfp4", "pair": True, "tile": [256, 128, 128], "cluster": [2, 1, 1]},
    {"scenario": "2Dx3D", "kind": "mxfp4"},
    {"scenario": "2Dx3D", "kind": "mxfp8"},
    {"scenario": "2Dx3D", "kind": "mxfp8", "pair": True, "tile": [256, 128, 128], "cluster": [2, 1, 1], "seed": 2},
    {"scenario": "2Dx2D", "kind": "mxfp4"},
    {"scenario": "2Dx2D", "kind": "mxfp8"},
]
GROUPED = [
    {"sizes": [[128, 128, 256, 1], [256, 128, 128, 1]]},
    {"sizes": [[200, 256, 320, 1], [64, 128, 256, 1], [128, 384, 512, 1]]},
    {"sizes": [[256, 256, 256, 1], [512, 128, 384, 1]], "tile": [256, 128], "cluster": [2, 1]},
    {"sizes": [[128, 128, 256, 1], [256, 128, 128, 1]], "fmt": "mxfp8"},
]

DYNAMIC = [((512, 384, 256, 1), (128, 128), (1, 1)), ((1024, 384, 256, 1), (256, 128), (2, 1))]


def under_schedules(case: Any) -> dict[str, Any]:
    """Runs a case under every adversary; mismatches summed, findings of the race detector by kind."""
    out: dict[str, Any] = {"mismatches": 0, "findings": {}, "schedules": len(ADVERSARIES)}
    for options in ADVERSARIES:
        collected = Options(**{**options.__dict__, "stop_at_error": False})
        row, result = case.run(collected)
        out["values"] = row["values"]
        out["mismatches"] += row["mismatches"]
        for report in result.reports:
            out["findings"][report.check.value] = out["findings"].get(report.check.value, 0) + report.count
        out["instructions"] = result.stats.instructions
    return out


def main() -> None:
    target = Path(sys.argv[1])
    versions = {name: importlib.metadata.version(name) for name in ("nvidia-cutlass-dsl", published.PACKAGE, "numpy")}
    # Cases that an earlier run of the same checkout finished are kept.
    known = json.loads(target.read_text()) if target.exists() else {}
    table: dict[str, Any] = known.get("cases", {}) if known.get("cutlass") == checkout.commit() else {}

    def record(name: str, run: Any) -> None:
        if "error" not in table.get(name, {"error": ""}):
            return
        start = time.perf_counter()
        try:
            row = run()
        except Exception as error:  # one failing example must not hide the others; it is the result
            row = {"error": f"{type(error).__name__}: {str(error)[-600:]}"}
        table[name] = row | {"seconds": round(time.perf_counter() - start, 1)}
        print(name, table[name], flush=True)
        head = {"date": time.strftime("%Y-%m-%d"), "cutlass": checkout.commit(), "versions": versions}
        target.write_text(json.dumps(head | {"cases": table}, indent=1) + "\n")

    for number, mnkl in TUTORIALS:
        record(
            f"tutorial nvfp4_gemm_{number} {mnkl}", lambda n=number, s=mnkl: under_schedules(checkout.tutorial(n, s))
        )
    for mnkl, tile, cluster, fmt in DENSE:
        name = f"dense_blockscaled_gemm_persistent {fmt} {mnkl} tile {tile} cluster {cluster}"
        record(name, lambda a=(mnkl, tile, cluster), f=fmt: under_schedules(checkout.dense(*a, fmt=f)))
    for mnkl, tile, cluster in DYNAMIC:
        name = f"dense_gemm_persistent_dynamic fp16 {mnkl} tile {tile} cluster {cluster}"
        record(name, lambda a=(mnkl, tile, cluster): under_schedules(checkout.dynamic(*a)))
    for arguments in SCALED:
        more = arguments | {"options": {"races": True}}
        record(f"torch_scaled_grouped_mm {arguments}", lambda m=more: pretend.in_process("scaled_grouped", m))
    for arguments in GROUPED:
        more = arguments | {"options": {"races": True}}
        record(f"grouped_blockscaled_gemm {arguments}", lambda m=more: pretend.in_process("grouped_block_scaled", m))
    for mnkl, tile, cluster, fmt in DENSE[1:6:2]:
        name = f"{published.PACKAGE} {fmt} {mnkl} tile {tile} cluster {cluster}"
        record(name, lambda a=(mnkl, tile, cluster), f=fmt: under_schedules(published.gemm(*a, fmt=f)))


if __name__ == "__main__":
    main()
