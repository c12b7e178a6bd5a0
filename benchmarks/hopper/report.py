"""Result files to a CSV, Markdown tables and plots: `python -m benchmarks.hopper.report FOLDER`.

Reads ``run_*.json`` in the order of their names (a later run replaces whole cells, so that every ratio is within one
run) and ``modes.json``; writes ``cells.csv``, ``tables.md``, ``ratio.svg`` and ``modes.svg`` beside them.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PEERS = ("humming_idx", "humming_grp", "marlin")
#: The ratios asked for: (shape, routing) to token count to best peer's time over ours.
GOALS: dict[tuple[str, str], dict[int, float]] = {
    ("dsv3", "uniform"): {1: 1.4, 8: 1.4, 32: 1.4, 128: 1.4, 512: 1.5, 2048: 1.5, 8192: 1.3},
    ("qwen3", "uniform"): {1: 2.0, 8: 1.55, 32: 1.55, 128: 1.55, 512: 1.6, 2048: 1.6, 8192: 1.3},
    ("gptoss", "uniform"): {1: 1.8, 8: 1.35, 32: 1.35, 128: 1.35, 512: 1.5, 2048: 1.5, 8192: 1.15},
    ("dsv3", "zipf"): {8: 1.35, 32: 1.35, 128: 1.35, 512: 1.6, 2048: 1.6, 8192: 1.3},
    ("qwen3", "zipf"): {8: 1.35, 32: 1.35, 128: 1.35, 512: 1.6, 2048: 1.6, 8192: 1.3},
}
EXACT, FAST, FULL = "moegen", "moegen_fast", "moegen_full"
Row = dict[str, Any]


def cells(folder: Path) -> list[Row]:
    """One row per cell, the newest run's."""
    found: dict[tuple[str, str, int], Row] = {}
    for path in sorted(folder.glob("run_*.json")):
        for row in json.loads(path.read_text())["rows"]:
            found[row["shape"], row["routing"], row["tokens"]] = {**row, "run": path.stem.removeprefix("run_")}
    order = {key: index for index, key in enumerate(GOALS)}
    return sorted(found.values(), key=lambda row: (order.get(kind(row), len(order)), kind(row), row["tokens"]))


def kind(row: Row) -> tuple[str, str]:
    """Shape and routing."""
    return row["shape"], row["routing"]


def goal(row: Row) -> str:
    """The ratio asked for; a dash where none was."""
    return str(GOALS.get(kind(row), {}).get(row["tokens"], "–"))


def ratio(times: dict[str, float], name: str) -> float | None:
    """Best peer's time over ours."""
    peers = [times[peer] for peer in PEERS if peer in times]
    return min(peers) / times[name] if peers and name in times else None


