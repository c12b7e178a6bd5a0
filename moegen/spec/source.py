"""Reads spec text: YAML or TOML into plain values, keeping the line of every field and trusting nothing."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from moegen.core.errors import SpecError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FieldPath = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed spec file. ``lines`` maps a field's path to its 1-based line; empty where there is no text."""

    path: Path
    data: dict[str, Any]
    lines: dict[FieldPath, int]

    def line(self, field: FieldPath) -> int:
        """Line of a field, or of the nearest part of the file that would hold it."""
        while field and field not in self.lines:
            field = field[:-1]
        return self.lines.get(field, 1)


def read_document(path: Path) -> Document:
    """Reads a ``.yaml``, ``.yml`` or ``.toml`` file of at most 1 MiB.

    Raises:
        SpecError: unreadable, not UTF-8, malformed, too deep, a key twice, or an anchor or tag in YAML.
    """
    if path.suffix not in (".yaml", ".yml", ".toml"):
        raise SpecError(f"unknown file type {path.suffix!r}", str(path), "name the spec .yaml or .toml")
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read ({error})", str(path), "give the path of a UTF-8 spec file") from error
    if len(raw) > MAX_BYTES:
        raise SpecError(f"{len(raw)} bytes; a spec has at most {MAX_BYTES}", str(path), "is this the right file?")
    data, lines = _read_toml(text, path) if path.suffix == ".toml" else _read_yaml(text, path)
    if not isinstance(data, dict):
        raise SpecError("a spec is a mapping of keys to values", f"{path}:1", "start with `name: ...`")
    return Document(path=path, data=data, lines=lines)


def _read_yaml(text: str, path: Path) -> tuple[Any, dict[FieldPath, int]]:
    lines: dict[FieldPath, int] = {}
    try:
        _check_events(text, path)
        node = yaml.compose(text, Loader=_Loader)
        return (None if node is None else _plain(node, (), lines, path)), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise SpecError(f"malformed YAML: {error.problem or error}", where, "correct the syntax") from error
    except yaml.YAMLError as error:
        raise SpecError(f"malformed YAML: {error}", str(path), "correct the syntax") from error


def _check_events(text: str, path: Path) -> None:
    """Refuses depth, anchors, aliases and tags before anything recursive sees the text."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        where = f"{path}:{event.start_mark.line + 1}"
        if getattr(event, "anchor", None) is not None:
            raise SpecError("YAML anchors and aliases are not used in specs", where, "write the value out")
        if getattr(event, "tag", None) is not None:
            raise SpecError(f"YAML tag {event.tag!r}; specs hold plain values only", where, "remove the tag")
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            depth += 1
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise SpecError(f"nested deeper than {MAX_DEPTH}", where, "a spec needs no more than 5 levels")


def _plain(node: yaml.Node, field: FieldPath, lines: dict[FieldPath, int], path: Path) -> Any:
    lines.setdefault(field, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*field, index), lines, path) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(node, path)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _plain(key_node, (*field, "<key>"), {}, path)
        if not isinstance(key, str):
            raise SpecError(f"key {key!r} is not a word", f"{path}:{line}", "quote it, or use a field's name")
        if key in values:
            first = lines[(*field, key)]
            raise SpecError(f"key {key!r} is given twice (first on line {first})", f"{path}:{line}", "keep one of them")
        lines[(*field, key)] = line
        values[key] = _plain(value_node, (*field, key), lines, path)
    return values


def _scalar(node: yaml.Node, path: Path) -> Any:
    try:
        return _Loader("").construct_object(node)
    except ValueError as error:  # a date such as 2026-99-99, or a number of thousands of digits
        where = f"{path}:{node.start_mark.line + 1}"
        raise SpecError(f"malformed YAML value: {error}", where, "quote it if it is text") from error


def _read_toml(text: str, path: Path) -> tuple[Any, dict[FieldPath, int]]:
    try:
        return tomllib.loads(text), _toml_lines(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(f"malformed TOML: {error}", str(path), "correct the syntax") from error


def _toml_lines(text: str) -> dict[FieldPath, int]:
    """Lines of tables and of ``key =`` at the start of a line; fields of inline tables share their table's line."""
    lines: dict[FieldPath, int] = {}
    table: FieldPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            table = _toml_key(stripped.strip("[]"))
            lines.setdefault(table, number)
        elif "=" in stripped and not stripped.startswith("#"):
            key = (*table, *_toml_key(stripped.partition("=")[0]))
            for end in range(len(table) + 1, len(key) + 1):
                lines.setdefault(key[:end], number)
    return lines


def _toml_key(text: str) -> FieldPath:
    return tuple(part.strip().strip("\"'") for part in text.split("."))
