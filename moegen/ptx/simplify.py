"""Leaves out of a run of pure instructions what nobody can see: moves, words that are packed and taken apart again, and
results that are never read.
"""

import re
from collections.abc import Sequence

from moegen.ptx.emit import SLOT, Pure, slots_in
from moegen.ptx.liveness import bits_of
from moegen.ptx.program import Instruction

#: How ``mov`` packs registers into a wider one, and takes one apart.
_PACK = re.compile(r"cat\(\[(R\[\d+\](?:, R\[\d+\])*)\], \w+\)")
_PART = re.compile(r"part\(R\[(\d+)\], U\d, (\d+), (\d+)\)")

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
        """Text that reads what copies are copies of, and parts where they came from."""
        found = _PART.fullmatch(text) if self.parts else None
        if found:
            slot, k, count = (int(number) for number in found.groups())
            parts = self.parts.get(slot, [])
            if len(parts) == count:
                return f"R[{parts[k]}]"
        return SLOT.sub(lambda found: f"R[{self.same.get(int(found[1]), int(found[1]))}]", text) if self.same else text


def _apart(one: Pure) -> list[Pure]:
    """Several moves as single ones, unless one writes what another reads."""
    reads = {slot for _, expression in one.outs for slot in slots_in(expression)}
    moves = all(SLOT.fullmatch(expression) for _, expression in one.outs)
    return [Pure([out]) for out in one.outs] if moves and reads.isdisjoint(slot for slot, _ in one.outs) else [one]


def _forward(run: Run) -> Run:
    """Reads sources instead of copies of them."""
    known, result = _Known(), []
    for whole, instruction in run:
        outs = [(slot, known.read(expression)) for slot, expression in whole.outs]
        for one in _apart(Pure(outs, known.read(whole.setup))):
            result.append((one, instruction))
            for slot, _ in one.outs:
                known.written(slot)
            if instruction.guard is None and len(one.outs) == 1 and not one.setup:
                known.learn(*one.outs[0])
    return result


def _reads(one: Pure, instruction: Instruction) -> int:
    reads = bits_of(slot for text in (one.setup, *(e for _, e in one.outs)) for slot in slots_in(text))
    return reads if instruction.guard is None else reads | 1 << instruction.guard.index


def _writes(one: Pure) -> int:
    return bits_of(slot for slot, _ in one.outs)


def independent(run: Run) -> list[Run]:
    """A run in parts none of which reads or writes what another one writes, each in its order."""
    parts: list[tuple[int, int, list[int]]] = []
    for k, (one, instruction) in enumerate(run):
        reads, writes, members = _reads(one, instruction), _writes(one), [k]
        apart = []
        for part in parts:
            if writes & (part[0] | part[1]) or reads & part[1]:
                reads, writes, members = reads | part[0], writes | part[1], part[2] + members
            else:
                apart.append(part)
        parts = [*apart, (reads, writes, members)]
    return [[run[k] for k in sorted(members)] for _, _, members in parts]


def _needed(run: Run, live: int) -> Run:
    """Without results that nobody reads."""
    kept = []
    for one, instruction in reversed(run):
        writes = _writes(one)
        if not writes & live:
            continue
        kept.append((one, instruction))
        if instruction.guard is None:
            live &= ~writes
        live |= _reads(one, instruction)
    return kept[::-1]


def simplified(lowered: Sequence[Pure], instructions: Sequence[Instruction], live: int) -> Run:
    """A run that gives the same values to the registers in ``live`` (bits of an integer)."""
    return _needed(_forward(list(zip(lowered, instructions, strict=True))), live)
