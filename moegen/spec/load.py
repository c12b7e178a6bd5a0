"""From a spec file to a LayerSpec, with errors that say file, line, field, reason and remedy."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from moegen.core.errors import SpecError
from moegen.spec.contradictions import Problem
from moegen.spec.models import NAME_PATTERN, LayerSpec
from moegen.spec.source import Document, FieldPath, read_document


def load_spec(path: str | Path) -> LayerSpec:
    """Reads and validates a spec file.

    Raises:
        SpecError: with every problem found, each with its line and field.
    """
    return validated(read_document(Path(path)))


@contextmanager
def located(path: str | Path) -> Iterator[None]:
    """Gives a later SpecError about a field of the spec in ``path`` (its ``where``) the file and the line."""
    try:
        yield
    except SpecError as error:
        document = read_document(Path(path))
        field = _path(error.where) if error.where else ()
        if not field or field[0] not in document.data:
            raise
        where = f"{document.path}:{document.line(field)}"
        raise SpecError(f"{error.where}: {error.what}", where, error.fix) from error


def validated(document: Document) -> LayerSpec:
    """The spec that a document holds; raises as :func:`load_spec`."""
    try:
        return LayerSpec.model_validate(document.data)
    except ValidationError as error:
        raise _spec_error(document, list(_problems(error, document.data))) from error


def _spec_error(document: Document, problems: list[tuple[FieldPath, Problem]]) -> SpecError:
    placed = sorted(((document.line(field), problem) for field, problem in problems), key=lambda item: item[0])
    if len(placed) == 1:
        line, problem = placed[0]
        where = f"{document.path}:{line}" if document.lines else str(document.path)
        return SpecError(f"{problem.field}: {problem.reason}.", where, problem.fix)
    listing = [
        (f"line {line}, " if document.lines else "") + f"{problem.field}: {problem.reason}. To fix: {problem.fix}"
        for line, problem in placed
    ]
    return SpecError("\n  ".join([f"{len(placed)} problems", *listing]), str(document.path))


def _problems(error: ValidationError, data: dict[str, Any]) -> Iterator[tuple[FieldPath, Problem]]:
    seen: set[tuple[FieldPath, str]] = set()
    items = error.errors(include_url=False)
    for item in items:
        depth = len(item["loc"])
        if any(len(other["loc"]) > depth and other["loc"][:depth] == item["loc"] for other in items):
            continue  # what is wrong inside a field comes before the field's own complaint
        if item["type"] == "contradiction":
            for problem in item.get("ctx", {})["problems"]:
                yield _path(problem.field), problem
            continue
        field = _existing(item["loc"], data)
        reason, fix = _explain(item, field, data)
        name = ".".join(str(part) for part in field)
        if (field, reason) not in seen:
            seen.add((field, reason))
            yield field, Problem(field=name, reason=reason, fix=fix)


def _path(dotted: str) -> FieldPath:
    return tuple(int(part) if part.isdigit() else part for part in dotted.split("."))


def _existing(loc: tuple[int | str, ...], data: Any) -> FieldPath:
    """The part of a pydantic location that is a path in the file: union member names are left out."""
    field: list[str | int] = []
    for index, part in enumerate(loc):
        if _holds(data, part):
            data = data[part]
        elif not (index == len(loc) - 1 and isinstance(part, str) and isinstance(data, dict) and part[0] not in "(["):
            continue
        field.append(part)
    return tuple(field)


def _holds(data: Any, part: int | str) -> bool:
    if isinstance(data, dict):
        return part in data
    return isinstance(data, list) and isinstance(part, int) and part < len(data)


def _explain(item: Any, field: FieldPath, data: dict[str, Any]) -> tuple[str, str]:
    """Reason and remedy of one pydantic error."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_keys(field[:-1])
        close = difflib.get_close_matches(str(field[-1]), known, n=1)
        return "unknown key", f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"
    if kind == "missing":
        return "missing", "add it"
    if kind == "string_pattern_mismatch":
        return f"{item['input']!r} is not a name", f"use lower-case letters, digits and _ ({NAME_PATTERN})"
    if kind == "union_tag_invalid":
        return f"{item['input']!r} has the wrong form", f"give one of {context['expected_tags']}"
    if kind in ("enum", "literal_error"):
        return f"{item['input']!r} is not known", f"use {context['expected']}"
    if kind == "importable":
        return f"{item['input']!r} is no name that Python can import", "begin with a letter, and use no keyword"
    message = item["msg"][0].lower() + item["msg"][1:]
    return f"{item['input']!r}: {message}", "correct the value"


def _known_keys(field: FieldPath) -> list[str]:
    model: type[BaseModel] | None = LayerSpec
    for part in field:
        annotation = model.model_fields[str(part)].annotation if model and str(part) in model.model_fields else None
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return list(model.model_fields) if model else []
