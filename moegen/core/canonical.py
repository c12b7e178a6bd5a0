"""Canonical JSON (RFC 8785) and the digests made of it: one value, one text, one digest."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from enum import Enum

import rfc8785

LATER: Mapping[str, bool] = {"moegen.later": True}
"""Metadata of a dataclass field that was added later: left out at its default, so that older digests stay."""
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def plain(value: object) -> Json:
    """Turns dataclasses, enums, tuples and mappings into plain JSON values.

    Raises:
        TypeError: for anything whose text could differ between two equal values (sets, ``repr`` only objects).
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if not _left_out(f, value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no canonical JSON form")


def _left_out(field: Field[object], value: object) -> bool:
    return field.metadata == LATER and getattr(value, field.name) == field.default


def canonical_json(value: object) -> bytes:
    """The one UTF-8 text of ``value`` under RFC 8785."""
    return rfc8785.dumps(plain(value))


def digest(value: object, domain: str) -> str:
    """SHA-256 (hex) of a value's canonical JSON, tagged so that equal values of two kinds never collide."""
    return digest_bytes(canonical_json(value), domain)


def digest_bytes(data: bytes, domain: str) -> str:
    """SHA-256 (hex) of ``domain``, a zero byte and ``data``."""
    return hashlib.sha256(domain.encode() + b"\0" + data).hexdigest()
