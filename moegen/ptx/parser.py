"""PTX grammar: tokens to a :class:`~moegen.ptx.program.Program`. Labels and registers are scoped by braces."""

import re
import struct

from moegen.ptx.dtypes import TYPES, PtxType
from moegen.ptx.errors import OperandError, UnsupportedTarget
from moegen.ptx.lexer import Token
from moegen.ptx.operands import OperandParser, Scope
from moegen.ptx.program import (
    Entry,
    Instruction,
    Label,
    Operand,
    Param,
    Program,
    Reg,
    Symbol,
    Variable,
)

#: Targets whose instructions are implemented, with the plain and family forms of each.
TARGETS = frozenset(
    f"sm_{n}{suffix}" for n in (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120) for suffix in ("", "a", "f")
)
#: Newest PTX version whose documentation was read; a newer one may change what an opcode means.
VERSIONS = ((6, 0), (9, 9))
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_TYPE_NAMES = {"." + name for name in TYPES}


def _round_up(value: int, align: int) -> int:
    return (value + align - 1) // align * align


def parse(text: str, name: str = "<ptx>") -> Program:
    """Parses a PTX module.

    Raises:
        PtxSyntaxError: not PTX, or truncated.
        UnsupportedTarget: version, target or address size outside what is implemented.
        OperandError: an unknown register, symbol or label.
    """
    return _Parser(text, name).module()


