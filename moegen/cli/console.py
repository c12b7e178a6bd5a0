"""Everything the verbs print: tables, machine-readable JSON, errors and progress.

On a terminal, rich draws; without one the same facts come as plain aligned lines. Results go to standard output,
progress and errors to standard error, so that a pipe always gets results alone.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import typer

from moegen.core.canonical import plain
from moegen.core.errors import MoegenError

Row = Sequence[object]


def show_json(value: object) -> None:
    """Prints a value as indented JSON, keys sorted."""
    typer.echo(json.dumps(plain(value), indent=2, sort_keys=True, ensure_ascii=False))


def show_line(text: str = "") -> None:
    """Prints one line of result."""
    typer.echo(text)


def show_note(text: str) -> None:
    """Prints one line that is not part of the result (standard error)."""
    typer.echo(text, err=True)


def show_table(columns: Sequence[str], rows: Sequence[Row], title: str = "") -> None:
    """Prints a table: drawn on a terminal, aligned plain columns elsewhere."""
    cells = [[_text(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells, title)
        return
    if title:
        typer.echo(title)
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    for line in [list(columns), *cells]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def show_error(error: MoegenError) -> None:
    """Prints what is wrong, where, and what to do."""
    show_note(f"error: {error.what}")
    if error.where:
        show_note(f"where: {error.where}")
    if error.fix:
        show_note(f"fix:   {error.fix}")


class Lane(Protocol):
    """One line of progress."""

    def advance(self, detail: str = "") -> None:
        """One more unit done."""
        ...

    def note(self, detail: str) -> None:
        """Says what is going on, with no unit done."""
        ...


@contextmanager
def progress(title: str, total: int) -> Iterator[Lane]:
    """Progress over ``total`` units: a bar on a terminal, elsewhere about ten plain lines."""
    if not sys.stderr.isatty():
        yield _PlainLane(title, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield _BarLane(bars, bars.add_task(title, total=total, detail=""))


def duration(seconds: float) -> str:
    """A time a person reads at a glance: ``0.4 s``, ``42 s``, ``3 min 10 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def size(count: float) -> str:
    """Bytes in the unit that keeps the number short: ``512 B``, ``1.4 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _rich_table(columns: Sequence[str], cells: list[list[str]], title: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) or None, title_justify="left")
    for name in columns:
        table.add_column(escape(name), overflow="fold")
    for line in cells:
        table.add_row(*(escape(cell) for cell in line))
    Console().print(table)


class _BarLane:
    def __init__(self, bars: object, task: object) -> None:
        self._bars, self._task = bars, task

    def advance(self, detail: str = "") -> None:
        self._bars.update(self._task, advance=1, detail=detail)  # pyright: ignore[reportAttributeAccessIssue]

    def note(self, detail: str) -> None:
        self._bars.update(self._task, detail=detail)  # pyright: ignore[reportAttributeAccessIssue]


class _PlainLane:
    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._done = title, total, 0
        self._began = time.monotonic()

    def advance(self, detail: str = "") -> None:
        self._done += 1
        every = max(self._total // 10, 1)
        if self._done % every == 0 or self._done == self._total:
            elapsed = duration(time.monotonic() - self._began)
            show_note(f"{self._title}: {self._done}/{self._total} after {elapsed} {detail}".rstrip())

    def note(self, detail: str) -> None:
        """Plain logs stay short: only finished units are worth a line."""
