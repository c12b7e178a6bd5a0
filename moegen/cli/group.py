"""The command group: turns moegen's errors into three lines and exit code 2."""

from typing import Any

import typer
from typer.core import TyperGroup

from moegen.cli.console import show_error
from moegen.core.errors import MoegenError


class ErrorGroup(TyperGroup):
    """Top-level group. With ``--debug`` an error keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the verb; an expected error ends it with exit code 2, Ctrl-C with 130."""
        try:
            return super().invoke(ctx)
        except MoegenError as error:
            if ctx.params.get("debug"):
                raise
            show_error(error)
            raise typer.Exit(2) from None
