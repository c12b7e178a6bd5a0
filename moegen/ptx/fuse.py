"""Joins a run of pure instructions into one Python function.

Where all lanes are active, instructions that compute the same expression of different registers (unrolled loops) become
one NumPy operation on [n, 32] arrays: expressions treat every axis but the last as independent registers. Instructions
of a run are ordered by their dependencies, not by the text; nothing outside can tell the difference.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moegen.ptx.dtypes import PtxType
from moegen.ptx.emit import SLOT, Pure, Slots, slots_in
from moegen.ptx.program import Instruction

#: Equal expressions from which joining them pays: plain operators, and calls of functions.
_PLAIN, _COSTLY = 12, 3
_CALL = re.compile(r"(?<![.\w])[a-z_]\w*\(")


@dataclass(slots=True)
class _Item:
    """One instruction of a run.

    Attributes:
        reads, writes: slots; a guarded instruction also reads what it writes.
        level: 0 if it depends on no other of the run, else one more than the deepest it depends on.
    """

    lowered: Pure
    guard: str
    reads: set[int]
    writes: set[int]
    level: int = 0


def _item(lowered: Pure, instruction: Instruction) -> _Item:
    reads = set(slots_in(lowered.setup))
    for _, expression in lowered.outs:
        reads.update(slots_in(expression))
    writes = {slot for slot, _ in lowered.outs}
    guard = ""
    if instruction.guard is not None:
        guard = f"{'~' if instruction.guard_negated else ''}R[{instruction.guard.index}]"
        reads |= writes | {instruction.guard.index}
    return _Item(lowered, guard, reads, writes)


def _set_levels(items: Sequence[_Item]) -> None:
    """Levels by reads after writes, writes after reads and writes after writes."""
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    for item in items:
        after = [written[s] for s in item.reads | item.writes if s in written]
        after += [read[s] for s in item.writes if s in read]
        item.level = max(after, default=-1) + 1
        for slot in item.reads:
            read[slot] = max(read.get(slot, 0), item.level)
        for slot in item.writes:
            written[slot] = item.level


def _merge(mask: str, expression: str, slot: int) -> str:
    return f"where({mask}, {expression}, R[{slot}])" if mask else expression


def _plain_lines(item: _Item, mask: str) -> list[str]:
    """One instruction by itself; ``mask`` names the active lanes, empty for all."""
    lines = list(item.lowered.setup.splitlines())
    if item.guard:
        lines.append(f"m = {mask} & {item.guard}" if mask else f"m = {item.guard}")
        mask = "m"
    outs = item.lowered.outs
    if len(outs) == 1:
        slot, expression = outs[0]
        return [*lines, f"R[{slot}] = {_merge(mask, expression, slot)}"]
    # All results are computed before any is stored: a destination may be a source too.
    lines += [f"o{k} = {expression}" for k, (_, expression) in enumerate(outs)]
    return lines + [f"R[{slot}] = {_merge(mask, f'o{k}', slot)}" for k, (slot, _) in enumerate(outs)]


def masked_lines(lowered: Sequence[Pure], instructions: Sequence[Instruction]) -> list[str]:
    """Statements of a run under the mask ``a``, in the order of the text."""
    return [
        line
        for one, instruction in zip(lowered, instructions, strict=True)
        for line in _plain_lines(_item(one, instruction), "a")
    ]


class _Joiner:
    """Statements of one run; remembers which names hold the rows of which registers."""

    def __init__(self, registers: Sequence[PtxType], slots: Slots) -> None:
        self.registers = registers
        self.slots = slots
        self.lines: list[str] = []
        self.rows: dict[tuple[int, ...], str] = {}
        self.count = 0

    def _width(self, slot: int) -> str:
        """Type of a slot's lanes: only equal ones may be joined."""
        if slot < len(self.registers):
            return np.dtype(self.registers[slot].store).str
        return str(self.slots.keys[slot - len(self.registers)][-1])

    def key(self, item: _Item) -> tuple[str, ...]:
        """What instructions must share to be joined."""
        ((slot, expression),) = item.lowered.outs
        return SLOT.sub("#", expression), *(self._width(s) for s in (slot, *slots_in(expression)))

    def alone(self, item: _Item) -> None:
        self.lines += _plain_lines(item, "")
        self._forget(item.writes)

    def joined(self, group: Sequence[_Item]) -> None:
        """Equal expressions of different registers, as one; alone where nothing differs."""
        sources = list(zip(*(slots_in(item.lowered.outs[0][1]) for item in group), strict=True))
        if all(len(set(column)) == 1 for column in sources):
            for item in group:
                self.alone(item)
            return
        names = iter([self._operand(column) for column in sources])
        expression = SLOT.sub(lambda _: next(names), group[0].lowered.outs[0][1])
        targets = tuple(item.lowered.outs[0][0] for item in group)
        name = f"g{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {expression}")
        self.lines.append(f"{', '.join(f'R[{slot}]' for slot in targets)} = {name}")
        self._forget(set(targets))
        self.rows[targets] = name

    def _operand(self, column: tuple[int, ...]) -> str:
        """An operand of every instruction of a group: [n, 32], or one register that all share."""
        if len(set(column)) == 1:
            return f"R[{column[0]}]"
        if column not in self.rows:
            name = f"g{self.count}"
            self.count += 1
            parts = ", ".join(f"R[{slot}]" for slot in column)
            self.lines.append(f"{name} = concatenate(({parts})).reshape({len(column)}, 32)")
            self.rows[column] = name
        return self.rows[column]

    def _forget(self, slots: set[int]) -> None:
        self.rows = {held: name for held, name in self.rows.items() if slots.isdisjoint(held)}


def _joinable(item: _Item) -> bool:
    if item.guard or len(item.lowered.outs) != 1 or item.lowered.setup:
        return False
    # A move hands on the array itself: asynchronous results know their registers by it.
    return not SLOT.fullmatch(item.lowered.outs[0][1])


def joined_lines(
    lowered: Sequence[Pure], instructions: Sequence[Instruction], registers: Sequence[PtxType], slots: Slots
) -> list[str]:
    """Statements of a run for all lanes, equal operations joined."""
    items = [_item(one, instruction) for one, instruction in zip(lowered, instructions, strict=True)]
    _set_levels(items)
    joiner = _Joiner(registers, slots)
    for level in range(max((item.level for item in items), default=-1) + 1):
        groups: dict[tuple[str, ...], list[_Item]] = {}
        for item in items:
            if item.level != level:
                continue
            if _joinable(item):
                groups.setdefault(joiner.key(item), []).append(item)
            else:
                joiner.alone(item)
        for key, group in groups.items():
            if len(group) >= (_COSTLY if _CALL.search(key[0]) else _PLAIN):
                joiner.joined(group)
            else:
                for item in group:
                    joiner.alone(item)
    return joiner.lines
