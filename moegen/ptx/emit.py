"""What an instruction builder works with: typed operands in, a lowered instruction out.

Every source operand becomes a slot of the warp's register list: registers first, then one slot per distinct constant,
special register or symbol address. So lowered code is uniform: ``R[5] = R[3] + R[41]``.
"""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from moegen.ptx.dtypes import TYPES, PtxType
from moegen.ptx.errors import OperandError
from moegen.ptx.place import Place
from moegen.ptx.program import (
    Address,
    Entry,
    Imm,
    Instruction,
    Label,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    SymRef,
    TensorAddress,
    Vector,
)

if TYPE_CHECKING:
    from moegen.ptx.dtypes import Mask
    from moegen.ptx.warp import Warp

    Run = Callable[[Warp, Mask], int | None]


#: A slot in an expression.
SLOT = re.compile(r"R\[(\d+)\]")


def slots_in(text: str) -> Iterator[int]:
    """Slots that an expression names."""
    return (int(found) for found in SLOT.findall(text))


@dataclass(slots=True)
class Pure:
    """Reads and writes registers of its own lane only.

    Attributes:
        outs: (destination slot, Python expression over ``R``) in order; expressions are NumPy arrays of 32 lanes.
        setup: statements before them, for results that share work; may use the name ``t``.
    """

    outs: list[tuple[int, str]]
    setup: str = ""


@dataclass(slots=True)
class Effect:
    """Anything else: called with the warp and the mask of lanes that execute; returns None, or a signal of ``warp``."""

    run: "Run"


@dataclass(slots=True)
class Branch:
    """A jump to an instruction index."""

    target: int


@dataclass(slots=True)
class Exit:
    """End of the lanes that execute it."""


Lowered = Pure | Effect | Branch | Exit


@dataclass
class Slots:
    """Constant part of the register list, shared by an entry's instructions.

    Attributes:
        base: number of real registers.
        keys: one key per slot: ``("const", value, dtype)``, ``("special", name, dtype)``, ``("symbol", symbol, addend,
            generic, dtype)`` or ``("sink", dtype)``; filled with values when a warp starts.
    """

    base: int
    keys: list[tuple[Any, ...]] = field(default_factory=list)
    known: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def slot(self, *key: Any) -> int:
        """Index of the slot with this key."""
        if key not in self.known:
            self.known[key] = self.base + len(self.keys)
            self.keys.append(key)
        return self.known[key]


class Order(NamedTuple):
    """Memory semantics of an access.

    Attributes:
        reach: scope of a strong access, 1 (cta) to 4 (sys); 0 for a weak one.
    """

    reach: int
    acquire: bool
    release: bool


#: Reach of the scopes that opcodes name.
REACH = {"cta": 1, "cluster": 2, "gpu": 3, "gl": 3, "sys": 4}


def _compatible(reg: PtxType, want: PtxType) -> bool:
    if reg.bits != want.bits or (reg.kind == "p") != (want.kind == "p"):
        return False
    if want.kind == "b" or reg.kind == "b":
        return True
    return (reg.kind == "f") == (want.kind == "f")


