"""The command group: turns moegen's errors into three lines and exit code 2, and loads heavy sub-commands late."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from moegen.cli.console import show_error
from moegen.core.errors import MoegenError

#: Sub-commands whose modules take long to import: name → (module that exports ``app``, line for the list of commands).
LATE = {"ptx": ("moegen.ptx.cli", "Execute recorded launches of PTX kernels without a GPU.")}


class ErrorGroup(TyperGroup):
    """Top-level group. With ``--debug`` an error keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the verb; an expected error ends it with exit code 2."""
        try:
            return super().invoke(ctx)
        except MoegenError as error:
            if ctx.params.get("debug"):
                raise
            show_error(error)
            raise typer.Exit(2) from None

    def list_commands(self, ctx: Any) -> list[str]:
        """Every verb, those that load late at the end."""
        return [*super().list_commands(ctx), *LATE]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A verb by name; a late one is a stand-in that only knows its line of help."""
        if cmd_name in LATE:
            return TyperCommand(cmd_name, help=LATE[cmd_name][1])
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that will run; here a late one is imported."""
        if args and args[0] in LATE:
            return args[0], get_command(import_module(LATE[args[0]][0]).app), args[1:]
        return super().resolve_command(ctx, args)
