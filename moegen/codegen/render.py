"""Variant → readable source, named by its content."""

import ast
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from moegen.codegen.catalog import Catalog
from moegen.codegen.closure import closure, closure_digest
from moegen.codegen.context import GENERATOR, render_context
from moegen.codegen.variant import Variant
from moegen.core.errors import RenderError
from moegen.core.package import Source
from moegen.core.paths import data_root

_BRACKETS = {")": "(", "]": "[", "}": "{"}
_NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """One kernel's text, its manifest entry, and the library files it includes (name → SHA-256)."""

    source: Source
    text: str
    files: dict[str, str]


@cache
def environment(root: Path) -> jinja2.Environment:
    """Jinja over the templates folder. Templates see data only: no global function but ``namespace``, which Jinja needs
    to carry a value out of a loop."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )
    made.globals = {"namespace": made.globals["namespace"]}
    return made


def render(variant: Variant, catalog: Catalog, root: Path | None = None) -> Rendered:
    """Renders one variant. ``root`` is the templates folder (the installed one by default).

    Raises:
        RenderError: the template is missing, uses an unknown name, or its output fails the checks of its language.
    """
    root = (root or data_root("templates")).resolve()
    op, schedule = variant.op, variant.schedule
    context = render_context(op, schedule, variant.name, catalog.scratch(op, schedule), catalog.includes(op, schedule))
    name = catalog.template(op, schedule)
    try:
        text = (
            environment(root)
            .get_template(name)
            .render({key: getattr(context, key) for key in type(context).model_fields})
        )
    except jinja2.TemplateNotFound as error:
        raise RenderError(f"no template {error}", variant.name, "reinstall moegen") from error
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        raise RenderError(
            f"{type(error).__name__}: {error}", f"templates/{name}" + (f":{line}" if line else "")
        ) from error
    text = _tidy(text)
    language = name.split(".")[-2]
    _check(text, language, variant)
    files = closure(text, language, root)
    return Rendered(text=text, files=files, source=_source(text, files, language, variant, catalog))


def _source(text: str, files: dict[str, str], language: str, variant: Variant, catalog: Catalog) -> Source:
    content = hashlib.sha256(text.encode()).hexdigest()
    kind = variant.op.kind.value
    return Source(
        variant=variant.name,
        path=f"{variant.target.value}/{kind}_{content[:16]}.{language}",
        digest=content,
        closure=closure_digest(files),
        symbol=kind,
        options=catalog.options(variant.op, variant.schedule),
    )


def _tidy(text: str) -> str:
    """No trailing spaces, no run of blank lines longer than two, one newline at the end."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)) + "\n"


def _check(text: str, language: str, variant: Variant) -> None:
    head = text[:2000]
    if variant.name not in head or GENERATOR not in head:
        raise RenderError(
            "the header does not name the variant and the generator", variant.name, "use both in the template"
        )
    if language == "py":
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise RenderError(f"line {error.lineno} is not Python: {error.msg}", variant.name) from error
    else:
        _check_brackets(text, variant)


def _check_brackets(text: str, variant: Variant) -> None:
    """Brackets of C++ text must pair up outside comments and literals: catches a block lost in a template."""
    code = _NOT_CODE.sub(lambda match: "\n" * match.group().count("\n"), text)
    stack: list[tuple[str, int]] = []
    for number, line in enumerate(code.splitlines(), start=1):
        for character in line:
            if character in "([{":
                stack.append((character, number))
            elif character in _BRACKETS and (not stack or stack.pop()[0] != _BRACKETS[character]):
                raise RenderError(f"line {number}: {character!r} closes nothing", variant.name)
    if stack:
        raise RenderError(f"line {stack[-1][1]}: {stack[-1][0]!r} is not closed", variant.name)