class Emit:
    """One instruction on its way to a lowered form: a cursor over its operands with type checks."""

    def __init__(self, entry: Entry, item: Instruction, slots: Slots, namespace: dict[str, Any]) -> None:
        self.entry = entry
        self.item = item
        self.slots = slots
        self.namespace = namespace
        self.opcode = item.opcode
        self.mods = tuple(item.opcode.replace("::", "@").split("."))
        self.cursor = 0

    def fail(self, what: str) -> OperandError:
        """An operand error at this instruction."""
        return OperandError(f"{what} in {self.item.text!r}", f"{self.entry.name}, line {self.item.line}")

    # -- opcode -------------------------------------------------------------------------------------------------

    def has(self, modifier: str) -> bool:
        """Whether the opcode carries a modifier, such as ``sat`` or ``shared::cta``."""
        return modifier.replace("::", "@") in self.mods

    def type(self, index: int = -1) -> PtxType:
        """The modifier at an index, as a type."""
        return TYPES[self.mods[index]]

    def order(self, default: int = 0) -> Order:
        """Memory semantics from the modifiers; ``default`` is the reach without any."""
        reach = next((REACH[mod] for mod in self.mods[1:] if mod in REACH), default)
        if "volatile" in self.mods or "mmio" in self.mods:
            reach = REACH["sys"]
        acquire = bool({"acquire", "acq_rel"} & set(self.mods))
        return Order(reach, acquire, bool({"release", "acq_rel"} & set(self.mods)))

    # -- operands -----------------------------------------------------------------------------------------------

    @property
    def remaining(self) -> int:
        """Operands not taken yet."""
        return len(self.item.operands) - self.cursor

    def take(self) -> Operand:
        """The next operand as parsed."""
        if not self.remaining:
            raise self.fail(f"too few operands ({len(self.item.operands)})")
        self.cursor += 1
        return self.item.operands[self.cursor - 1]

    def peek(self) -> Operand | None:
        """The next operand without taking it."""
        return self.item.operands[self.cursor] if self.remaining else None

    def done(self) -> None:
        """Checks that no operand is left."""
        if self.remaining:
            raise self.fail(f"{self.remaining} operand(s) too many")

    def const(self, value: int, dtype: DTypeLike) -> int:
        """Slot of a constant."""
        return self.slots.slot("const", value, np.dtype(dtype).str)

    def _immediate(self, operand: Imm, want: PtxType) -> int:
        value = operand.value
        if want.kind == "p":
            return self.const(int(value != 0), np.bool_)
        if operand.bits:
            if operand.bits == want.bits or (operand.bits == 64 and want.bits == 32 and want.kind == "f"):
                raw = int(value)
                if operand.bits != want.bits:
                    raw = struct.unpack("<I", struct.pack("<f", struct.unpack("<d", struct.pack("<Q", raw))[0]))[0]
                return self.const(raw, want.store)
            raise self.fail(f"a {operand.bits}-bit float literal where {want.name} is needed")
        if isinstance(value, float):
            if want.kind != "f" or want.bits not in (32, 64):
                raise self.fail(f"a float literal where {want.name} is needed")
            code, bits = ("<f", "<I") if want.bits == 32 else ("<d", "<Q")
            return self.const(struct.unpack(bits, struct.pack(code, value))[0], want.store)
        if want.kind == "f":
            raise self.fail(f"an integer literal where {want.name} is needed")
        if not -(1 << (want.bits - 1)) <= value < (1 << want.bits):
            raise self.fail(f"literal {value} does not fit {want.name}")
        return self.const(value & ((1 << want.bits) - 1), want.store)

    def as_source(self, operand: Operand, want: PtxType, loose: bool = False) -> int:
        """Slot of a source operand of a type; ``loose`` accepts wider registers (ld, st, cvt)."""
        if isinstance(operand, Reg):
            ok = _compatible(operand.type, want) or (
                loose and operand.type.bits >= want.bits and operand.type.kind != "p"
            )
            if not ok:
                raise self.fail(f"register {operand.name} is .{operand.type.name}, the instruction wants .{want.name}")
            return operand.index
        if isinstance(operand, Imm):
            return self._immediate(operand, want)
        if isinstance(operand, Special):
            wide = operand.name in {"clock64", "globaltimer", "gridid"} or operand.name.startswith("lanemask64")
            if want.bits not in ((64,) if wide else (16, 32)) and not (loose and want.bits <= 32):
                raise self.fail(f"special register %{operand.name} where .{want.name} is wanted")
            return self.slots.slot("special", operand.name, np.dtype(want.store).str)
        if isinstance(operand, SymRef):
            if want.bits not in (32, 64):
                raise self.fail("an address needs a 32-bit or 64-bit operand")
            return self.slots.slot("symbol", operand.symbol, operand.addend, False, np.dtype(want.store).str)
        raise self.fail(f"operand {self.cursor} is not a register or constant")

    def src(self, want: PtxType | str, loose: bool = False) -> int:
        """Slot of the next operand, a source."""
        return self.as_source(self.take(), TYPES[want] if isinstance(want, str) else want, loose)

    def as_dest(self, operand: Operand, want: PtxType, loose: bool = False) -> int:
        """Slot of a destination operand."""
        if isinstance(operand, Sink):
            return self.slots.slot("sink", np.dtype(want.store).str)
        if not isinstance(operand, Reg):
            raise self.fail("a destination must be a register")
        ok = _compatible(operand.type, want) or (loose and operand.type.bits >= want.bits and operand.type.kind != "p")
        if not ok:
            raise self.fail(f"register {operand.name} is .{operand.type.name}, the instruction gives .{want.name}")
        return operand.index

    def dst(self, want: PtxType | str, loose: bool = False) -> int:
        """Slot of the next operand, a destination; ``_`` gives a slot that nobody reads."""
        return self.as_dest(self.take(), TYPES[want] if isinstance(want, str) else want, loose)

    def dst_pair(self, first: str, second: str) -> tuple[int, int | None]:
        """Slots of ``a|b``, or of a lone ``a``."""
        operand = self.take()
        if isinstance(operand, Pair):
            return self.as_dest(operand.first, TYPES[first]), self.as_dest(operand.second, TYPES[second])
        return self.as_dest(operand, TYPES[first]), None

    def pred(self) -> tuple[int, bool]:
        """Slot and negation of a predicate source."""
        operand = self.take()
        if isinstance(operand, Not):
            return operand.reg.index, True
        return self.as_source(operand, TYPES["pred"]), False

    def vector(self, count: int | None = None) -> tuple[Operand, ...]:
        """Elements of the next operand, a brace list; a lone operand counts as a list of one."""
        operand = self.take()
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if count is not None and len(items) != count:
            raise self.fail(f"a vector of {len(items)} where {count} are needed")
        return items

    def sources(self, want: PtxType | str, count: int | None = None, loose: bool = False) -> list[int]:
        """Slots of a brace list of sources."""
        kind = TYPES[want] if isinstance(want, str) else want
        return [self.as_source(item, kind, loose) for item in self.vector(count)]

    def dests(self, want: PtxType | str, count: int | None = None, loose: bool = False) -> list[int]:
        """Slots of a brace list of destinations."""
        kind = TYPES[want] if isinstance(want, str) else want
        return [self.as_dest(item, kind, loose) for item in self.vector(count)]

    def integer(self) -> int:
        """The next operand, which must be an integer literal."""
        operand = self.take()
        if not isinstance(operand, Imm) or operand.bits or isinstance(operand.value, float):
            raise self.fail(f"operand {self.cursor} must be an integer literal")
        return operand.value

    def label(self) -> int:
        """Instruction index of the next operand, a label."""
        operand = self.take()
        if not isinstance(operand, Label):
            raise self.fail("a branch needs a label")
        return operand.index

    def targets(self) -> list[int]:
        """Instruction indices of the next operand, a branch table."""
        operand = self.take()
        if not isinstance(operand, Label) or not operand.targets:
            raise self.fail("an indirect branch needs a .branchtargets list")
        return [target.index for target in operand.targets]

    # -- addresses ----------------------------------------------------------------------------------------------

    def place_of(self, address: Address) -> Place:
        """Address operand to slot and offset."""
        base = address.base
        if base is None:
            return Place(None, address.offset, True)
        if isinstance(base, SymRef):
            if base.symbol.space == "param":
                return Place(None, base.symbol.offset + base.addend + address.offset, True, param=True)
            slot = self.slots.slot("symbol", base.symbol, base.addend, False, "<u8")
            return Place(slot, address.offset, True)
        if base.type.kind == "p" or base.type.bits not in (32, 64):
            raise self.fail(f"address register {base.name} must be 32 or 64 bits wide")
        return Place(base.index, address.offset, base.type.bits == 64)

    def place(self) -> Place:
        """The next operand, an address."""
        operand = self.take()
        if not isinstance(operand, Address):
            raise self.fail(f"operand {self.cursor} must be an address in brackets")
        return self.place_of(operand)

    def tensor_place(self, dims: int) -> tuple[Place, list[int]]:
        """The next operand, ``[map, {coordinates}]``: map address and coordinate slots (s32), innermost first."""
        operand = self.take()
        if not isinstance(operand, TensorAddress):
            raise self.fail(f"operand {self.cursor} must be [tensor map, {{coordinates}}]")
        if len(operand.coords.items) != dims:
            raise self.fail(f"{len(operand.coords.items)} coordinates for a {dims}d copy")
        return self.place_of(operand.map), [self.as_source(item, TYPES["s32"]) for item in operand.coords.items]

    # -- results ------------------------------------------------------------------------------------------------

    def bind(self, value: Any, name: str = "k") -> str:
        """Makes a Python object reachable from generated code; returns its name there."""
        for known, present in self.namespace.items():
            if present is value:
                return known
        unique = f"{name}{len(self.namespace)}"
        self.namespace[unique] = value
        return unique

    def pure(self, dst: int, expression: str) -> Pure:
        """A pure instruction with one result; checks that all operands were used."""
        self.done()
        return Pure([(dst, expression)])

    def effect(self, run: "Run") -> Effect:
        """An effect; checks that all operands were used."""
        self.done()
        return Effect(run)


def view(slot: int, kind: PtxType) -> str:
    """Expression of a register as its type's NumPy values."""
    if kind.kind in "bup" or kind.name == "bf16":
        return f"R[{slot}]"
    letter = {"s": "I", "f": "F"}[kind.kind]
    return f"R[{slot}].view({letter}{kind.nbytes})"


def back(expression: str, kind: PtxType) -> str:
    """Expression as register bits again."""
    if kind.kind in "bup" or kind.name == "bf16":
        return expression
    return f"({expression}).view(U{kind.nbytes})"
