"""Which instructions exist: complete opcode strings, each with the function that lowers it.

An instruction is added by decorating a builder in an ``isa_*`` module::

    @instruction("popc.{b32,b64}")
    def _popc(e: Emit) -> Lowered: ...

Braces expand to literal opcodes (``{,.sat}`` makes a modifier optional), so what is accepted is a list that can be
read, and anything else is a load error. Modules that register instructions are imported by :func:`load_all`.
"""

import importlib
import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moegen.ptx.emit import Emit, Lowered

    Builder = Callable[[Emit], Lowered]

_MODULES = (
    "isa_alu",
    "isa_float",
    "isa_select",
    "isa_packed",
    "isa_cvt",
    "isa_control",
    "isa_memory",
    "isa_atomic",
    "isa_warp",
    "isa_barrier",
    "isa_mbarrier",
    "isa_copy",
    "isa_bulk",
    "isa_tensor",
    "isa_launch",
    "isa_mma",
    "isa_wgmma",
    "isa_tcgen05",
    "tcgen05_mma",
)
_BUILDERS: dict[str, "Builder"] = {}
_LOADED = False


def expand(pattern: str) -> list[str]:
    """All literal strings of a brace pattern; braces do not nest."""
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(pieces) for pieces in itertools.product(*choices)]


def instruction(*patterns: str) -> "Callable[[Builder], Builder]":
    """Registers a builder for every opcode that the patterns expand to."""

    def register(builder: "Builder") -> "Builder":
        for pattern in patterns:
            for opcode in expand(pattern):
                if _BUILDERS.get(opcode, builder) is not builder:
                    raise ValueError(f"{opcode} is registered twice")
                _BUILDERS[opcode] = builder
        return builder

    return register


def load_all() -> None:
    """Imports every module that registers instructions (once)."""
    global _LOADED
    if not _LOADED:
        for name in _MODULES:
            importlib.import_module(f"moegen.ptx.{name}")
        _LOADED = True


def find(opcode: str) -> "Builder | None":
    """The builder of a complete opcode, or None."""
    load_all()
    return _BUILDERS.get(opcode)


def opcodes() -> list[str]:
    """Every implemented opcode, sorted."""
    load_all()
    return sorted(_BUILDERS)
