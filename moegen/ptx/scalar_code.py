"""Translates the NumPy expressions of pure instructions to Python integers, for registers that are equal in all lanes.

Values are held as NumPy would show them: unsigned types from 0, signed ones with their sign, predicates as bool.
"""

import ast
from collections.abc import Callable, Iterator

from moegen.ptx.emit import Pure, slots_in
from moegen.ptx.simplify import Run

#: Type of a value: letter (``U``, ``I``, ``B``) and bytes.
Kind = tuple[str, int]
_KINDS: dict[str, Kind] = {f"{letter}{n}": (letter, n) for letter in "UI" for n in (1, 2, 4, 8)} | {"B1": ("B", 1)}
_BOOL: Kind = ("B", 1)
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_BITWISE = {ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"}
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class _CannotError(Exception):
    """An expression without a scalar form."""


def _mask(kind: Kind) -> int:
    return (1 << 8 * kind[1]) - 1


def _wrap(text: str, kind: Kind) -> str:
    """Any integer to the type's range."""
    if kind[0] == "U":
        return f"({text} & {_mask(kind)})"
    half = 1 << 8 * kind[1] - 1
    return f"((({text}) + {half} & {_mask(kind)}) - {half})"


class _Translator:
    """One instruction's expressions; ``kind_of`` gives the type of a slot."""

    def __init__(self, kind_of: Callable[[int], Kind]) -> None:
        self.kind_of = kind_of
        self.named: dict[str, Kind] = {}

    def value(self, node: ast.expr) -> tuple[str, Kind]:
        """Text and type of an expression."""
        match node:
            case ast.Subscript(value=ast.Name(id="R"), slice=ast.Constant(value=int(slot))):
                return f"r{slot}", self.kind_of(slot)
            case ast.Name(id=name) if name in self.named:
                return name, self.named[name]
            case ast.BinOp():
                return self._binary(node)
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARE:
                (x, one), (y, other) = self.value(left), self.value(right)
                if one != other:
                    raise _CannotError
                return f"({x} {_COMPARE[type(operator)]} {y})", _BOOL
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                x, kind = self.value(operand)
                return (f"(not {x})", kind) if kind == _BOOL else (_wrap(f"~{x}", kind), kind)
            case ast.Call():
                return self._call(node)
        raise _CannotError

    def _binary(self, node: ast.BinOp) -> tuple[str, Kind]:
        (x, kind), (y, other) = self.value(node.left), self.value(node.right)
        operator = type(node.op)
        if kind != other or (kind == _BOOL and operator not in _BITWISE):
            raise _CannotError
        if operator in _BITWISE:
            return f"({x} {_BITWISE[operator]} {y})", kind
        if operator in _ARITHMETIC:
            return _wrap(f"{x} {_ARITHMETIC[operator]} {y}", kind), kind
        # Shifts by a constant below the width.
        if isinstance(node.right, ast.Call) and y.isdecimal():
            if operator is ast.RShift:
                return f"({x} >> {y})", kind
            if operator is ast.LShift and kind[0] == "U":
                return _wrap(f"{x} << {y}", kind), kind
        raise _CannotError

    def _call(self, node: ast.Call) -> tuple[str, Kind]:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="type"), args=[ast.Constant(value=int(v))]):
                return str(v), _KINDS[name]
            case ast.Call(func=ast.Attribute(value=source, attr="view" | "astype" as how), args=[ast.Name(id=name)]):
                x, kind = self.value(source)
                to = _KINDS.get(name)
                if to is None or (how == "view" and to[1] != kind[1]):
                    raise _CannotError
                return (x, to) if to == kind or (to[0] == "U" == kind[0] and to[1] > kind[1]) else (_wrap(x, to), to)
            case ast.Call(func=ast.Name(id="where"), args=[condition, yes, no]):
                c, (x, kind), (y, other) = self.value(condition)[0], self.value(yes), self.value(no)
                if kind != other:
                    raise _CannotError
                return f"({x} if {c} else {y})", kind
            case ast.Call(func=ast.Name(id="cat"), args=[ast.List(elts=parts), ast.Name()]):
                return self._joined([self.value(part) for part in parts])
            case ast.Call(func=ast.Name(id="part"), args=[source, ast.Name(id=name), ast.Constant(value=int(k)), _]):
                (x, (letter, _)), to = self.value(source), _KINDS[name]
                if letter != "U":
                    raise _CannotError
                return f"({x} >> {8 * to[1] * k} & {_mask(to)})", to
            case ast.Call(func=ast.Name(id="mulhi4"), args=[left, right]):
                (x, kind), (y, _) = self.value(left), self.value(right)
                return f"({x} * {y} >> 32 & {_mask(kind)})", ("U", 4)
            case ast.Call(func=ast.Name(id="shl" | "shr" as name), args=[left, right]):
                return self._shift(name, self.value(left), self.value(right)[0])
        raise _CannotError

    @staticmethod
    def _joined(parts: list[tuple[str, Kind]]) -> tuple[str, Kind]:
        size = parts[0][1][1]
        if size * len(parts) > 8:
            raise _CannotError
        words = " | ".join(f"{x} << {8 * size * k}" for k, (x, _) in enumerate(parts))
        return f"({words})", ("U", size * len(parts))

    @staticmethod
    def _shift(name: str, value: tuple[str, Kind], amount: str) -> tuple[str, Kind]:
        x, kind = value
        bits = 8 * kind[1]
        if name == "shl":
            return f"({_wrap(f'{x} << {amount}', kind)} if {amount} < {bits} else 0)", kind
        return f"({x} >> min({amount}, {bits}))", kind  # Python's shift keeps the sign, and zeros come in above

    def statements(self, one: Pure) -> Iterator[tuple[str, str, Kind]]:
        """Name, text and type: of ``t`` if there is a setup, then of each result, called n and its slot."""
        if one.setup:
            match ast.parse(one.setup).body:
                case [ast.Assign(targets=[ast.Name(id="t")], value=value)]:
                    text, self.named["t"] = self.value(value)
                    yield "t", text, self.named["t"]
                case _:
                    raise _CannotError
        for slot, expression in one.outs:
            yield f"n{slot}", *self.value(ast.parse(expression, mode="eval").body)