class _Parser(OperandParser):
    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, name)
        self.variables: list[Variable] = []
        self.module_shared: dict[str, tuple[int, int, bool]] = {}
        self.entry = Entry("", [])

    # -- module level -------------------------------------------------------------------------------------------

    def module(self) -> Program:
        version, target = self.header()
        entries: dict[str, Entry] = {}
        while self.position < len(self.tokens):
            linkage = set()
            while self.peek() in _LINKAGE:
                linkage.add(self.next().text)
            word = self.next()
            if word.text == ".entry":
                entry = self.entry_definition()
                entries[entry.name] = entry
            elif word.text in {".global", ".const", ".shared"}:
                self.module_variable(word.text[1:], ".extern" in linkage)
            elif word.text == ".func":
                self.function_declaration()
            elif word.text == ".file":
                self.skip_line(word.line)
            elif word.text == ".section":
                self.skip_section()
            elif word.text == ".pragma":
                self.skip_to(";")
            else:
                raise self.fail(f"unexpected {word.text!r} at module level", word.line)
        return Program(self.name, version, target, entries, self.variables)

    def header(self) -> tuple[tuple[int, int], str]:
        if self.peek() != ".version":
            raise self.fail("a PTX module starts with .version")
        self.next()
        token = self.next()
        match = re.fullmatch(r"(\d+)\.(\d+)", token.text)
        if match is None:
            raise self.fail(f"bad version {token.text!r}", token.line)
        version = (int(match[1]), int(match[2]))
        where = f"{self.name}:{token.line}"
        if not VERSIONS[0] <= version <= VERSIONS[1]:
            raise UnsupportedTarget(f"PTX version {token.text} is outside {VERSIONS[0]} to {VERSIONS[1]}", where)
        line = self.expect(".target").line
        target = self.next().text
        while self.accept(","):
            option = self.next().text
            if option not in {"debug", "texmode_unified", "texmode_independent"}:
                raise self.fail(f"unknown target option {option!r}", line)
        if target not in TARGETS:
            raise UnsupportedTarget(f"target {target} is not implemented", f"{self.name}:{line}")
        if self.accept(".address_size"):
            size = self.integer()
            if size != 64:
                raise UnsupportedTarget(f".address_size {size}: only 64-bit addresses are implemented", where)
        return version, target

    def function_declaration(self) -> None:
        token = self.tokens[self.position]
        while (text := self.next().text) != ";":
            if text == "{":
                raise self.fail(".func bodies (non-inlined device functions) are not implemented", token.line)

    # -- variables ----------------------------------------------------------------------------------------------

    def variable(self) -> tuple[str, PtxType, int, int, int]:
        """Reads ``[.attributes] .type name[dims]``; returns name, type, vector width, align, elements (0 = unsized)."""
        align, width, kind = 0, 1, None
        while self.peek().startswith("."):
            word = self.next()
            if word.text == ".align":
                align = self.integer()
            elif word.text in {".v2", ".v4"}:
                width = int(word.text[2:])
            elif word.text in _TYPE_NAMES:
                kind = TYPES[word.text[1:]]
            elif word.text == ".ptr":
                while self.peek() in {".global", ".shared", ".const", ".local", ".param", ".align"}:
                    if self.next().text == ".align":
                        self.integer()
            elif word.text in {".attribute"}:
                self.expect("(")
                self.skip_to(")")
            else:
                raise self.fail(f"unexpected {word.text!r} in a declaration", word.line)
        if kind is None:
            raise self.fail("a declaration without a type")
        token = self.next()
        if token.kind != "word":
            raise self.fail(f"expected a name, found {token.text!r}", token.line)
        count = 1
        while self.accept("["):
            count *= 0 if self.peek() == "]" else self.integer()
            self.expect("]")
        natural = kind.nbytes * width
        return token.text, kind, width, max(align, natural) if align == 0 else align, count

    def module_variable(self, space: str, extern: bool) -> None:
        name, kind, width, align, count = self.variable()
        size = kind.nbytes * width * count
        if space == "shared":
            self.module_shared[name] = (size, align, count == 0)
            self.expect(";")
            return
        if extern:
            raise self.fail(f".extern .{space} {name}: linking against other modules is not implemented")
        data = bytearray(size)
        if self.accept("="):
            self.initialise(data, kind)
        self.expect(";")
        start = _round_up(sum(len(v.data) for v in self.variables if v.symbol.space == space), 256)
        taken = [v for v in self.variables if v.symbol.space == space]
        if taken:
            last = taken[-1].symbol
            start = _round_up(last.offset + last.size, 256)
        symbol = Symbol(name, space, start, size, align)
        self.globals.symbols[name] = symbol
        self.variables.append(Variable(symbol, bytes(data)))

    def initialise(self, data: bytearray, kind: PtxType) -> None:
        values: list[int | float] = []

        def read() -> None:
            if self.accept("{"):
                while not self.accept("}"):
                    read()
                    self.accept(",")
                return
            operand = self.literal()
            values.append(operand.value)

        read()
        codes = {"f32": "<f", "f64": "<d"}
        for index, value in enumerate(values):
            start = index * kind.nbytes
            if isinstance(value, float):
                piece = struct.pack(codes[kind.name], value)
            else:
                piece = (value & ((1 << kind.bits) - 1)).to_bytes(kind.nbytes, "little")
            data[start : start + kind.nbytes] = piece

    # -- entries ------------------------------------------------------------------------------------------------

    def entry_definition(self) -> Entry:
        name = self.next().text
        self.entry = entry = Entry(name, [])
        self.scope = Scope(self.globals)
        if self.accept("("):
            while not self.accept(")"):
                self.expect(".param")
                self.parameter()
                self.accept(",")
        while self.peek() != "{":
            self.entry_directive()
        self.declare_module_shared()
        self.expect("{")
        self.body()
        self.scope = self.globals
        return entry

    def parameter(self) -> None:
        name, kind, width, align, count = self.variable()
        size = kind.nbytes * width * count
        offset = _round_up(self.entry.param_bytes, align)
        self.entry.params.append(Param(name, offset, size, align))
        self.scope.symbols[name] = Symbol(name, "param", offset, size, align)

    def entry_directive(self) -> None:
        word = self.next()
        if word.text in {".maxntid", ".reqntid", ".reqnctapercluster"}:
            values = self.integers()
            values = values + (1,) * (3 - len(values))
            if word.text == ".reqnctapercluster":
                self.entry.cluster = values
            else:
                setattr(self.entry, word.text[1:], values)
        elif word.text in {".minnctapersm", ".maxnreg", ".maxclusterrank", ".maxnctapersm", ".blocksareclusters"}:
            if word.text != ".blocksareclusters":
                self.integer()
        elif word.text == ".explicitcluster" or word.text in {".noreturn", ".abi_preserve"}:
            pass
        elif word.text == ".pragma":
            self.skip_to(";")
        else:
            raise self.fail(f"unknown entry directive {word.text!r}", word.line)

    def declare_module_shared(self) -> None:
        # Every module-level shared variable is given room: which entry uses which is not tracked.
        for name, (size, align, dynamic) in self.module_shared.items():
            if dynamic:
                self.scope.symbols[name] = Symbol(name, "shared", 0, 0, align, dynamic=True)
                self.entry.dynamic_shared = True
                self.entry.shared_align = max(self.entry.shared_align, align)
            else:
                self.place_shared(name, size, align)

    def place_shared(self, name: str, size: int, align: int) -> None:
        offset = _round_up(self.entry.shared_size, align)
        self.entry.shared_size = offset + size
        self.entry.shared_align = max(self.entry.shared_align, align)
        self.scope.symbols[name] = Symbol(name, "shared", offset, size, align)

    def body(self) -> None:
        """Reads statements up to the closing brace of the scope that was just opened."""
        while True:
            token = self.next()
            text = token.text
            if text == "}":
                break
            if text == "{":
                self.scope = Scope(self.scope)
                self.body()
                continue
            if text == ";":
                continue
            if text.startswith(".") and self.body_directive(token):
                continue
            if self.peek() == ":" and token.kind == "word":
                self.next()
                self.define_label(token)
                continue
            self.instruction(token)
        for label in self.scope.labels.values():
            if label.index < 0:
                if self.scope.parent is None or self.scope.parent is self.globals:
                    raise OperandError(f"label {label.name} is not defined", self.name)
                self.hoist(label)
        assert self.scope.parent is not None
        self.scope = self.scope.parent

    def hoist(self, label: Label) -> None:
        """A label used but not defined in a scope belongs to an enclosing one."""
        parent = self.scope.parent
        assert parent is not None
        known = parent.labels.get(label.name)
        if known is None:
            parent.labels[label.name] = label
            return
        self.merge_label(label, known)

    def merge_label(self, label: Label, known: Label) -> None:
        for instruction in self.entry.instructions:
            for operand in instruction.operands:
                if isinstance(operand, Label):
                    operand.targets = [known if target is label else target for target in operand.targets]
            if any(operand is label for operand in instruction.operands):
                instruction.operands = tuple(known if operand is label else operand for operand in instruction.operands)

    def body_directive(self, token: Token) -> bool:
        if token.text == ".reg":
            self.registers()
        elif token.text in {".shared", ".local"}:
            self.local_variable(token.text[1:])
        elif token.text == ".loc":
            self.skip_line(token.line)
        elif token.text == ".pragma":
            self.skip_to(";")
        else:
            raise self.fail(f"unknown directive {token.text!r}", token.line)
        return True

    def local_variable(self, space: str) -> None:
        name, kind, width, align, count = self.variable()
        self.expect(";")
        size = kind.nbytes * width * count
        if space == "shared":
            self.place_shared(name, size, align)
            return
        offset = _round_up(self.entry.local_size, align)
        self.entry.local_size = offset + size
        self.scope.symbols[name] = Symbol(name, "local", offset, size, align)

    def registers(self) -> None:
        word = self.next()
        if word.text not in _TYPE_NAMES:
            raise self.fail(f"unknown register type {word.text!r}", word.line)
        kind = TYPES[word.text[1:]]
        while True:
            token = self.next()
            if token.kind != "word":
                raise self.fail(f"expected a register name, found {token.text!r}", token.line)
            start = len(self.entry.registers)
            if self.accept("<"):
                count = self.integer()
                self.expect(">")
                self.scope.ranges[token.text] = (start, count, kind)
                self.entry.registers += [kind] * count
            else:
                self.scope.regs[token.text] = Reg(start, kind, token.text)
                self.entry.registers.append(kind)
            if not self.accept(","):
                break
        self.expect(";")

    def define_label(self, token: Token) -> None:
        if self.accept(".branchtargets"):
            table = self.scope.labels.setdefault(token.text, Label(token.text))
            table.index = len(self.entry.instructions)
            table.targets = [self.label_operand()]
            while self.accept(","):
                table.targets.append(self.label_operand())
            self.expect(";")
            return
        label = self.scope.labels.setdefault(token.text, Label(token.text))
        if label.index >= 0:
            raise self.fail(f"label {token.text} is defined twice in one scope", token.line)
        label.index = len(self.entry.instructions)
        self.entry.leaders.add(label.index)

    # -- instructions -------------------------------------------------------------------------------------------

    def instruction(self, token: Token) -> None:
        start = self.position - 1
        guard, negated = None, False
        if token.text == "@":
            negated = self.accept("!")
            word = self.next()
            guard = self.register(word.text)
            if guard is None or guard.type.kind != "p":
                raise OperandError(f"guard {word.text} is not a predicate register", f"{self.name}:{word.line}")
            token = self.next()
        if token.kind != "word" or token.text.startswith((".", "%")):
            raise self.fail(f"expected an opcode, found {token.text!r}", token.line)
        operands: list[Operand] = []
        is_branch, indirect = token.text in {"bra", "bra.uni"}, token.text in {"brx.idx", "brx.idx.uni"}
        while not self.accept(";"):
            # The second operand of an indirect branch is the name of a list of targets.
            named = is_branch or (indirect and len(operands) == 1)
            operands.append(self.label_operand() if named else self.operand())
            if not self.accept(",") and self.peek() != ";":
                raise self.fail(f"expected ',' or ';', found {self.peek()!r}" if self.peek() else "truncated PTX")
        text = re.sub(
            r" (?=[,\]}|+])|(?<=[\[{@|+!]) ", "", " ".join(t.text for t in self.tokens[start : self.position - 1])
        )
        self.entry.instructions.append(Instruction(token.text, guard, negated, tuple(operands), token.line, text))
