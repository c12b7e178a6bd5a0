"""fp16 tokens beside bf16, and W4A4 with products of code and scale beside codes: blocks in turn, one process.

python -m benchmarks.hopper.forms build FOLDER
python -m benchmarks.hopper.forms time FOLDER OUT.json [--tokens 8,128] [--rounds 7]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.hopper.build import build
from benchmarks.hopper.common import (
    Cell,
    Nvfp4,
    capture,
    interleaved,
    make_cell,
    make_weights,
    reference,
    relative_error,
)
from benchmarks.hopper.configs import SHAPES, configs, mode_ladder
from benchmarks.hopper.ours import Bank, Config, Kernels, Layer, pack_of, pipeline
from moegen.core.enums import Epilogue

SHAPE = "qwen3"
TOKENS = (8, 128, 512, 2048, 8192)


def contenders(tokens: int) -> dict[str, Config]:
    """Forms of one cell. Rows of 16 bits take the cell's first ladder; codes one that stops at 128."""
    best = configs(SHAPE, tokens)[0]
    narrow = mode_ladder(tokens)
    coded = replace(best, w4a4=True, gemm1=narrow, gemm2=narrow)
    products = replace(best, w4a4=True, decoded=True)
    return {
        "w4a16 bf16": best,
        "w4a16 fp16": replace(best, fp16=True),
        "w4a4 codes": coded,
        "w4a4 codes fused": replace(coded, epilogue=Epilogue.FUSED_FP4),
        "w4a4 products": products,
        "w4a4 products fp16": replace(products, fp16=True),
    }


def time_cell(
    cell: Cell, weights: tuple[Nvfp4, Nvfp4], banks: dict[str, Bank], kernels: Kernels, rounds: int
) -> dict[str, Any]:
    """Medians and spread of every contender, its workspace, and its distance to fp32 on unquantised rows."""
    part = slice(0, min(cell.tokens, 32))
    exact = reference(weights, cell, part)
    graphs, kept, row = {}, [], {"tokens": cell.tokens, "us": {}, "spread": {}, "workspace_bytes": {}, "error": {}}
    for name, config in contenders(cell.tokens).items():
        layer = Layer(SHAPES[SHAPE], banks[pack_of(config)], kernels, config, cell.tokens)
        inputs = [x.half() if config.fp16 else x for x in cell.inputs]
        outputs = [torch.full_like(x, float("nan")) for x in inputs]
        every = [
            {"x": x, "topk_ids": ids, "topk_weights": weights, "y": y}
            for x, y, (ids, weights) in zip(inputs, outputs, cell.routings, strict=True)
        ]
        graphs[name] = capture([layer.block(given) for given in every])
        row["error"][name] = relative_error(outputs[0][part], exact)
        row["workspace_bytes"][name] = layer.workspace_bytes
        kept.append((layer, inputs, outputs, every))
    for name, values in interleaved(graphs, len(cell.routings), rounds, 0.004).items():
        row["us"][name] = statistics.median(values)
        row["spread"][name] = (max(values) - min(values)) / row["us"][name]
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("build", "time"))
    parser.add_argument("kernels", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    counts = tuple(map(int, options.tokens.split(",")))
    if options.what == "build":
        every = [config for tokens in counts for config in contenders(tokens).values()]
        variants = [variant for config in every for variant in pipeline(SHAPES[SHAPE], config)]
        sys.exit(build(options.kernels, {variant.digest[:24]: variant for variant in variants}, os.cpu_count() or 1))
    weights = make_weights(SHAPE)
    parts = [(matrix.codes, matrix.scale, matrix.gscale) for matrix in weights]
    banks = {name: Bank(SHAPES[SHAPE], parts[0], parts[1], name) for name in ("sm90_m64k128", "sm90_m64k128_fp16")}
    kernels, rows = Kernels(options.kernels), []
    for tokens in counts:
        rows.append(time_cell(make_cell(SHAPE, tokens, "uniform"), weights, banks, kernels, options.rounds))
        for name, value in rows[-1]["us"].items():
            spread, error = rows[-1]["spread"][name], rows[-1]["error"][name]
            print(f"{SHAPE} {tokens:5} {name:20} {value:9.1f} us  ±{100 * spread:.1f} %  error {error:.2e}", flush=True)
        options.out.write_text(json.dumps(rows))
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