def scalar_lines(run: Run, kind_of: Callable[[int], Kind | None]) -> list[str] | None:
    """Statements of a run over Python integers; None if an instruction has no such form.

    They use ``R``, ``known`` (value by identity of an array, or None), one table of arrays per type, such as
    ``lanes_u4``, and ``other``, the step for registers that are not known.

    Args:
        run: instructions with what they were lowered to.
        kind_of: type of a slot, None for one without arithmetic.
    """

    def kind(slot: int) -> Kind:
        found = kind_of(slot)
        if found is None:
            raise _CannotError
        return found

    inputs: dict[int, Kind] = {}
    written: dict[int, Kind] = {}
    lines: list[str] = []
    try:
        for one, instruction in run:
            reads = [slot for text in (one.setup, *(e for _, e in one.outs)) for slot in slots_in(text)]
            guard = instruction.guard
            if guard is not None:
                reads += [guard.index, *(slot for slot, _ in one.outs)]
            inputs.update((slot, kind(slot)) for slot in reads if slot not in written)
            results = list(_Translator(kind).statements(one))
            if any(result != kind(int(name[1:])) for name, _, result in results if name != "t"):
                return None
            lines += [f"{name} = {text}" for name, text, _ in results]
            for slot, _ in one.outs:
                if guard is None:
                    lines.append(f"r{slot} = n{slot}")
                else:
                    lines.append(f"if {'not ' if instruction.guard_negated else ''}r{guard.index}: r{slot} = n{slot}")
                written[slot] = kind(slot)
    except (_CannotError, KeyError):
        return None
    unknown = " or ".join(f"(r{slot} := known(id(R[{slot}]))) is None" for slot in inputs)
    put = [f"R[{slot}] = lanes_{letter.lower()}{n}[r{slot}]" for slot, (letter, n) in written.items()]
    return [f"if {unknown or False}:", " return other(w)", *lines, *put]
