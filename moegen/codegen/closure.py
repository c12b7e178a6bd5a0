"""The device library files that a rendered kernel includes: by name and content, never by place or time."""

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from moegen.core.canonical import digest
from moegen.core.errors import RenderError

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def closure(text: str, language: str, root: Path) -> dict[str, str]:
    """Files below ``root`` that ``text`` includes, directly or not: name relative to ``root`` → SHA-256 of its bytes.

    ``language`` is the file's extension: ``py`` follows imports of modules that exist below ``root``, anything else
    follows ``#include "..."``, looked up beside the including file first and then from ``root``, as compilers do.

    Raises:
        RenderError: an included file does not exist, or lies outside ``root``.
    """
    found: dict[str, str] = {}
    pending = list(_references(text, language, root, root))
    while pending:
        path = pending.pop()
        name = path.relative_to(root).as_posix()
        if name in found:
            continue
        data = path.read_bytes()
        found[name] = hashlib.sha256(data).hexdigest()
        pending += _references(data.decode("utf-8"), language, path.parent, root)
    return dict(sorted(found.items()))


def closure_digest(files: dict[str, str]) -> str:
    """One digest of a closure."""
    return digest(files, "moegen.closure")


def _references(text: str, language: str, folder: Path, root: Path) -> Iterator[Path]:
    if language == "py":
        yield from _imports(text, root)
        return
    for name in _INCLUDE.findall(text):
        candidates = [(base / name).resolve() for base in (folder, root)]
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            raise RenderError(
                f'#include "{name}" is not found', f"templates, from {folder.name}", "correct the include"
            )
        if not path.is_relative_to(root):
            raise RenderError(f'#include "{name}" leaves the templates folder', str(path), "correct the include")
        yield path


def _imports(text: str, root: Path) -> Iterator[Path]:
    """Modules below ``root``; ``from package import module`` may name either, so both are tried."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            base = root.joinpath(*parts[:end])
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    yield path
