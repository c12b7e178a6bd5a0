"""How a kernel computes: named values of a schedule family, with a canonical name that parses back."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from moegen.core.enums import OpKind, Target
from moegen.core.errors import IllegalVariant

Value = int | str | bool
_WORD = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class ScheduleField:
    """One named choice of a family.

    ``tag`` is the field's mark in canonical names: lower-case letters, unique within the family. An int is written
    ``tag`` + digits, a bool ``tag`` + 0 or 1, a str ``tag`` + ``_`` + value.
    """

    name: str
    tag: str
    doc: str
    type: Literal["int", "bool", "str"] = "int"

    def encode(self, value: Value) -> str:
        """Token of ``value``.

        Raises:
            IllegalVariant: the value has another type, is negative, or cannot be written in a name.
        """
        if self.type == "bool" and isinstance(value, bool):
            return f"{self.tag}{int(value)}"
        if self.type == "int" and type(value) is int and value >= 0:
            return f"{self.tag}{value}"
        if self.type == "str" and isinstance(value, str) and _WORD.fullmatch(value):
            return f"{self.tag}_{value}"
        raise IllegalVariant(f"{value!r} is no {self.type} value of a schedule", f"schedule field {self.name}")

    def decode(self, token: str) -> Value:
        """Inverse of :meth:`encode`; raises IllegalVariant on any other text."""
        text = token.removeprefix(self.tag)
        if self.type == "str" and text.startswith("_"):
            value: Value = text[1:]
        elif self.type == "bool" and text in ("0", "1"):
            value = text == "1"
        elif self.type == "int" and text.isascii() and text.isdigit():
            value = int(text)
        else:
            raise IllegalVariant(f"{token!r} is no value of tag {self.tag!r}", f"schedule field {self.name}")
        if self.encode(value) != token:
            raise IllegalVariant(f"{token!r} is not in canonical form", f"schedule field {self.name}")
        return value


@dataclass(frozen=True, kw_only=True)
class ScheduleFamily:
    """One way of writing a kernel on one target: the fields it can vary. ``name`` is unique within a target."""

    target: Target
    name: str
    kinds: tuple[OpKind, ...]
    fields: tuple[ScheduleField, ...] = ()

    def make(self, **values: Value) -> "Schedule":
        """A schedule of this family.

        Raises:
            IllegalVariant: a field is missing, unknown, or of the wrong type.
        """
        names = [field.name for field in self.fields]
        if set(values) != set(names):
            raise IllegalVariant(
                f"fields {sorted(values)} given, {sorted(names)} needed",
                f"schedule family {self.target.value} {self.name}",
            )
        for field in self.fields:
            field.encode(values[field.name])
        return Schedule(family=self, values=tuple((name, values[name]) for name in names))

    def parse(self, tokens: list[str]) -> "Schedule":
        """Reads the tokens that follow target and family in a canonical name; raises IllegalVariant."""
        if len(tokens) != len(self.fields):
            raise IllegalVariant(f"{len(tokens)} values, {len(self.fields)} needed", f"schedule family {self.name}")
        pairs = zip(self.fields, tokens, strict=True)
        return self.make(**{field.name: field.decode(token) for field, token in pairs})


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Values for every field of a family, in the family's order. Make one with :meth:`ScheduleFamily.make`."""

    family: ScheduleFamily
    values: tuple[tuple[str, Value], ...]

    def __getitem__(self, name: str) -> Value:
        """Value of a field; raises KeyError."""
        return self.as_dict()[name]

    def number(self, name: str) -> int:
        """Value of an integer field; raises KeyError or TypeError."""
        value = self[name]
        if type(value) is not int:
            raise TypeError(f"{name} is {value!r}, not an integer")
        return value

    def as_dict(self) -> Mapping[str, Value]:
        """Field name to value."""
        return dict(self.values)

    @property
    def name(self) -> str:
        """Canonical text: target, family, then one token a field, joined by ``-``."""
        tokens = [field.encode(value) for field, (_, value) in zip(self.family.fields, self.values, strict=True)]
        return "-".join([self.family.target.value, self.family.name, *tokens])


def expand(
    family: ScheduleFamily, values: Mapping[str, tuple[Value, ...]], fixed: Mapping[str, Value] | None = None
) -> tuple[Schedule, ...]:
    """All combinations of ``values`` with ``fixed`` values imposed, in a deterministic order (last field fastest)."""
    schedules: list[dict[str, Value]] = [{}]
    for field in family.fields:
        options = (fixed[field.name],) if fixed and field.name in fixed else values[field.name]
        schedules = [{**made, field.name: option} for made in schedules for option in options]
    return tuple(family.make(**made) for made in schedules)
