"""An entry made executable: lowered instructions, joined to Python functions a basic block at a time.

Two versions exist of every instruction: ``full`` runs where all 32 lanes are active and plain assignment does,
``part`` where a mask applies. Runs of pure instructions become one function, compiled when first reached.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx import registry
from moegen.ptx.dtypes import ALL, TYPES, Mask
from moegen.ptx.emit import SLOT, Branch, Effect, Emit, Exit, Lowered, Pure, Slots
from moegen.ptx.errors import UnknownInstruction
from moegen.ptx.fuse import joined_lines, masked_lines
from moegen.ptx.liveness import bits_of, live_before
from moegen.ptx.program import Entry, Instruction
from moegen.ptx.scalar_code import scalar_lines
from moegen.ptx.simplify import Run, independent, simplified
from moegen.ptx.uniform import KNOWN, same

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

Step = Callable[["Warp"], int | None]

#: Signals that a step returns instead of the next instruction index.
BLOCK = -1  # not done: try again later
YIELD = -2  # done; let another warp run
SWITCH = -3  # the warp's groups were rewritten: reload
FINISH = -4  # done, and the active lanes have exited

#: Longest run that is tried on Python integers, and how often it runs as a vector before.
_SCALAR, _TRIES = 64, 8
#: Longest run that is taken apart where it is equal in all lanes in part; longer ones may have operations to join.
_DIVISIBLE = 11

TRUE_BYTES = ALL.tobytes()
FALSE_BYTES = bytes(32)


class Kernel:
    """An executable entry.

    Attributes:
        entry: as parsed.
        slots: constant part of the register list.
        full, part: one step per instruction index, for all lanes and under ``warp.mask``.
        lengths: instructions that the step at an index covers.
    """

    def __init__(self, entry: Entry, file: str, namespace: dict[str, Any]) -> None:
        self.entry = entry
        self.file = file
        self.slots = Slots(len(entry.registers))
        self.namespace = dict(namespace)
        self.items: list[Instruction] = entry.instructions
        self.lowered = [self._lower(item) for item in self.items]
        count = len(self.items)
        self.lengths = [1] * count
        self.full: list[Step] = [self._lazy(index, full=True) for index in range(count)]
        self.part: list[Step] = [self._lazy(index, full=False) for index in range(count)]
        end = self._end(count)
        self.full.append(end)
        self.part.append(end)
        self.lengths.append(0)

    def _lower(self, item: Instruction) -> Lowered:
        builder = registry.find(item.opcode)
        if builder is None:
            raise UnknownInstruction(
                f"{item.opcode} is not implemented: {item.text}",
                f"{self.file}:{item.line}",
                "implement it in moegen/ptx (docs/ptx.md, 'How to add an instruction')",
            )
        emit = Emit(self.entry, item, self.slots, self.namespace)
        lowered = builder(emit)
        emit.done()
        return lowered

    @cached_property
    def live(self) -> list[int]:
        """Registers that may be read from each instruction on, as bits."""
        return live_before(self.items, self.lowered)

    # -- steps --------------------------------------------------------------------------------------------------

    def _lazy(self, index: int, full: bool) -> Step:
        def first(w: "Warp") -> int | None:
            step = self._build(index, full)
            (self.full if full else self.part)[index] = step
            return step(w)

        return first

    def _build(self, index: int, full: bool) -> Step:
        lowered, item = self.lowered[index], self.items[index]
        if isinstance(lowered, Pure):
            return self._run_of_pure(index, full)
        if isinstance(lowered, Branch):
            return self._branch(index, lowered.target, item, full)
        if isinstance(lowered, Exit):
            return self._exit(index, item)
        return self._effect(lowered, item, full)

    def _end(self, index: int) -> Step:
        def end(w: "Warp") -> int:
            w.retire(w.mask)
            return FINISH

        return end

    def _effect(self, lowered: Effect, item: Instruction, full: bool) -> Step:
        run = lowered.run
        if item.guard is None:
            if full:
                return lambda w: run(w, ALL)
            return lambda w: run(w, w.mask)
        guard, negated = item.guard.index, item.guard_negated

        def guarded(w: "Warp") -> int | None:
            chosen: Mask = w.R[guard]
            if full:
                known = KNOWN.get(id(chosen))
                if known is not None:
                    return None if known == negated else run(w, ALL)
            mask = ~chosen if negated else chosen
            if not full:
                mask = mask & w.mask
            packed = mask.tobytes()
            if packed == FALSE_BYTES:
                return None
            return run(w, ALL if packed == TRUE_BYTES else mask)

        return guarded

    def _branch(self, index: int, target: int, item: Instruction, full: bool) -> Step:
        if item.guard is None:
            return lambda w: target
        guard, negated, after = item.guard.index, item.guard_negated, index + 1
        if full:
            always, never = (FALSE_BYTES, TRUE_BYTES) if negated else (TRUE_BYTES, FALSE_BYTES)

            def uniform(w: "Warp") -> int:
                taken = w.R[guard]
                known = KNOWN.get(id(taken))
                if known is not None:
                    return after if known == negated else target
                packed = taken.tobytes()
                if packed == always:
                    return target
                if packed == never:
                    return after
                w.split(target, ~taken if negated else taken, after)
                return SWITCH

            return uniform

        def masked(w: "Warp") -> int:
            taken = (~w.R[guard] if negated else w.R[guard]) & w.mask
            if not taken.any():
                return after
            if (taken == w.mask).all():
                return target
            w.split(target, taken, after)
            return SWITCH

        return masked

    def _exit(self, index: int, item: Instruction) -> Step:
        guard = item.guard

        def leave(w: "Warp") -> int | None:
            mask = w.mask
            if guard is not None:
                mask = mask & (~w.R[guard.index] if item.guard_negated else w.R[guard.index])
                if not mask.any():
                    return None
            w.pc = index + 1
            w.retire(mask)
            return FINISH

        return leave

    def _run_of_pure(self, start: int, full: bool) -> Step:
        run: list[Pure] = []
        for stop in range(start, len(self.lowered)):
            lowered = self.lowered[stop]
            if not isinstance(lowered, Pure) or (run and stop in self.entry.leaders):
                break
            run.append(lowered)
        stop = start + len(run)
        items = self.items[start:stop]
        self.lengths[start] = stop - start
        if full:
            kept = simplified(run, items, self.live[stop])
            return self._for_all_lanes(kept, start, stop, partial(self.full.__setitem__, start))
        masked = self._compile(["R = w.R; a = w.mask", *masked_lines(run, items)], start, stop)
        return self._unmasked_where_it_may(start, masked, run)

    def _kind(self, slot: int) -> tuple[str, int] | None:
        """Type of a slot's lanes, for scalar code."""
        registers = self.entry.registers
        name = registers[slot].store if slot < len(registers) else self.slots.keys[slot - len(registers)][-1]
        dtype = np.dtype(name)
        return (dtype.kind.upper(), dtype.itemsize) if dtype.kind in "bu" else None

    def _for_all_lanes(
        self, run: Run, start: int, stop: int, replace: Callable[[Step], None], divisible: bool = True
    ) -> Step:
        """A run as a vector at first, and on Python integers once that has turned out to be worth it: its results are
        equal in all lanes (those of ``%tid.x >> 5`` are, though ``%tid.x`` is not). ``replace`` changes the step.
        """
        lines = joined_lines([one for one, _ in run], [item for _, item in run], self.entry.registers, self.slots)
        vector = self._compile(["R = w.R", *lines], start, stop)
        # A move hands on the array itself, which has been looked at before.
        results = {slot for one, _ in run for slot, expression in one.outs if not SLOT.fullmatch(expression)}
        equal, tries = set[int](), 0

        def noting(w: "Warp") -> int | None:
            nonlocal tries
            vector(w)
            R, learning = w.R, tries < _TRIES
            for slot in results if learning else equal:
                R[slot] = value = same(R[slot])
                if learning and id(value) in KNOWN:
                    equal.add(slot)
            tries += 1
            if tries == _TRIES:
                replace(self._on_integers(run, start, stop, noting, divisible) if equal else vector)
            return stop

        return noting if results and len(run) <= _SCALAR else vector

    def _on_integers(self, run: Run, start: int, stop: int, vector: Step, divisible: bool) -> Step:
        """A run on Python integers where all it reads is equal in all lanes, part by part where only some of it is."""
        scalar = scalar_lines(run, self._kind)
        parts = independent(run) if divisible and len(run) <= _DIVISIBLE else [run]
        if scalar is None:
            return vector
        if len(parts) == 1:
            return self._compile(["R = w.R", *scalar], start, stop, vector)
        steps: list[Step] = []
        for k, part in enumerate(parts):
            steps.append(self._for_all_lanes(part, start, stop, partial(steps.__setitem__, k), divisible=False))

        def one_by_one(w: "Warp") -> int | None:
            for step in steps:
                step(w)
            return stop

        return self._compile(["R = w.R", *scalar], start, stop, one_by_one)

    def _unmasked_where_it_may(self, start: int, masked: Step, run: list[Pure]) -> Step:
        """A run for some of the lanes. Where no other lane reads what it writes, it may write for all of them."""
        writes = bits_of(slot for one in run for slot, _ in one.outs)
        live, full = self.live, self.full

        def step(w: "Warp") -> int | None:
            for group in w.groups:
                if live[group.pc] & writes:
                    return masked(w)
            return full[start](w)

        return step

    def granule(self, space: str) -> int:
        """Bytes that the race detector tells apart in ``shared`` or ``global`` memory: 4, or the narrowest access that
        may touch it.
        """
        others = {"shared", "global", "param", "local", "const"} - {space}
        widths = [4]
        for item in self.items:
            head, *mods = item.opcode.split(".")
            if head in {"ld", "st", "atom", "red"} and others.isdisjoint(mod.split("::")[0] for mod in mods):
                kind = TYPES.get(mods[-1])
                widths.append(4 if kind is None else kind.nbytes)
        return min(widths)

    def _compile(self, body: list[str], index: int, stop: int, other: Step | None = None) -> Step:
        """A step of statements; they may call ``other``."""
        source = "\n  ".join(["def make(other):\n def step(w):", *body, f"return {stop}\n return step"])
        scope: dict[str, Any] = {}
        code = compile(source, f"<{self.entry.name} from line {self.items[index].line}>", "exec")
        exec(code, self.namespace, scope)
        return scope["make"](other)


def base_namespace() -> dict[str, Any]:
    """Names that generated code may use."""
    from moegen.ptx import lanes_float, lanes_int, uniform

    names: dict[str, Any] = {name: getattr(lanes, name) for lanes in (lanes_float, lanes_int) for name in lanes.__all__}
    names["where"], names["concatenate"] = np.where, np.concatenate
    names["known"], names["lanes_b1"] = uniform.KNOWN.get, uniform.TRUTH
    names.update((f"lanes_{kind}", table) for kind, table in uniform.TABLES.items())
    for bits in (8, 16, 32, 64):
        names[f"U{bits // 8}"] = np.dtype(f"u{bits // 8}")
        names[f"I{bits // 8}"] = np.dtype(f"i{bits // 8}")
    names.update(F2=np.dtype("f2"), F4=np.dtype("f4"), F8=np.dtype("f8"), B1=np.dtype("?"))
    return names
