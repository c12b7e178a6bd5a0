"""The command line: every verb in one list."""

from typing import Annotated

import typer

from moegen import __version__
from moegen.cli import (
    bench_verbs,
    build_verbs,
    cache,
    db,
    diff_verbs,
    explain_verbs,
    plan_verbs,
    report_verbs,
    spec_verbs,
    tune_verbs,
    verify_verbs,
)
from moegen.cli.doctor import doctor
from moegen.cli.group import ErrorGroup

app = typer.Typer(
    cls=ErrorGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Compile NVFP4 Mixture-of-Experts layers: spec file to tuned, explained kernels.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"moegen {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options of every verb; ``debug`` is read by :class:`~moegen.cli.group.ErrorGroup`."""


for verb in (
    spec_verbs.new,
    spec_verbs.validate,
    spec_verbs.schema,
    plan_verbs.plan,
    plan_verbs.generate,
    build_verbs.build,
    tune_verbs.tune,
    verify_verbs.verify,
    bench_verbs.bench,
    diff_verbs.diff,
    explain_verbs.explain,
    report_verbs.report,
    explain_verbs.inspect,
    doctor,
):
    app.command(verb.__name__)(verb)
app.add_typer(db.app, name="db")
app.add_typer(cache.app, name="cache")
