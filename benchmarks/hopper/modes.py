"""The epilogue modes against each other, and W4A4 against W4A16, at equal ladders.

python -m benchmarks.hopper.modes --kernels FOLDER --out modes.json [--shapes a,b] [--tokens 1,8]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.hopper.common import capture, interleaved, make_cell, make_weights
from benchmarks.hopper.configs import MODE_TOKENS, mode_configs
from benchmarks.hopper.ours import Kernels
from benchmarks.hopper.run import Ours


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", default="qwen3")
    parser.add_argument("--tokens", default=",".join(map(str, MODE_TOKENS)))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    kernels = Kernels(options.kernels)
    for shape in options.shapes.split(","):
        weights = make_weights(shape)
        ours = Ours(shape, kernels, weights)
        for tokens in map(int, options.tokens.split(",")):
            cell = make_cell(shape, tokens, "uniform")
            graphs, keep, workspace = {}, [], {}
            for name, config in mode_configs(shape, tokens).items():
                layer = ours.layer(cell, config)
                outputs = [torch.empty_like(x) for x in cell.inputs]
                graphs[name] = capture([layer.block(ours.given(cell, outputs, i)) for i in range(len(outputs))])
                workspace[name] = layer.workspace_bytes
                keep.append((layer, outputs))
            times = interleaved(graphs, len(cell.routings), 5, 0.003)
            row = {
                "shape": shape,
                "tokens": tokens,
                "us": {name: statistics.median(values) for name, values in times.items()},
                "workspace_bytes": workspace,
            }
            rows.append(row)
            print(shape, tokens, {name: round(value, 1) for name, value in row["us"].items()}, flush=True)
            options.out.write_text(json.dumps(rows))
            del graphs, keep
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
