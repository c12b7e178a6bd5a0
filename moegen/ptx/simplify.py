"""Leaves out of a run of pure instructions what nobody can see: moves, words that are packed and taken apart again, and
results that are never read.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from moegen.ptx.emit import SLOT, Pure, slots_in
from moegen.ptx.liveness import bits_of
from moegen.ptx.program import Instruction

#: How ``mov`` packs registers into a wider one, and takes one apart.
_PACK = re.compile(r"cat\(\[(R\[\d+\](?:, R\[\d+\])*)\], \w+\)")
_UNPACK = re.compile(r"t = R\[(\d+)\]\.view\(U\d\)\.reshape\(32, (\d+)\)\.T\.copy\(\)")

Run = list[tuple[Pure, Instruction]]


class _Known:
    """What registers are known to hold: the same as another slot, or parts that lie in other slots."""

    def __init__(self) -> None:
        self.same: dict[int, int] = {}
        self.parts: dict[int, list[int]] = {}

    def written(self, slot: int) -> None:
        """Forgets what a write to a slot makes stale."""
        self.same = {k: v for k, v in self.same.items() if slot not in (k, v)}
        self.parts = {k: v for k, v in self.parts.items() if k != slot and slot not in v}

    def learn(self, slot: int, expression: str) -> None:
        """Takes note of a move or a packed register."""
        sources = list(slots_in(expression))
        if slot in sources:
            return
        if SLOT.fullmatch(expression):
            self.same[slot] = sources[0]
        elif _PACK.fullmatch(expression):
            self.parts[slot] = sources

    def read(self, text: str) -> str:
        """Text that reads what copies are copies of."""
        return SLOT.sub(lambda found: f"R[{self.same.get(int(found[1]), int(found[1]))}]", text) if self.same else text

    def moves(self, one: Pure) -> list[Pure]:
        """One that takes apart what is known in parts, as moves."""
        found = _UNPACK.fullmatch(one.setup)
        parts = self.parts.get(int(found[1])) if found else None
        if found is None or parts is None or int(found[2]) != len(parts):
            return [one]
        outs = [(slot, f"R[{parts[int(expression[2:-1])]}]") for slot, expression in one.outs]
        if {slot for slot, _ in outs} & set(parts):
            return [Pure(outs)]
        return [Pure([out]) for out in outs]


def _forward(run: Run) -> Run:
    """Reads sources instead of copies of them."""
    known, result = _Known(), []
    for whole, instruction in run:
        for one in known.moves(replace(whole, setup=known.read(whole.setup))):
            new = Pure([(slot, known.read(expression)) for slot, expression in one.outs], one.setup)
            result.append((new, instruction))
            for slot, _ in new.outs:
                known.written(slot)
            if instruction.guard is None and len(new.outs) == 1 and not new.setup:
                known.learn(*new.outs[0])
    return result


def _needed(run: Run, live: int) -> Run:
    """Without results that nobody reads."""
    kept = []
    for one, instruction in reversed(run):
        writes = bits_of(slot for slot, _ in one.outs)
        if not writes & live:
            continue
        kept.append((one, instruction))
        reads = bits_of(slot for text in (one.setup, *(e for _, e in one.outs)) for slot in slots_in(text))
        if instruction.guard is None:
            live &= ~writes
        else:
            reads |= 1 << instruction.guard.index
        live |= reads
    return kept[::-1]


def simplified(lowered: Sequence[Pure], instructions: Sequence[Instruction], live: int) -> Run:
    """A run that gives the same values to the registers in ``live`` (bits of an integer)."""
    return _needed(_forward(list(zip(lowered, instructions, strict=True))), live)
