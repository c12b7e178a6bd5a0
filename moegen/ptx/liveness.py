"""Which registers may still be read, at every instruction of an entry."""

from collections.abc import Iterator, Sequence

from moegen.ptx.emit import Branch, Exit, Lowered, Pure, slots_in
from moegen.ptx.program import Address, Instruction, Label, Not, Operand, Pair, Reg, TensorAddress, Vector


def _registers(operand: Operand) -> Iterator[int]:
    if isinstance(operand, Reg):
        yield operand.index
    elif isinstance(operand, Not):
        yield operand.reg.index
    elif isinstance(operand, Address):
        if isinstance(operand.base, Reg):
            yield operand.base.index
    elif isinstance(operand, TensorAddress):
        yield from _registers(operand.map)
        yield from _registers(operand.coords)
    elif isinstance(operand, Pair):
        yield from _registers(operand.first)
        yield from _registers(operand.second)
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _registers(item)


def _labels(operand: Operand) -> Iterator[int]:
    if isinstance(operand, Label):
        for label in operand.targets or [operand]:
            yield label.index


def bits_of(slots: Iterator[int]) -> int:
    """A set of slots as the bits of an integer."""
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits


def _effects(item: Instruction, lowered: Lowered) -> tuple[int, int]:
    """Registers that an instruction may read, and those that it surely writes."""
    reads = 0 if item.guard is None else 1 << item.guard.index
    if isinstance(lowered, Pure):
        reads |= bits_of(slot for text in (lowered.setup, *(e for _, e in lowered.outs)) for slot in slots_in(text))
        return reads, bits_of(slot for slot, _ in lowered.outs) if item.guard is None else 0
    # Which operands of other instructions are results is their own matter: all may be read, none counts as written.
    return reads | bits_of(register for operand in item.operands for register in _registers(operand)), 0


def _next(index: int, item: Instruction, lowered: Lowered) -> list[int]:
    """Instructions that may follow."""
    if isinstance(lowered, Exit):
        return [] if item.guard is None else [index + 1]
    if isinstance(lowered, Branch):
        return [lowered.target] if item.guard is None else [lowered.target, index + 1]
    if item.opcode.startswith("brx"):
        return [index + 1, *(label for operand in item.operands for label in _labels(operand))]
    return [index + 1]


def live_before(items: Sequence[Instruction], lowered: Sequence[Lowered]) -> list[int]:
    """Registers (bits of an integer) that a lane may read from each instruction on before it writes them; one more
    element, 0, for the end.
    """
    effects = [_effects(*pair) for pair in zip(items, lowered, strict=True)]
    after = [_next(k, *pair) for k, pair in enumerate(zip(items, lowered, strict=True))]
    live = [0] * (len(items) + 1)
    changed = True
    while changed:
        changed = False
        for k in range(len(items) - 1, -1, -1):
            reads, writes = effects[k]
            out = 0
            for follower in after[k]:
                out |= live[follower]
            now = reads | (out & ~writes)
            if now != live[k]:
                live[k] = now
                changed = True
    return live
