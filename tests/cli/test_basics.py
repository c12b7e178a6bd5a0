"""What holds for every verb: help, speed, errors of three lines with exit code 2, JSON, plain lines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moegen import __version__
from moegen.cli.app import app
from moegen.cli.console import duration, progress, show_table, size
from moegen.core.errors import MoegenError
from tests.cli.calls import QUICKSTART, call, failure

VERBS = [
    "new",
    "validate",
    "schema",
    "plan",
    "generate",
    "build",
    "tune",
    "verify",
    "explain",
    "report",
    "inspect",
    "doctor",
    "db",
    "cache",
    "ptx",
    "db:ls",
    "db:show",
    "db:merge",
    "db:export",
    "db:import",
    "db:freeze",
    "db:pin",
    "cache:stat",
    "cache:verify",
    "cache:gc",
    "cache:why-miss",
]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    assert "Usage" in call(*verb.split(":"), "--help")


def test_help_imports_nothing_heavy() -> None:
    heavy = "torch numpy pydantic jinja2 matplotlib transformers tvm_ffi cutlass yaml"
    script = (
        "import sys\n"
        "from moegen.cli.app import app\n"
        "app(['--help'], standalone_mode=False)\n"
        f"print([name for name in {heavy.split()} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_version() -> None:
    assert call("--version").strip() == f"moegen {__version__}"


def test_errors_say_what_where_and_fix(tmp_path: Path) -> None:
    text = failure("tune", tmp_path / "missing.yaml")
    assert text.splitlines() == [
        "error: no such spec file or package folder",
        f"where: {tmp_path / 'missing.yaml'}",
        "fix:   moegen new -o SPEC writes a spec",
    ]


def test_debug_keeps_the_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--debug", "tune", str(tmp_path / "missing.yaml")])
    assert isinstance(result.exception, MoegenError)


def test_unknown_options_are_refused() -> None:
    assert "No such option" in failure("plan", QUICKSTART, "--wy")


def test_plain_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("name", "µs"), [("a", 1.23456), ("longer", None)], "title")
    assert capsys.readouterr().out == "title\nname    µs\na       1.235\nlonger  -\n"


def test_plain_progress_is_about_ten_lines_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 100) as lane:
        for number in range(100):
            lane.note("not shown")
            lane.advance(f"item {number}")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("work: 100/100 after ")
    assert lines[-1].endswith("item 99")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (9.99, "10.0 s"), (59.6, "1 min 0 s"), (42, "42 s"), (190, "3 min 10 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(512, "512 B"), (1434, "1.4 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


def test_schema_is_json() -> None:
    assert json.loads(call("schema"))["title"] == "LayerSpec"
