"""NVIDIA's published block-scaled gemms, compiled and interpreted on one problem, for the costs on paper.

    MOEGEN_CUTLASS=<checkout> python -m benchmarks.blackwell.published KERNEL OUT_FOLDER

Each runs in a process of its own, since the examples change the compiler's environment. ``OUT_FOLDER`` gets the cubin
and ``facts.json``: tile, stages, and what the interpreter counted.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

#: M, N, K, groups of every problem: rows of one group, its columns, its depth.
PROBLEM = (256, 256, 1536, 1)
KERNELS: dict[str, tuple[str, tuple[int, int], bool]] = {
    "CUTLASS example, dense, 128 x 128": ("dense", (128, 128), False),
    "CUTLASS example, dense, pair 256 x 128": ("dense", (256, 128), True),
    "CUTLASS example, scaled grouped (MoE), 128 x 128": ("scaled", (128, 128), False),
    "nvidia-cutlass-operators 0.3, dense, 128 x 128": ("operators", (128, 128), False),
    "nvidia-cutlass-operators 0.3, dense, pair 256 x 128": ("operators", (256, 128), True),
}
#: Attributes in which the examples' kernel objects keep their pipelines' depths.
DEPTHS = ("num_ab_stage", "num_acc_stage", "num_c_stage")


def run(name: str) -> tuple[Any, bytes, Any]:
    """(Kernel object, cubin, statistics) of one kernel on the problem."""
    kind, tile, pair = KERNELS[name]
    from benchmarks.ptx.sm100a import checkout, pretend, published
    from moegen.ptx import capture

    capture.prepare_cutedsl()
    cute = importlib.import_module("cutlass.cute")
    kept: list[tuple[Any, Any]] = []
    compile_ = cute.compile

    def keep(kernel: Any, *arguments: Any, **options: Any) -> Any:
        options["options"] = f"{options.get('options', '')} --keep-cubin --keep-ptx".strip()
        call = compile_(kernel, *arguments, **options)
        kept.append((kernel, call))
        return call

    cluster = (2, 1) if pair else (1, 1)
    with mock.patch.object(cute, "compile", keep):
        if kind == "scaled":
            return None, b"", _run_example(pretend, tile)
        make: Callable[..., Any] = checkout.dense if kind == "dense" else published.gemm
        case = make(PROBLEM, tile, cluster)
        row, result = case.run()
        assert not row["mismatches"]
    kernel, call = kept[-1]
    return kernel, bytes(call.__cubin__), result.stats


def _run_example(pretend: Any, tile: tuple[int, int]) -> Any:
    """Statistics of the example's gemm, the longest of its launches; the compiler dumps its cubin."""
    sessions: list[Any] = []

    class Kept(pretend.ExampleSession):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            sessions.append(self)

    m, n, k, _ = PROBLEM
    with mock.patch.object(pretend, "ExampleSession", Kept):
        pretend.scaled_grouped("2Dx3D", "nvfp4", tokens=m // 2, experts=1, hidden=k, intermediate=n, tile=(*tile, 128))
    return max((result.stats for result in sessions[0].results), key=lambda stats: stats.instructions)


def facts_of(name: str, folder: Path) -> dict[str, Any]:
    """Runs one kernel in a process of its own; its facts, and ``cubin``, the file."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"CUTE_DSL_ARCH": "sm_100a", "CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_DUMP_DIR": str(folder)}
    command = [sys.executable, "-m", "benchmarks.blackwell.published", name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)
    if done.returncode:
        raise RuntimeError(f"{name}: {(done.stdout + done.stderr)[-1500:]}")
    return json.loads((folder / "facts.json").read_text()) | {"cubin": folder / "kernel.cubin"}


def main() -> None:
    """Runs the kernel named and writes its files."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    kernel, cubin, stats = run(name)
    (folder / "kernel.cubin").write_bytes(
        cubin or max(folder.glob("*.cubin"), key=lambda path: path.stat().st_size).read_bytes()
    )
    facts = {
        "tile": KERNELS[name][1],
        "pair": KERNELS[name][2],
        "stages": {depth: getattr(kernel, depth, None) for depth in DEPTHS},
        "roles": {role: sum(part["opcodes"].values()) for role, part in stats.roles.items()},
        "bytes": stats.bytes_moved,
    }
    (folder / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
