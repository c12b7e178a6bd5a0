"""The report's plots, each as an SVG that stands inside the page. Every plot says what it was measured on."""

import io
import math
from itertools import pairwise

import matplotlib

matplotlib.use("Agg")  # before pyplot: there may be no display

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from moegen.cli.report.data import BuiltKernel, ClassReport, Curve, ReportData
from moegen.tune.select import Choice

_COLORS = plt.get_cmap("tab10").colors  # pyright: ignore[reportAttributeAccessIssue]
_SHOWN = 8


def provenance(data: ReportData) -> str:
    """Machine, policy and environment digest: what every plot carries."""
    policy, environment = data.policy, data.environment
    return (
        f"{environment.device}, {environment.cores} cores; {policy['timer']}, {policy['cache']} cache; "
        f"environment {environment.id[:12]}"
    )


def latency(data: ReportData, report: ClassReport, routing: str) -> str:
    """Median latency by token count, an interval at each point, and a line where the winner changes."""
    figure, axes = plt.subplots(figsize=(8, 4.5))
    curves = report.curves[routing]
    for color, name in zip(_cycle(len(curves)), _by_speed(curves), strict=False):
        curve = curves[name]
        tokens = [count for count, _ in curve]
        medians = [trial.median_us or math.nan for _, trial in curve]
        spread = [trial.ci_us or 0.0 for _, trial in curve]
        axes.errorbar(tokens, medians, yerr=spread, marker="o", ms=4, lw=1.2, capsize=2, color=color, label=name)
    _crossovers(axes, report, routing)
    axes.set(xscale="log", yscale="log", xlabel="tokens T", ylabel="median of one call, µs")
    axes.set_xticks(sorted({count for curve in curves.values() for count, _ in curve}))
    axes.get_xaxis().set_major_formatter("{x:.0f}")
    axes.grid(True, which="both", lw=0.3)
    axes.legend(fontsize=7)
    calls = [trial.n for curve in curves.values() for _, trial in curve]
    axes.set_title(f"{routing} routing; n = {min(calls)} to {max(calls)} calls a point\n{provenance(data)}", fontsize=8)
    return _svg(figure)


def heat_map(data: ReportData, report: ClassReport) -> str:
    """Which pipeline won at each (tokens, routing), with the share of the default's time that it saved."""
    tokens = sorted({choice.tokens for choice in report.choices})
    routings = sorted({choice.routing for choice in report.choices})
    names = sorted({choice.winner for choice in report.choices})
    cells = {(choice.tokens, choice.routing): choice for choice in report.choices}
    grid = [[_index(names, cells.get((count, routing))) for count in tokens] for routing in routings]
    figure, axes = plt.subplots(figsize=(8, 1.6 + 0.45 * len(routings) + 0.2 * len(names)))
    palette = [_COLORS[i % len(_COLORS)] for i in range(len(names))]
    axes.imshow(grid, cmap=ListedColormap(palette), vmin=-0.5, vmax=len(names) - 0.5, aspect="auto", alpha=0.75)
    for y, routing in enumerate(routings):
        for x, count in enumerate(tokens):
            choice = cells.get((count, routing))
            gain = choice.gain if choice else None
            axes.text(x, y, "" if gain is None else f"{gain:+.0%}", ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(tokens)), [str(count) for count in tokens])
    axes.set_yticks(range(len(routings)), routings)
    axes.set_xlabel("tokens T; a number is the share of the default's time that the winner saves")
    handles = [Line2D([], [], marker="s", ls="", color=palette[i], label=name) for i, name in enumerate(names)]
    axes.legend(handles=handles, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.35), frameon=False)
    axes.set_title(f"winners; {len(report.choices)} points\n{provenance(data)}", fontsize=8)
    return _svg(figure)


