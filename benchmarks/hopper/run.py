"""Times moegen's layer and the peers in one process, interleaved with equal windows.

    python -m benchmarks.hopper.run --kernels FOLDER --out results.json [--shapes a,b] [--tokens 1,8]
        [--routings uniform,zipf] [--peers humming_idx,humming_grp,marlin] [--sustained 2048,8192]

For each cell moegen's candidate ladders are swept first, stage by stage; the best of each stage make one pipeline. Then
that pipeline and every peer are replayed in turn, round after round, from CUDA graphs that cycle through several
routings so that L2 never holds the weights. ``benchmarks/hopper/report.py`` turns the result into tables and plots.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.hopper.common import (
    Cell,
    Nvfp4,
    bench,
    capture,
    ceilings,
    floors,
    interleaved,
    make_cell,
    make_weights,
    reference,
    relative_error,
)
from benchmarks.hopper.configs import FAST_FROM, SHAPES, configs, full_config
from benchmarks.hopper.ours import Bank, Config, Kernels, Layer
from benchmarks.hopper.peers.adapters import ALL, OTHER_CLASS, Peer, release

STAGES = {"route": ("route", "gather", "arrange"), "l1": ("gemm1",), "l2": ("gemm2",), "sum": ("combine",)}
Call = Callable[[], Any]
Weights = tuple[Nvfp4, Nvfp4]
ROUNDS = 9
BURST_S = 0.004
CLOSE, RIVALS, DUEL_ROUNDS = 1.06, 4, 5
SUSTAINED_S = 0.5


class Ours:
    """moegen's layer over one shape's weights."""

    def __init__(self, shape: str, kernels: Kernels, weights: Weights) -> None:
        self.shape, self.kernels, self.geometry = shape, kernels, SHAPES[shape]
        first, second = weights
        self.bank = Bank(
            self.geometry, (first.codes, first.scale, first.gscale), (second.codes, second.scale, second.gscale)
        )
        ideal = sum(w.codes.numel() + w.scale.numel() for w in weights)
        self.overhead = self.bank.packed_bytes / ideal

    def layer(self, cell: Cell, config: Config) -> Layer:
        return Layer(self.geometry, self.bank, self.kernels, config, cell.tokens)

    def given(self, cell: Cell, outputs: list[Tensor], index: int) -> dict[str, Tensor]:
        ids, weights = cell.routings[index]
        return {"x": cell.inputs[index], "topk_ids": ids, "topk_weights": weights, "y": outputs[index]}

    def stage_times(self, cell: Cell, config: Config) -> dict[str, float]:
        """Median microseconds of each op and of the whole block."""
        layer = self.layer(cell, config)
        outputs = [torch.empty_like(x) for x in cell.inputs]
        every = [self.given(cell, outputs, index) for index in range(len(outputs))]
        layer.block(every[0])()
        found: dict[str, float] = {}
        for step in layer.order:
            found[step] = bench([layer.call(step, given) for given in every], 8.0, 5, 30)
        found["moe"] = bench([layer.block(given) for given in every], 12.0, 5, 30)
        return found

    def choose(self, cell: Cell, fast: bool) -> tuple[Config, dict[str, dict[str, float]]]:
        """The best ladder of each gemm by its stage, where tokens are arranged and where not; other forms by the whole
        block. What comes close is timed again in turn: the clock drifts by more than forms differ."""
        swept: dict[str, dict[str, float]] = {}
        ladders: dict[bool, list[tuple[Config, dict[str, float]]]] = {False: [], True: []}
        timed: list[tuple[float, Config]] = []
        for config in configs(cell.shape, cell.tokens, fast=fast):
            times = self.stage_times(cell, config)
            rows = "gather" if config.gather else "arranged" if config.arranged else "even" if config.even else ""
            swept[f"block {config.block}" if config.block else f"{config.gemm1} {rows}"] = times
            if not config.gather and not config.even and config.block is None:
                ladders[config.arranged].append((config, times))
            timed.append((times["moe"], config))
        every = [item for found in ladders.values() for item in found]
        gemm2 = min(every, key=lambda item: item[1]["gemm2"])[0].gemm2
        for arranged, found in ladders.items():
            if found:
                gemm1 = min(found, key=lambda item: item[1]["gemm1"])[0].gemm1
                mixed = replace(found[0][0], gemm1=gemm1, gemm2=gemm2)
                if all(mixed != config for _, config in timed):
                    swept[f"mixed {'arranged' if arranged else ''}"] = times = self.stage_times(cell, mixed)
                    timed.append((times["moe"], mixed))
        return self.duel(cell, timed), swept

    def duel(self, cell: Cell, timed: list[tuple[float, Config]]) -> Config:
        """The fastest of those within ``CLOSE`` of the sweep's best, replayed in turn."""
        timed.sort(key=lambda item: item[0])
        close = [config for time, config in timed[:RIVALS] if time <= CLOSE * timed[0][0]]
        if len(close) == 1:
            return close[0]
        graphs: dict[str, torch.cuda.CUDAGraph] = {}
        keep: list[Any] = []
        for number, config in enumerate(close):
            layer, outputs = self.layer(cell, config), [torch.empty_like(x) for x in cell.inputs]
            graphs[str(number)] = capture([layer.block(self.given(cell, outputs, i)) for i in range(len(outputs))])
            keep.append((layer, outputs))
        times = interleaved(graphs, len(cell.routings), DUEL_ROUNDS, BURST_S)
        return close[min(range(len(close)), key=lambda number: statistics.median(times[str(number)]))]

    def check(self, cell: Cell, config: Config, weights: Weights) -> tuple[float, bool]:
        """Relative error of a few tokens against fp32, output poisoned first; and whether all is finite."""
        outputs = [torch.full_like(x, float("nan")) for x in cell.inputs]
        self.layer(cell, config).block(self.given(cell, outputs, 0))()
        torch.cuda.synchronize()
        part = slice(0, min(4, cell.tokens))
        return relative_error(outputs[0][part], reference(weights, cell, part)), bool(torch.isfinite(outputs[0]).all())


