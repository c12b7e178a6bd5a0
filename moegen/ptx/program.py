"""What a parsed PTX module consists of: symbols, registers, operands, instructions, entries."""

from dataclasses import dataclass, field

from moegen.ptx.dtypes import PtxType


@dataclass(frozen=True, slots=True)
class Reg:
    """A register; ``index`` counts through the entry's register file."""

    index: int
    type: PtxType
    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """A literal. ``bits`` is 0 for an integer, else the width whose raw bit pattern ``value`` is."""

    value: int | float
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only special register such as ``tid.x`` (without the percent sign)."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable with an address.

    Attributes:
        name: as declared; a name in an inner scope is made unique.
        space: ``param``, ``shared``, ``global``, ``const`` or ``local``.
        offset: bytes from the start of its space's static area (parameters: of the parameter block).
        size: bytes; 0 for an unsized extern array (dynamic shared memory).
        align: bytes.
    """

    name: str
    space: str
    offset: int
    size: int
    align: int
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class SymRef:
    """The address of a symbol plus a constant."""

    symbol: Symbol
    addend: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """``[base+offset]``; a base of None is an absolute address."""

    base: Reg | SymRef | None
    offset: int


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """``[map, {coordinates}]`` or ``[map, {coordinates}, {im2col offsets}]`` of a tensor copy."""

    map: Address
    coords: "Vector"


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``; an element may be a sink (None)."""

    items: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``a|b``, two destinations."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Not:
    """``!p``, a negated predicate operand."""

    reg: Reg


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``, a destination that is thrown away."""


@dataclass(slots=True)
class Label:
    """A branch target; ``index`` is filled once its scope has been read. A list of ``targets`` is a branch table."""

    name: str
    index: int = -1
    targets: "list[Label]" = field(default_factory=list)


Operand = Reg | Imm | Special | SymRef | Address | TensorAddress | Vector | Pair | Not | Sink | Label


@dataclass(slots=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: with all modifiers, such as ``add.s32``.
        guard: predicate register, or None.
        guard_negated: the instruction runs where the guard is false.
        operands: in source order.
        line: 1-based line in the text.
        text: source text, for reports.
    """

    opcode: str
    guard: Reg | None
    guard_negated: bool
    operands: tuple[Operand, ...]
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Param:
    """An entry parameter: ``offset`` and ``size`` in bytes within the parameter block."""

    name: str
    offset: int
    size: int
    align: int


@dataclass(slots=True)
class Entry:
    """A kernel.

    Attributes:
        registers: type of each register, by index.
        shared_size: bytes of static shared memory, own and module-wide.
        local_size: bytes of local memory per thread.
        reqntid, maxntid: block limits from directives, or None.
        cluster: required cluster shape, or None.
    """

    name: str
    params: list[Param]
    registers: list[PtxType] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    leaders: set[int] = field(default_factory=set)
    shared_size: int = 0
    shared_align: int = 16
    dynamic_shared: bool = False
    local_size: int = 0
    reqntid: tuple[int, ...] | None = None
    maxntid: tuple[int, ...] | None = None
    cluster: tuple[int, ...] | None = None

    @property
    def param_bytes(self) -> int:
        """Size of the parameter block."""
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass(slots=True)
class Variable:
    """A module-level ``.global`` or ``.const`` variable with its initial bytes."""

    symbol: Symbol
    data: bytes


@dataclass(slots=True)
class Program:
    """A parsed module."""

    name: str
    version: tuple[int, int]
    target: str
    entries: dict[str, Entry]
    variables: list[Variable]