def table(rows: list[Row]) -> str:
    """Markdown: burst and sustained ratios of both activation classes, goal, and fraction of the floor.

    The peers' own exp and division are approximate, so their class is ``fast``; where it was not timed apart, it is
    the exact one that is shown.
    """
    lines = [
        "| shape | routing | M | run | fast µs | exact µs | best NVFP4 peer µs | ratio fast | ratio exact "
        "| sustained fast | exact | goal | exact of floor |",
        "|---|---|--:|---|--:|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        burst, sustained = row["burst_us"], row.get("sustained_us", {})
        best = min((peer for peer in PEERS if peer in burst), key=lambda peer: burst[peer])
        shown = [ratio(burst, FAST) or ratio(burst, EXACT), ratio(burst, EXACT)]
        shown += [ratio(sustained, FAST), ratio(sustained, EXACT)]
        ratios = " | ".join(
            "–" if value is None else f"{value:.2f}{'' if value >= 1 else ' (slower)'}" for value in shown
        )
        fast = f"{burst[FAST]:.1f}" if FAST in burst else "="
        lines.append(
            f"| {row['shape']} | {row['routing']} | {row['tokens']} | {row['run']} | {fast} | {burst[EXACT]:.1f} "
            f"| {burst[best]:.1f} {best} | {ratios} | {goal(row)} | {row['floor']['moe'] / burst[EXACT]:.2f} |"
        )
    return "\n".join(lines) + "\n"


def stage_table(rows: list[Row]) -> str:
    """Markdown: each gemm against the best peer's, and as fraction of its floor."""
    lines = [
        "| shape | routing | M | l1 µs | peer | ratio | of floor | l2 µs | peer | ratio | of floor |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        stages = row["stages_us"]
        text = f"| {row['shape']} | {row['routing']} | {row['tokens']} "
        for stage in ("l1", "l2"):
            ours = stages.get(EXACT, {}).get(stage)
            peers = [stages[peer][stage] for peer in PEERS if stage in stages.get(peer, {})]
            if ours and peers:
                text += f"| {ours:.1f} | {min(peers):.1f} | {min(peers) / ours:.2f} | {row['floor'][stage] / ours:.2f} "
            else:
                text += "| – " * 4
        lines.append(text + "|")
    return "\n".join(lines) + "\n"


def other_table(rows: list[Row]) -> str:
    """Markdown: what is timed beside the comparison: another numerics class, and the form with biases."""
    lines = [
        "| shape | routing | M | moegen exact µs | triton_kernels MXFP4 µs | full form µs |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        burst = row["burst_us"]
        found = [burst.get(name) for name in ("triton_mxfp4", FULL)]
        if any(found):
            shown = " | ".join("–" if value is None else f"{value:.1f}" for value in found)
            lines.append(f"| {row['shape']} | {row['routing']} | {row['tokens']} | {burst[EXACT]:.1f} | {shown} |")
    return "\n".join(lines) + "\n"


def memory_table(folder: Path, rows: list[Row]) -> str:
    """Markdown: packed bytes over codes and scales, and the workspace over what T·k slots need, at the largest M."""
    packed: dict[str, float] = {}
    for path in sorted(folder.glob("run_*.json")):
        packed |= json.loads(path.read_text()).get("pack_overhead", {})
    largest = {row["shape"]: row for row in rows if "slot_bytes" in row}
    lines = [
        "| shape | packed / (codes + scales) | M | workspace MiB | of what the slots need |",
        "|---|--:|--:|--:|--:|",
    ]
    for shape, value in packed.items():
        row = largest.get(shape)
        size = (
            f"{row['workspace_bytes'] / 2**20:.0f} | {row['workspace_bytes'] / row['slot_bytes']:.3f}"
            if row
            else "– | –"
        )
        lines.append(f"| {shape} | {value:.4f} | {row['tokens'] if row else '–'} | {size} |")
    return "\n".join(lines) + "\n"


def write_csv(rows: list[Row], path: Path) -> None:
    """Every time of every cell."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["shape", "routing", "tokens", "run", "window", "contender", "stage", "us"])
        for row in rows:
            head = [row["shape"], row["routing"], row["tokens"], row["run"]]
            for window, key in (("burst", "burst_us"), ("sustained", "sustained_us")):
                for name, value in row.get(key, {}).items():
                    writer.writerow([*head, window, name, "block", value])
            for name, stages in row["stages_us"].items():
                for stage, value in stages.items():
                    writer.writerow([*head, "burst", name, stage, value])


def plot_ratios(rows: list[Row], path: Path) -> None:
    """Ratio against M, one panel per shape and routing, with the goal."""
    kinds = list(dict.fromkeys(map(kind, rows)))
    figure, axes = plt.subplots(1, len(kinds), figsize=(4 * len(kinds), 3.4), sharey=True)
    for axis, (shape, routing) in zip(axes, kinds, strict=True):
        mine = [row for row in rows if kind(row) == (shape, routing)]
        tokens = [row["tokens"] for row in mine]
        axis.plot(tokens, [ratio(row["burst_us"], EXACT) for row in mine], "o-", label="exact activation")
        fast = [row for row in mine if FAST in row["burst_us"]]
        axis.plot(
            [row["tokens"] for row in fast],
            [ratio(row["burst_us"], FAST) for row in fast],
            "s--",
            label="fast",
        )
        goals = GOALS.get((shape, routing), {})
        axis.plot(list(goals), list(goals.values()), "k:", label="goal")
        axis.axhline(1.0, color="0.7", linewidth=0.8)
        axis.set(xscale="log", title=f"{shape}, {routing}", xlabel="tokens")
        axis.set_xticks(tokens, [str(count) for count in tokens], rotation=45)
        axis.minorticks_off()
    axes[0].set_ylabel("best NVFP4 peer's time / moegen's")
    axes[0].legend(fontsize=8)
    figure.suptitle("W4A16 MoE block on one H200, interleaved bursts", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def plot_modes(rows: list[Row], path: Path) -> None:
    """Time of each epilogue mode over W4A16 compact, against M."""
    figure, axis = plt.subplots(figsize=(6, 3.6))
    tokens = [row["tokens"] for row in rows]
    for name in rows[0]["us"]:
        axis.plot(tokens, [row["us"][name] / row["us"]["w4a16 compact"] for row in rows], "o-", label=name)
    axis.set(xscale="log", xlabel="tokens", ylabel="time / W4A16 compact", title=f"{rows[0]['shape']}, equal ladders")
    axis.set_xticks(tokens, [str(count) for count in tokens])
    axis.minorticks_off()
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    folder = Path(sys.argv[1])
    plt.rcParams["svg.hashsalt"] = "moegen"
    rows = cells(folder)
    modes = json.loads((folder / "modes.json").read_text())
    parts = {
        "Whole block": table(rows),
        "Gemms": stage_table(rows),
        "Beside the comparison": other_table(rows),
        "Memory": memory_table(folder, rows),
    }
    (folder / "tables.md").write_text("\n".join(f"## {title}\n\n{text}" for title, text in parts.items()))
    write_csv(rows, folder / "cells.csv")
    plot_ratios(rows, folder / "ratio.svg")
    plot_modes(modes, folder / "modes.svg")


if __name__ == "__main__":
    main()
