"""Result files to a CSV, a Markdown table and plots: `python -m benchmarks.hopper.report FOLDER`.

Reads ``run_a.json``, ``run_b.json`` (a later run replaces whole cells, so that every ratio is within one run) and
``modes.json``; writes ``cells.csv``, ``tables.md``, ``ratio.svg`` and ``modes.svg`` beside them.
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
Row = dict[str, Any]


def cells(folder: Path) -> list[Row]:
    """One row per cell, the newest run's."""
    found: dict[tuple[str, str, int], Row] = {}
    for name in ("run_a.json", "run_b.json"):
        for row in json.loads((folder / name).read_text())["rows"]:
            found[row["shape"], row["routing"], row["tokens"]] = {**row, "run": name[4]}
    order = {key: index for index, key in enumerate(GOALS)}
    return sorted(found.values(), key=lambda row: (order[row["shape"], row["routing"]], row["tokens"]))


def ratio(times: dict[str, float], name: str) -> float | None:
    """Best peer's time over ours."""
    peers = [times[peer] for peer in PEERS if peer in times]
    return min(peers) / times[name] if peers and name in times else None


def table(rows: list[Row]) -> str:
    """Markdown: burst and sustained ratios of both activation classes, goal, and fraction of the floor."""
    lines = [
        "| shape | routing | M | run | exact µs | fast µs | best peer µs | exact | fast | sustained exact | fast "
        "| goal | of floor |",
        "|---|---|--:|---|--:|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        burst, sustained = row["burst_us"], row.get("sustained_us", {})
        best = min((peer for peer in PEERS if peer in burst), key=lambda peer: burst[peer])
        shown = [ratio(burst, "moegen"), ratio(burst, "moegen_fast")]
        shown += [ratio(sustained, "moegen"), ratio(sustained, "moegen_fast")]
        ratios = " | ".join("–" if value is None else f"{value:.2f}" for value in shown)
        fast = f"{burst['moegen_fast']:.0f}" if "moegen_fast" in burst else "–"
        lines.append(
            f"| {row['shape']} | {row['routing']} | {row['tokens']} | {row['run']} | {burst['moegen']:.1f} | {fast} "
            f"| {burst[best]:.1f} {best} | {ratios} | {GOALS[row['shape'], row['routing']][row['tokens']]} "
            f"| {row['floor']['moe'] / burst['moegen']:.2f} |"
        )
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
    figure, axes = plt.subplots(1, len(GOALS), figsize=(4 * len(GOALS), 3.4), sharey=True)
    for axis, (shape, routing) in zip(axes, GOALS, strict=True):
        mine = [row for row in rows if (row["shape"], row["routing"]) == (shape, routing)]
        tokens = [row["tokens"] for row in mine]
        axis.plot(tokens, [ratio(row["burst_us"], "moegen") for row in mine], "o-", label="exact activation")
        fast = [row for row in mine if "moegen_fast" in row["burst_us"]]
        axis.plot(
            [row["tokens"] for row in fast],
            [ratio(row["burst_us"], "moegen_fast") for row in fast],
            "s--",
            label="fast",
        )
        goals = GOALS[shape, routing]
        axis.plot(list(goals), list(goals.values()), "k:", label="goal")
        axis.axhline(1.0, color="0.7", linewidth=0.8)
        axis.set(xscale="log", title=f"{shape}, {routing}", xlabel="tokens")
        axis.set_xticks(tokens, [str(count) for count in tokens], rotation=45)
        axis.minorticks_off()
    axes[0].set_ylabel("best NVFP4 peer's time / moegen's")
    axes[0].legend(fontsize=8)
    figure.suptitle("W4A16 MoE block on one H200, interleaved bursts", fontsize=10)
    figure.tight_layout()
    figure.savefig(path)
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
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    folder = Path(sys.argv[1])
    plt.rcParams["svg.hashsalt"] = "moegen"
    rows = cells(folder)
    modes = json.loads((folder / "modes.json").read_text())
    (folder / "tables.md").write_text(table(rows))
    write_csv(rows, folder / "cells.csv")
    plot_ratios(rows, folder / "ratio.svg")
    plot_modes(modes, folder / "modes.svg")


if __name__ == "__main__":
    main()