def epilogues(data: ReportData, report: ClassReport, routing: str) -> str | None:
    """The best pipeline of each epilogue mode against the best of all; None when only one mode was timed."""
    best: dict[str, dict[int, float]] = {}
    for name, curve in report.curves[routing].items():
        mode = data.pipelines[name].epilogue.value
        for count, trial in curve:
            times_us = best.setdefault(mode, {})
            times_us[count] = min(times_us.get(count, math.inf), trial.median_us or math.inf)
    if len(best) < 2:
        return None
    figure, axes = plt.subplots(figsize=(8, 3.2))
    tokens = sorted({count for times_us in best.values() for count in times_us})
    width = 0.8 / len(best)
    for number, (mode, times_us) in enumerate(sorted(best.items())):
        fastest = [min(other.get(count, math.inf) for other in best.values()) for count in tokens]
        heights = [times_us.get(count, math.nan) / least for count, least in zip(tokens, fastest, strict=True)]
        axes.bar([x + number * width for x in range(len(tokens))], heights, width, label=mode)
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(tokens))], [str(count) for count in tokens])
    axes.axhline(1, color="black", lw=0.6)
    axes.set(xlabel="tokens T", ylabel="time / fastest mode")
    axes.legend(fontsize=7)
    axes.set_title(f"best pipeline of each epilogue mode, {routing} routing\n{provenance(data)}", fontsize=8)
    return _svg(figure)


def op_times(data: ReportData) -> str | None:
    """Time of each op, best variant of its kind, by token count; None when ops were not timed."""
    best: dict[str, dict[int, float]] = {}
    for (kind, _), times_us in data.ops.items():
        for count, time_us in times_us.items():
            known = best.setdefault(kind, {})
            known[count] = min(known.get(count, math.inf), time_us)
    if not best:
        return None
    figure, axes = plt.subplots(figsize=(8, 3.2))
    for kind, times_us in sorted(best.items()):
        axes.plot(sorted(times_us), [times_us[count] for count in sorted(times_us)], marker="o", ms=3, label=kind)
    axes.set(xscale="log", yscale="log", xlabel="tokens T", ylabel="median of one launch, µs")
    axes.grid(True, which="both", lw=0.3)
    axes.legend(fontsize=7)
    axes.set_title(f"ops alone, best variant of each\n{provenance(data)}", fontsize=8)
    return _svg(figure)


def builds(kernels: tuple[BuiltKernel, ...]) -> str | None:
    """Histograms of compile times and of artifact sizes; None when nothing is built here."""
    seconds = [kernel.seconds for kernel in kernels if kernel.seconds is not None]
    if not seconds:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
    left.hist(seconds, bins=20)
    left.set(xlabel="seconds to compile one kernel", ylabel="kernels")
    right.hist([kernel.bytes / 1024 for kernel in kernels], bins=20)
    right.set(xlabel="KiB of one artifact, source included")
    figure.suptitle(f"{len(kernels)} kernels", fontsize=8)
    return _svg(figure)


def _crossovers(axes: Axes, report: ClassReport, routing: str) -> None:
    """A dashed line between two neighbouring points with different winners, at their geometric mean."""
    chosen = sorted((choice.tokens, choice.winner) for choice in report.choices if choice.routing == routing)
    for (low, before), (high, after) in pairwise(chosen):
        if before != after:
            axes.axvline(math.sqrt(low * high), color="grey", ls="--", lw=0.8)
            axes.text(math.sqrt(low * high), 0.02, " winner changes", fontsize=6, transform=axes.get_xaxis_transform())


def _by_speed(curves: dict[str, Curve]) -> list[str]:
    """The fastest pipelines at their best point relative to the others, at most a legible number of them."""
    best: dict[int, float] = {}
    for curve in curves.values():
        for count, trial in curve:
            best[count] = min(best.get(count, math.inf), trial.median_us or math.inf)
    closeness = {
        name: min((trial.median_us or math.inf) / best[count] for count, trial in curve)
        for name, curve in curves.items()
    }
    return sorted(curves, key=lambda name: (closeness[name], -len(curves[name]), name))[:_SHOWN]


def _index(names: list[str], choice: Choice | None) -> float:
    return names.index(choice.winner) if choice else math.nan


def _cycle(count: int) -> list[tuple[float, ...]]:
    return [_COLORS[i % len(_COLORS)] for i in range(count)]


def _svg(figure: Figure) -> str:
    """The figure as an SVG element, with text as text and no varying ids or dates."""
    buffer = io.StringIO()
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "moegen"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
