"""The report's page: one HTML file with its style and plots inside, and no script or outside link."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape

from moegen import __version__
from moegen.cli.console import size
from moegen.cli.report import plots
from moegen.cli.report.data import ClassReport, ReportData
from moegen.core.canonical import plain

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: .6rem 0; font-size: 12.5px; }
th, td { border: 1px solid #ddd; padding: .2rem .5rem; text-align: left; vertical-align: top; }
th { background: #f3f3f3; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; } code { font-size: 12px; } .note { color: #555; }
"""


def render(data: ReportData) -> str:
    """The whole page."""
    name, target = escape(data.package.name), escape(data.target.value)
    body = [
        f"<h1>{name} on {target}</h1>",
        f"<p>{data.trials} trials of {data.sessions} sessions on {escape(data.environment.device)}; "
        f"package <code>{data.package.digest[:16]}</code>, environment <code>{data.environment.id[:16]}</code>; "
        f"written by moegen {__version__}. All of it is computed from the database that the report was given.</p>",
    ]
    for report in data.classes:
        body += _class_sections(data, report)
    body += _accuracy(data)
    body += _plot("Ops", plots.op_times(data))
    body += _builds(data)
    body += _decisions(data)
    body += _provenance(data)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name} on {target}: moegen report</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _class_sections(data: ReportData, report: ClassReport) -> list[str]:
    numerics = ", ".join(f"{key} {value}" for key, value in dict(plain(report.numerics)).items())  # pyright: ignore
    parts = [f"<h2>Latency and winners</h2><p class=note>Numerics class: {escape(numerics)}.</p>"]
    for routing in report.curves:
        parts.append(plots.latency(data, report, routing))
    parts.append(plots.heat_map(data, report))
    first = "uniform" if "uniform" in report.curves else next(iter(report.curves))
    parts += filter(None, [plots.epilogues(data, report, first)])
    default = data.package.targets[data.target].default
    rows = []
    for choice in report.choices:
        medians = {candidate.pipeline: candidate.median_us for candidate in choice.candidates}
        rows.append(
            (
                choice.tokens,
                choice.routing,
                choice.winner,
                medians[choice.winner],
                medians.get(default),
                None if choice.gain is None else f"{choice.gain:+.1%}",
                choice.reason.value,
            )
        )
    columns = ("T", "routing", "winner", "winner µs", "default µs", "gain, confirmed", "why")
    parts.append(_table(columns, rows))
    parts.append(f"<p class=note>{escape(_fidelity(report))}</p>")
    return parts


def _fidelity(report: ClassReport) -> str:
    text = ""
    if report.regret is not None:
        tokens, routing = report.regret.worst_at
        text = (
            f"Regret against the fastest timing of each point: mean {report.regret.mean:.2%}, worst "
            f"{report.regret.worst:.2%} at T={tokens} {routing} (a default kept within the margin counts here). "
        )
    if report.flips is not None:
        text += f"Winners differ at {report.flips:.0%} of the points between the two newest sessions."
    return text


def _accuracy(data: ReportData) -> list[str]:
    rows = [
        (
            item.pipeline,
            ", ".join(f"{count} {status}" for status, count in sorted(item.statuses.items())),
            item.layer_error,
            item.row_error,
            item.note,
        )
        for item in data.accuracy
    ]
    columns = ("pipeline", "trials", "worst relative error", "worst row", "note")
    return [
        "<h2>Accuracy</h2>"
        "<p class=note>Each pipeline's output against the reference with the same quantised activations, before it was "
        "timed; every row and element has a bound of its own.</p>",
        _table(columns, rows),
    ]


def _builds(data: ReportData) -> list[str]:
    total = sum(kernel.bytes for kernel in data.kernels)
    seconds = [kernel.seconds for kernel in data.kernels if kernel.seconds is not None]
    text = f"{len(data.kernels)} kernels, {size(total)}, {sum(seconds):.1f} s of compilation in all."
    slowest = sorted(data.kernels, key=lambda kernel: -(kernel.seconds or 0.0))[:5]
    rows = [(kernel.variant, kernel.seconds, size(kernel.bytes)) for kernel in slowest]
    return [
        *_plot("Builds", plots.builds(data.kernels)),
        f"<p>{text}</p>",
        _table(("slowest to compile", "seconds", "bytes"), rows),
    ]


def _decisions(data: ReportData) -> list[str]:
    rows = [(source, count) for source, count in sorted(data.sources.items(), key=lambda item: -item[1])]
    return [
        "<h2>Decision sources</h2>"
        "<p class=note>What a serving process decides from, for each token count up to twice the largest tuned one, "
        "under uniform routing.</p>",
        _table(("source", "token counts"), rows),
    ]


def _provenance(data: ReportData) -> list[str]:
    environment = [(key, str(value)) for key, value in asdict(data.environment).items() if value not in ("", None)]
    policy = [(key, str(value)) for key, value in data.policy.items()]
    return [
        "<h2>Environment and policy</h2>",
        _table(("environment", data.environment.id[:16]), environment),
        _table(("measurement policy", ""), policy),
        f"<p class=note>spec <code>{data.package.spec_digest[:16]}</code></p>",
    ]


def _plot(title: str, svg: str | None) -> list[str]:
    return [] if svg is None else [f"<h2>{title}</h2>", svg]


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ["".join(_cell(value) for value in row) for row in rows]
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f"<td class=n>{value:.4g}</td>" if isinstance(value, float) else f"<td class=n>{value}</td>"
    return f"<td>{escape('' if value is None else str(value))}</td>"