def sm_clock_mhz() -> float:
    """Current SM clock."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def run_cell(ours: Ours, peers: dict[str, Peer], cell: Cell, weights: Weights, found: Any, sustained: bool) -> Any:
    """Sweeps, checks and times one cell."""
    configs_by_class: dict[str, Config] = {}
    sweeps: dict[str, Any] = {}
    checks: dict[str, Any] = {}
    classes = (("moegen", False), ("moegen_fast", True)) if cell.tokens >= FAST_FROM else (("moegen", False),)
    for name, fast in classes:
        configs_by_class[name], sweeps[name] = ours.choose(cell, fast)
        checks[name] = ours.check(cell, configs_by_class[name], weights)
    full = full_config(cell.shape, cell.tokens)
    shown = configs_by_class | ({"moegen_full": full} if full else {})
    moe: dict[str, list[Call]] = {}
    stages: dict[str, dict[str, list[Call]]] = {}
    keep: list[Any] = []
    workspace = 0
    for name, config in shown.items():
        layer = ours.layer(cell, config)
        outputs = [torch.empty_like(x) for x in cell.inputs]
        every = [ours.given(cell, outputs, index) for index in range(len(outputs))]
        moe[name] = [layer.block(given) for given in every]
        moe[name][0]()
        keep.append((layer, outputs))
        if name == "moegen":
            stages[name] = {
                stage: [call for given in every for call in (layer.call(k, given) for k in kinds if k in layer.order)]
                for stage, kinds in STAGES.items()
            }
            workspace = layer.workspace_bytes
    refused: dict[str, str] = {}
    for name, peer in peers.items():
        try:
            made, outputs = peer.make(cell)
        except Exception as error:  # a peer that cannot serve a cell is recorded, never hidden
            refused[name] = repr(error)[:600]
            continue
        moe[name] = made["moe"]
        stages[name] = {stage: made[stage] for stage in ("route", "l1", "act", "l2", "sum") if stage in made}
        keep.append(outputs)
    count = len(cell.routings)
    times = interleaved({name: capture(calls) for name, calls in moe.items()}, count, ROUNDS, BURST_S)
    row: dict[str, Any] = {
        "shape": cell.shape,
        "tokens": cell.tokens,
        "routing": cell.kind,
        "burst_us": {name: statistics.median(values) for name, values in times.items()},
        "burst_rounds": times,
        "stages_us": {
            name: {s: bench(calls, 8.0, 5, 30) * (len(calls) / count) for s, calls in made.items() if calls}
            for name, made in stages.items()
        },
        "floor": floors(cell, found),
        "configs": {name: vars(config) for name, config in shown.items()},
        "sweeps": sweeps,
        "checks": checks,
        "peer_errors": refused,
        "workspace_bytes": workspace,
        "slot_bytes": slot_bytes(cell),
        "sm_clock_mhz": sm_clock_mhz(),
    }
    if sustained:
        rivals = [name for name in peers if name in moe and name not in OTHER_CLASS]
        best = min(rivals, key=lambda name: row["burst_us"][name], default=None)
        chosen = {name: moe[name] for name in (*shown, best) if name}
        graphs = {name: capture(calls) for name, calls in chosen.items()}
        longer = interleaved(graphs, count, 2, SUSTAINED_S)
        row["sustained_us"] = {name: statistics.median(values) for name, values in longer.items()}
        row["sustained_sm_clock_mhz"] = sm_clock_mhz()
    return row


def slot_bytes(cell: Cell) -> int:
    """Bytes that T·k slots need in bf16: their rows, the activated rows, the output rows."""
    sizes = SHAPES[cell.shape]
    return 2 * cell.tokens * sizes.top_k * (2 * sizes.hidden + sizes.intermediate)


def show(row: Any, peers: dict[str, Peer]) -> None:
    burst, floor = row["burst_us"], row["floor"]["moe"]
    best = min((burst[name] for name in peers if name in burst and name not in OTHER_CLASS), default=float("nan"))
    ratios = " ".join(f"{name} x{best / burst[name]:.2f}" for name in ("moegen", "moegen_fast") if name in burst)
    if "sustained_us" in row:
        s = row["sustained_us"]
        rest = [v for k, v in s.items() if not k.startswith("moegen")]
        if rest:
            mine = [name for name in ("moegen", "moegen_fast") if name in s]
            ratios += " sustained " + " ".join(f"x{min(rest) / s[name]:.2f}" for name in mine)
    print(
        f"{row['shape']:7s} {row['routing'][:4]} M={row['tokens']:5d} {ratios} floor {floor / burst['moegen']:.2f} | "
        + " ".join(f"{name}={value:.1f}" for name, value in burst.items())
        + f" | workspace {row['workspace_bytes'] / row['slot_bytes']:.2f} of what the slots need"
        + f" | err {row['checks']['moegen'][0]:.1e} {row['stages_us']['moegen']}"
        + f" g1={row['configs']['moegen']['gemm1']} g2={row['configs']['moegen']['gemm2']}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--tokens", default="1,8,32,128,512,2048,8192")
    parser.add_argument("--routings", default="uniform,zipf")
    parser.add_argument("--peers", default="humming_idx,humming_grp,marlin")
    parser.add_argument("--sustained", default="")
    parser.add_argument("--deadline", type=float, default=1e9)
    options = parser.parse_args()
    began = time.time()
    torch.backends.cuda.matmul.allow_tf32 = False
    tokens = [int(value) for value in options.tokens.split(",")]
    sustained = {int(value) for value in options.sustained.split(",") if value}
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "ceilings": ceilings(),
        "rows": [],
        "errors": [],
        "pack_overhead": {},
    }
    print("ceilings", json.dumps(result["ceilings"]), flush=True)
    kernels = Kernels(options.kernels)
    for shape in options.shapes.split(","):
        weights = make_weights(shape)
        ours = Ours(shape, kernels, weights)
        result["pack_overhead"][shape] = ours.overhead
        peers: dict[str, Peer] = {}
        for key in filter(None, options.peers.split(",")):
            try:
                peer = ALL[key]()
                peer.setup(shape, weights)
                peers[key] = peer
            except Exception as error:  # a missing or failing peer is recorded, never hidden
                result["errors"].append([shape, key, "setup", repr(error)[:600]])
        print(f"# {shape}: set up after {time.time() - began:.0f} s, pack overhead {ours.overhead:.4f}", flush=True)
        for count in tokens:
            for kind in options.routings.split(","):
                if (kind == "zipf" and (count == 1 or shape == "gptoss")) or time.time() - began > options.deadline:
                    continue
                cell = make_cell(shape, count, kind)
                try:
                    row = run_cell(ours, peers, cell, weights, result["ceilings"], count in sustained)
                except Exception as error:
                    result["errors"].append([shape, count, kind, repr(error)[:600]])
                    print("ERROR", shape, count, kind, repr(error)[:400], flush=True)
                    continue
                result["rows"].append(row)
                show(row, peers)
                options.out.write_text(json.dumps(result, default=str))
                gc.collect()
                torch.cuda.empty_cache()
        del ours, weights, peers
        release()
    options.out.write_text(json.dumps(result, default=str))
    print("errors", json.dumps(result["errors"])[:3000])


if __name__ == "__main__":
    main()
