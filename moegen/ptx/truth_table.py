"""Short expressions of three-input logic functions (lop3) and of byte permutations with a constant selector (prmt)."""

from functools import cache
from itertools import groupby

#: Truth tables of the inputs: bit (4a + 2b + c) is the function's value.
_A, _B, _C = 0xF0, 0xCC, 0xAA


@cache
def _expressions() -> dict[int, str]:
    """An expression over ``{a} {b} {c}`` with the fewest operators for each of the 256 functions."""
    found = {_A: "{a}", _B: "{b}", _C: "{c}"}
    layers = [dict(found)]
    while len(found) < 256:
        layer: dict[int, str] = {}
        # A layer has one operator more than the two expressions that it joins, or than the one that it inverts.
        for left in range(len(layers)):
            right = len(layers) - 1 - left
            for f, x in layers[left].items():
                for g, y in layers[right].items():
                    for value, symbol in ((f & g, "&"), (f | g, "|"), (f ^ g, "^")):
                        if value not in found:
                            layer.setdefault(value, f"({x} {symbol} {y})")
        for f, x in layers[-1].items():
            if f ^ 0xFF not in found:
                layer.setdefault(f ^ 0xFF, f"~{x}")
        found |= layer
        layers.append(layer)
    return found


def logic(table: int, a: str, b: str, c: str) -> str:
    """Expression of a function of three inputs, given as its truth table of 8 bits."""
    return _expressions()[table].format(a=a, b=b, c=c)


def _moved(source: str, first: int, to: int, count: int) -> str:
    """``count`` bytes of a 32-bit ``source`` from byte ``first``, placed at byte ``to``, the others zero."""
    mask = ((1 << 8 * count) - 1) << 8 * to
    if first == to:
        return source if count == 4 else f"({source} & U4.type({mask:#x}))"
    shift = f"({source} {'<<' if to > first else '>>'} U4.type({8 * abs(to - first)}))"
    # A shift that pushes everything else out needs no mask.
    alone = to + count == 4 if to > first else first + count == 4
    return shift if alone and (to == 0 or to > first) else f"({shift} & U4.type({mask:#x}))"


def permutation(selector: int, a: str, b: str) -> str | None:
    """Expression of a byte permutation in the default mode, or None if it replicates signs."""
    nibbles = [selector >> 4 * k & 15 for k in range(4)]
    if any(n & 8 for n in nibbles):
        return None
    parts = []
    # Runs of successive bytes of one source move together.
    for _, run in groupby(range(4), key=lambda k: (nibbles[k] - k, nibbles[k] >> 2)):
        at = list(run)
        first = nibbles[at[0]]
        parts.append(_moved(b if first & 4 else a, first & 3, at[0], len(at)))
    return " | ".join(parts)
