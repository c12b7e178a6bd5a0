"""An artifact's identity: everything that can change its bytes, and nothing else."""

from dataclasses import dataclass, fields
from typing import Any

from moegen.core.canonical import digest, plain

KEY_SCHEMA = 1
Identity = tuple[tuple[str, str], ...]
"""Named facts in a fixed order, such as ``(("g++", "12.2.0"), ("tvm_ffi", "0.1.15"))``."""


@dataclass(frozen=True, kw_only=True)
class ArtifactKey:
    """What an artifact was made from.

    Absent on purpose: paths, times, user, host, device name, driver: none of them changes the bytes.

    Attributes:
        source: SHA-256 of the rendered source.
        closure: digest of the device library that the source includes, by content.
        toolchain: full versions of every program and library that takes part.
        arch: exact architecture (``x86-64-v3``, ``sm_90a``); ``sm_100a`` and ``sm_103a`` differ.
        options: compile options in their order.
        symbol: exported entry.
        abi: how the object is called: FFI version, operating system, machine, pointer width.
    """

    source: str
    closure: str
    toolchain: Identity
    arch: str
    options: tuple[str, ...]
    symbol: str
    abi: str
    schema: int = KEY_SCHEMA

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over all fields; the artifact's name in every store."""
        return digest(self, "moegen.artifact")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field in which a wanted key and a stored one disagree."""

    field: str
    wanted: str
    found: str


def key_from_json(data: dict[str, Any]) -> ArtifactKey:
    """Reads back what ``canonical.plain(key)`` wrote.

    Raises:
        TypeError: unknown or missing fields.
        ValueError: a toolchain entry that is not a pair.
    """
    values = dict(data)
    values["toolchain"] = tuple((str(name), str(value)) for name, value in data.get("toolchain", ()))
    values["options"] = tuple(data.get("options", ()))
    return ArtifactKey(**values)


def differences(wanted: ArtifactKey, found: ArtifactKey) -> tuple[Difference, ...]:
    """Fields that differ, toolchain facts one by one; empty when the keys are equal."""
    out: list[Difference] = []
    for item in fields(ArtifactKey):
        if item.name != "toolchain":
            _compare(out, item.name, getattr(wanted, item.name), getattr(found, item.name))
    left, right = dict(wanted.toolchain), dict(found.toolchain)
    for name in sorted(left.keys() | right.keys()):
        _compare(out, f"toolchain.{name}", left.get(name), right.get(name))
    if not out and wanted != found:
        _compare(out, "toolchain", plain(wanted.toolchain), plain(found.toolchain))
    return tuple(out)


def _compare(out: list[Difference], name: str, wanted: object, found: object) -> None:
    if wanted != found:
        out.append(Difference(field=name, wanted=str(wanted), found=str(found)))
