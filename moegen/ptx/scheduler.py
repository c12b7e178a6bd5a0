"""Runs grids: which warp goes next, when asynchronous work happens, and what a deadlock looks like."""

from typing import TYPE_CHECKING

from moegen.ptx.isa_barrier import cluster_progress
from moegen.ptx.report import Check
from moegen.ptx.state import Cluster, Cta, Grid, Machine
from moegen.ptx.warp import Warp

if TYPE_CHECKING:
    from moegen.ptx.program import Instruction

#: Rounds in which every waiting warp timed out and nothing else happened, before a deadlock is reported.
_IDLE_ROUNDS = 4


class Scheduler:
    """Runs one or more grids of one machine to completion.

    Grids run in order; a programmatic dependent may start as soon as every CTA of its primary has triggered or exited.
    """

    def __init__(self, machine: Machine, grids: list[Grid]) -> None:
        self.machine = machine
        self.waiting = list(grids)
        self.active: list[Grid] = []
        self.warps: list[Warp] = []
        self.idle = 0
        self.seen = -1

    def run(self) -> None:
        """Runs everything.

        Raises:
            ExecutionError: a fatal finding, such as a deadlock.
        """
        options, machine, rng = self.machine.options, self.machine, self.machine.rng
        self._admit()
        while self.warps or self.waiting:
            runnable = [w for w in self.warps if w.wait is None or w.wait()]
            if not runnable:
                if not machine.engine.step():
                    self._stuck()
                continue
            warp = runnable[0] if len(runnable) == 1 else rng.choice(runnable)
            warp.wait = None
            budget = options.slice_steps if len(runnable) == 1 else rng.randint(1, options.slice_steps)
            machine.steps += warp.run(budget)
            if warp.done:
                self._retire(warp)
            machine.engine.maybe()
            if machine.steps > options.max_steps:
                machine.fault(warp, Check.STEP_LIMIT, f"more than {options.max_steps} steps")
        while machine.engine.step():
            pass

    # -- grids and CTAs -----------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Starts clusters while there is room, and grids whose turn has come."""
        limit = self.machine.options.resident_clusters
        while True:
            started = False
            for grid in self.active:
                while grid.queue and (limit == 0 or len(grid.running) < limit):
                    cluster = Cluster(grid, grid.cluster_shape, grid.queue.pop())
                    grid.running.append(cluster)
                    for cta in cluster.ctas:
                        self.warps.extend(cta.warps)
                    if self.machine.races is not None:
                        self.machine.races.start(cluster)
                    started = True
            if self.waiting and self._may_start(self.waiting[0]):
                grid = self.waiting.pop(0)
                grid.primary = self.active[-1] if self.active and grid.programmatic else None
                self.active.append(grid)
                continue
            if not started:
                return

    def _may_start(self, grid: Grid) -> bool:
        if not self.active:
            return True
        before = self.active[-1]
        if before.complete:
            return True
        # Two grids of a chain run at a time: a dependent's own dependent waits until the first has completed.
        alone = before.primary is None or before.primary.complete
        early = grid.programmatic and self.machine.options.early_dependents and alone
        return early and not before.queue and before.triggered_all()

    def _retire(self, warp: Warp) -> None:
        self.warps.remove(warp)
        self.machine.events += 1
        cta = warp.cta
        cta.grid.add_counts(warp)
        cta.alive -= 1
        cluster = cta.cluster
        if cluster.size > 1 or cluster.arrived:
            cluster_progress(cluster)
        if cta.alive == 0:
            self._check_exit(cta)
        if all(c.alive == 0 for c in cluster.ctas):
            # Asynchronous work of the cluster still counts: it is drained before its memory goes.
            while self.machine.engine.step():
                pass
            for c in cluster.ctas:
                self._check_leak(c)
            grid = cta.grid
            grid.running.remove(cluster)
            if self.machine.races is not None:
                self.machine.races.stop(cluster)
            grid.finished += cluster.size
            if grid.complete and grid in self.active:
                self.active = [g for g in self.active if not g.complete]
        self._admit()

    def _check_leak(self, cta: Cta) -> None:
        if cta.tmem.sizes:
            columns = sum(cta.tmem.sizes.values())
            self._at_exit(cta, Check.TMEM_LEAK, f"{columns} tensor-memory columns are still allocated at exit")

    def _check_exit(self, cta: Cta) -> None:
        for number, barrier in cta.barriers.items():
            if barrier.arrived:
                message = f"barrier {number} has {barrier.arrived} of {barrier.expected} arrivals at exit"
                self._at_exit(cta, Check.ASYNC_EXIT, message)
        for w in cta.warps:
            bulk = w.scratch.get("bulk")
            if bulk is not None and bulk.reading:
                self._at_exit(cta, Check.ASYNC_EXIT, f"warp {w.index} exits while bulk copies still read its memory")

    def _at_exit(self, cta: Cta, check: Check, message: str) -> None:
        self.machine.report(check, message, kernel=cta.grid.kernel.entry.name, cta=cta.index)

    # -- no progress --------------------------------------------------------------------------------------------

    def _stuck(self) -> None:
        """Nothing can run: lets timed waits give up; reports a deadlock when that does not help."""
        marker = self.machine.events + self.machine.engine.done
        self.idle = self.idle + 1 if marker == self.seen else 0
        self.seen = marker
        expired = [w for w in self.warps if w.scratch.get("may_expire")]
        if self.idle > _IDLE_ROUNDS or not expired:
            self._deadlock()
        for w in expired:
            w.scratch["expired"] = True
            w.wait = None

    def _deadlock(self) -> None:
        lines = []
        for w in self.warps:
            for pc, mask in w.where():
                item: Instruction | None = w.kernel.items[pc] if pc < len(w.kernel.items) else None
                text = f"line {item.line}: {item.text}" if item else "end"
                lanes = "" if mask.all() else f" ({int(mask.sum())} lanes)"
                lines.append(f"  CTA {w.cta.index} warp {w.index}{lanes}: {text}")
        shown = "\n".join(lines[:40]) + (f"\n  and {len(lines) - 40} more" if len(lines) > 40 else "")
        first = self.warps[0]
        name = first.kernel.entry.name
        message = f"no warp can go on; waiting:\n{shown}"
        self.machine.report(Check.DEADLOCK, message, kernel=name, cta=first.cta.index, warp=first.index)
