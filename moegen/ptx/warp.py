"""A warp: registers of 32 lanes, program counters under divergence, and the loop that runs it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.dtypes import ALL, LANES, Mask
from moegen.ptx.kernel import BLOCK, FINISH, SWITCH, YIELD
from moegen.ptx.options import Step

if TYPE_CHECKING:
    from moegen.ptx.kernel import Kernel
    from moegen.ptx.state import Cta

_EVERY = ALL.tobytes()


class Group:
    """Lanes that share a program counter, while they do not run."""

    __slots__ = ("mask", "pc", "stalled")

    def __init__(self, pc: int, mask: Mask, stalled: bool = False) -> None:
        self.pc = pc
        self.mask = mask
        self.stalled = stalled


class Warp:
    """One warp of a CTA.

    Attributes:
        R: one array of 32 lanes per register, then per constant slot. Arrays are never changed in place: a register is
            written by putting a new array, so arrays may be shared between slots.
        pc: instruction index of the lanes in ``mask``.
        mask: active lanes; the very object ``ALL`` while every lane is active.
        groups: the other live lanes, with their own program counters.
        live: lanes that have not exited.
        wait: when blocked, tells whether another try makes sense.
        counts: times that the step at each instruction index ran.
    """

    def __init__(self, kernel: "Kernel", cta: "Cta", index: int, threads: int) -> None:
        self.kernel = kernel
        self.cta = cta
        self.index = index
        self.pc = 0
        self.full_block = threads >= LANES
        self.mask: Mask = ALL if threads >= LANES else np.arange(LANES) < threads
        self.live = self.mask
        self.groups: list[Group] = []
        self.wait: Callable[[], bool] | None = None
        self.done = False
        self.turns = 0
        self.trace = cta.machine.options.trace is not None
        self.counts = np.zeros(len(kernel.items) + 1, np.int64).tolist()
        self.local = np.full((LANES, max(kernel.entry.local_size, 1)), 0xCD, np.uint8)
        self.scratch: dict[Any, Any] = {}
        self.R: list[Any] = list(cta.grid.registers)
        for slot, key in cta.grid.varying:
            self.R[slot] = cta.slot_value(key, self)

    def set(self, slot: int, value: Any, mask: Mask) -> None:
        """Writes a register where the mask is set."""
        self.R[slot] = value if mask is ALL else np.where(mask, value, self.R[slot])

    # -- divergence ---------------------------------------------------------------------------------------------

    def split(self, target: int, taken: Mask, after: int) -> None:
        """Sends the ``taken`` lanes of the active mask to ``target``, the rest on to ``after``; the lower pc runs."""
        rest = self.mask & ~taken
        if self.groups or target == after:
            self._suspend(target, taken)
            self._suspend(after, rest)
            self._resume()
        elif target < after:
            self.pc, self.mask = target, taken
            self.groups.append(Group(after, rest))
        else:
            self.pc, self.mask = after, rest
            self.groups.append(Group(target, taken))

    def scatter(self, targets: "list[tuple[int, Mask]]", after: int) -> None:
        """Sends lanes of the active mask to targets, the rest on to ``after``; the lowest pc runs."""
        rest = self.mask
        for target, lanes in targets:
            rest = rest & ~lanes
            if lanes.any():
                self._suspend(target, lanes)
        if rest.any():
            self._suspend(after, rest)
        self._resume()

    def _suspend(self, pc: int, mask: Mask, stalled: bool = False) -> None:
        for group in self.groups:
            if group.pc == pc:
                group.mask = group.mask | mask
                group.stalled = False
                return
        self.groups.append(Group(pc, mask, stalled))

    def _resume(self) -> bool:
        """Makes the runnable group with the lowest pc current; False when every group is stalled."""
        best = None
        for group in self.groups:
            if not group.stalled and (best is None or group.pc < best.pc):
                best = group
        if best is None:
            return False
        self.groups.remove(best)
        self.pc = best.pc
        self._activate(best.mask)
        return True

    def retire(self, mask: Mask) -> None:
        """Ends lanes; the warp is done when none is left."""
        self.live = self.live & ~mask
        rest = self.mask & ~mask
        if rest.any():
            self.mask = rest
            return
        for group in self.groups:
            group.stalled = False
        if self.groups:
            self._resume()
            return
        self.mask = rest
        self.done = True

    def _traced(self, code: list[Any]) -> list[Any]:
        """Steps that report themselves before they run."""
        follow = self.cta.machine.options.trace
        assert follow is not None

        def wrap(index: int) -> Any:
            def step(w: "Warp") -> int | None:
                for item in w.kernel.items[index : index + max(w.kernel.lengths[index], 1)]:
                    follow(Step(w.cta.index, w.index, item.line, int(w.mask.sum()), item.text))
                return code[index](w)

            return step

        return [wrap(index) for index in range(len(code))]

    # -- execution ----------------------------------------------------------------------------------------------

    def run(self, budget: int) -> int:
        """Runs until blocked, done, or about ``budget`` steps; returns the steps done."""
        counts = self.counts
        steps = 0
        if self.groups:
            self._rotate()
        while steps < budget and not self.done:
            code = self.kernel.full if self.mask is ALL else self.kernel.part
            if self.trace:
                code = self._traced(code)
            pc = self.pc
            signal: int | None = 0
            if not self.groups:
                while steps < budget:
                    counts[pc] += 1
                    steps += 1
                    self.pc = pc
                    signal = code[pc](self)
                    if signal is None:
                        pc += 1
                    elif signal >= 0:
                        pc = signal
                    else:
                        break
                else:
                    self.pc = pc
                    return steps
            else:
                pc, steps, signal = self._run_diverged(code, pc, steps, budget)
                if signal is None:
                    continue
            if signal == BLOCK:
                counts[pc] -= 1
                self.pc = pc
                if not self._stall(pc):
                    return steps
            elif signal == YIELD:
                self.pc = pc + 1
                self._rejoin()
                return steps
            elif signal not in (SWITCH, FINISH):
                raise AssertionError(signal)
        return steps

    def _run_diverged(self, code: list[Any], pc: int, steps: int, budget: int) -> tuple[int, int, int | None]:
        """Runs the current group until it meets another one; a signal of None means that groups were rearranged."""
        stops = [group.pc for group in self.groups]
        limit = min([group.pc for group in self.groups if not group.stalled], default=1 << 60)
        counts = self.counts
        while steps < budget:
            counts[pc] += 1
            steps += 1
            self.pc = pc
            signal = code[pc](self)
            if signal is None:
                pc += 1
            elif signal >= 0:
                pc = signal
            else:
                return pc, steps, signal
            if pc >= limit or pc in stops:
                break
        self.pc = pc
        self._rejoin()
        return pc, steps, None

    def _rejoin(self) -> None:
        groups = self.groups
        if len(groups) == 1 and groups[0].pc == self.pc:
            self._activate(groups.pop().mask | self.mask)
        elif groups:
            self._suspend(self.pc, self.mask)
            self._resume()

    def _activate(self, mask: Mask) -> None:
        self.mask = ALL if mask.tobytes() == _EVERY else mask

    def _stall(self, pc: int) -> bool:
        """The current group cannot go on; lets another one run. False when none can."""
        if not self.groups:
            return False
        self._suspend(pc, self.mask, stalled=True)
        if self._resume():
            self.wait = None
            return True
        # Nothing can run: keep the lowest group current so that a retry starts from it.
        for group in self.groups:
            group.stalled = False
        self._resume()
        machine = self.cta.machine
        seen = machine.events + machine.engine.done
        self.wait = lambda: machine.events + machine.engine.done != seen
        return False

    def _rotate(self) -> None:
        """At a slice's start under divergence: stalled groups may try again, and now and then a later one goes
        first.
        """
        self._suspend(self.pc, self.mask)
        for group in self.groups:
            group.stalled = False
        self.turns += 1
        if self.turns % 8 == 0:
            # Lanes that spin at a low pc must not starve those that they wait for.
            last = max(self.groups, key=lambda group: group.pc)
            self.groups.remove(last)
            self.pc = last.pc
            self._activate(last.mask)
            return
        self._resume()

    def where(self) -> list[tuple[int, Mask]]:
        """Program counters and masks of all live lanes, for reports."""
        return [(self.pc, self.mask), *((group.pc, group.mask) for group in self.groups)]
