"""Running ``moegen`` commands in this process."""

from typer.testing import CliRunner

from moegen.cli.app import app
from moegen.core.paths import data_root

QUICKSTART = data_root("specs") / "quickstart.yaml"


def call(*arguments: object, code: int = 0) -> str:
    """Standard output of a command that must end with ``code``."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def failure(*arguments: object) -> str:
    """Standard error of a command that must be refused with exit code 2."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    return result.stderr
