"""Links between documents lead somewhere, and the README's commands exist."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from moegen.cli.app import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").rglob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    broken = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_options_exist(document: Path) -> None:
    verbs = getattr(get_command(app), "commands")  # noqa: B009 (typer's static type is a plain command)
    for line in re.findall(r"^(?:\$ )?moegen ([a-z].*)$", document.read_text(), re.MULTILINE):
        words = line.split("#")[0].split("&&")[0].split()
        verb = verbs.get(words[0])
        assert verb is not None, line
        if not hasattr(verb, "commands"):
            known = {option for parameter in verb.params for option in parameter.opts}
            assert {word for word in words[1:] if word.startswith("-")} <= known, line
