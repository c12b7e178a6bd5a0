"""Operands of the PTX grammar: registers, literals, symbols, vectors, addresses and labels, looked up by scope."""

import re
from dataclasses import dataclass, field

from moegen.ptx.cursor import Cursor
from moegen.ptx.dtypes import PtxType
from moegen.ptx.errors import OperandError
from moegen.ptx.program import (
    Address,
    Imm,
    Label,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    SymRef,
    TensorAddress,
    Vector,
)

_SPECIALS = re.compile(
    r"%(?:tid|ntid|ctaid|nctaid|cluster_ctaid|cluster_nctaid|clusterid|nclusterid)\.[xyz]$"
    r"|%(?:laneid|warpid|nwarpid|smid|nsmid|gridid|cluster_ctarank|cluster_nctarank|is_explicit_cluster"
    r"|lanemask_(?:eq|lt|le|gt|ge)|clock|clock_hi|clock64|globaltimer|globaltimer_lo|globaltimer_hi"
    r"|dynamic_smem_size|total_smem_size|aggr_smem_size)$"
)


@dataclass
class Scope:
    """Names between two braces, and those around them."""

    parent: "Scope | None" = None
    regs: dict[str, Reg] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int, PtxType]] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    symbols: dict[str, Symbol] = field(default_factory=dict)


class OperandParser(Cursor):
    """Reads operands; ``scope`` is the innermost open one."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, name)
        self.globals = Scope()
        self.scope = self.globals

    def label_operand(self) -> Label:
        """Takes the name of a label, defined or still to come."""
        name = self.next().text
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return self.scope.labels.setdefault(name, Label(name))

    def literal(self) -> Imm:
        """Takes a number."""
        sign = -1 if self.accept("-") else 1
        invert = self.accept("~")
        token = self.next()
        if token.kind == "int":
            value = sign * int(token.text.rstrip("U"), 0)
            return Imm(~value if invert else value)
        if token.kind == "float":
            if token.text[1] in "fF":
                return Imm(int(token.text[2:], 16) ^ (0x80000000 if sign < 0 else 0), 32)
            if token.text[1] in "dD" and token.text[0] == "0":
                return Imm(int(token.text[2:], 16) ^ (1 << 63 if sign < 0 else 0), 64)
            return Imm(sign * float(token.text))
        raise self.fail(f"expected a literal, found {token.text!r}", token.line)

    def operand(self) -> Operand:
        """Takes an operand of any form."""
        text = self.peek()
        if text == "[":
            return self.address()
        if text == "{":
            return self.vector()
        if text == "!":
            self.next()
            word = self.next()
            reg = self.register(word.text)
            if reg is None or reg.type.kind != "p":
                raise OperandError(f"!{word.text} is not a predicate register", f"{self.name}:{word.line}")
            return Not(reg)
        first = self.scalar()
        if self.accept("|"):
            return Pair(first, self.scalar())
        return first

    def scalar(self) -> Operand:
        """Takes a register, number, special register or symbol."""
        if not self.tokens[self.position : self.position + 1]:
            raise self.fail("the text ends in the middle of an instruction (truncated PTX?)")
        token = self.tokens[self.position]
        if token.kind in {"int", "float"} or token.text in {"-", "~"}:
            return self.literal()
        self.next()
        if token.text == "_":
            return Sink()
        if token.kind != "word":
            raise self.fail(f"unexpected {token.text!r} as an operand", token.line)
        reg = self.register(token.text)
        if reg is not None:
            return reg
        if _SPECIALS.match(token.text):
            return Special(token.text[1:])
        if token.text == "WARP_SZ":
            return Imm(32)
        symbol = self.symbol(token.text)
        if symbol is None:
            raise OperandError(f"unknown register or symbol {token.text}", f"{self.name}:{token.line}")
        if self.accept("+"):
            return SymRef(symbol, self.integer())
        return SymRef(symbol)

    def register(self, name: str) -> Reg | None:
        """A register by name, or None."""
        scope: Scope | None = self.scope
        while scope is not None:
            found = scope.regs.get(name)
            if found is not None:
                return found
            for prefix, (start, count, kind) in scope.ranges.items():
                if name.startswith(prefix) and name[len(prefix) :].isdigit():
                    number = int(name[len(prefix) :])
                    if number < count:
                        reg = scope.regs[name] = Reg(start + number, kind, name)
                        return reg
            scope = scope.parent
        return None

    def symbol(self, name: str) -> Symbol | None:
        """A variable or parameter by name, or None."""
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.symbols:
                return scope.symbols[name]
            scope = scope.parent
        return None

    def vector(self) -> Vector:
        """Takes a list in braces."""
        self.expect("{")
        items: list[Operand] = [self.scalar()]
        while self.accept(","):
            items.append(self.scalar())
        self.expect("}")
        return Vector(tuple(items))

    def address(self) -> Operand:
        """Takes an address in brackets, also of a tensor."""
        line = self.expect("[").line
        base = self.scalar()
        address: Address
        if isinstance(base, Imm):
            address = Address(None, int(base.value))
        elif isinstance(base, Reg | SymRef):
            offset = 0
            if self.accept("+") or self.peek() == "-":
                offset = self.integer()
            address = Address(base, offset)
        else:
            raise self.fail("an address needs a register, a symbol or a number", line)
        if self.accept(","):
            coords = self.vector()
            self.expect("]")
            return TensorAddress(address, coords)
        self.expect("]")
        return address
