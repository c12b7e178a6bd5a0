"""cp.async with its groups, and what all asynchronous copies share: their place, completion and poison."""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx import groups
from moegen.ptx.asyncs import Operation
from moegen.ptx.dtypes import LANES, Mask
from moegen.ptx.emit import Effect, Emit, Lowered
from moegen.ptx.isa_mbarrier import lanes_by_address
from moegen.ptx.isa_memory import raise_fault, shared_groups
from moegen.ptx.kernel import BLOCK
from moegen.ptx.masks import lane_count
from moegen.ptx.mbarrier import Mbarrier
from moegen.ptx.memory import GlobalMemory, MemoryFault
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.state import Cta

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

#: Byte that in-flight destinations hold: NaN in every scale format, so that an early read shows.
POISON = 0xFF


class Site:
    """Where an asynchronous operation was issued, for findings that appear when it happens."""

    __slots__ = ("item", "w")

    def __init__(self, w: "Warp") -> None:
        self.w = w
        self.item = w.kernel.items[w.pc]

    def fault(self, check: Check, message: str, address: int = -1) -> None:
        """Reports a finding at the issuing instruction."""
        w = self.w
        name = w.kernel.entry.name
        w.cta.machine.report(
            check, message, kernel=name, item=self.item, cta=w.cta.index, warp=w.index, address=address
        )

    def memory(self, fault: MemoryFault) -> None:
        """Reports a memory fault."""
        self.fault(Check(fault.kind), fault.what, fault.address)


def check_running(cta: Cta, site: Site, what: str) -> None:
    """Reports an operation that reaches a CTA after its exit: its shared memory may be another one's by then."""
    if cta.warps and not cta.alive:
        site.fault(Check.ASYNC_EXIT, f"{what} of CTA {cta.index}, which has exited")


def deliver(cta: Cta, offset: int, amount: int, site: Site, ticket: Any) -> None:
    """complete_tx at a barrier of a CTA."""
    barrier: Mbarrier | None = cta.mbarriers.get(offset)
    check_running(cta, site, "a copy completes in shared memory")
    if barrier is None:
        site.fault(Check.MBARRIER, f"a copy completes on an mbarrier that is not initialised (CTA {cta.index})", offset)
        return
    if ticket is not None:
        ticket.arrive(cta, offset, barrier)
    barrier.complete_tx(amount)
    cta.machine.events += 1


def poison(cta: Cta, offset: int, count: int) -> None:
    """Marks the destination of an in-flight copy."""
    cta.shared.bytes(offset, count)[:] = POISON


def read_global(memory: GlobalMemory, address: int, count: int, ticket: Any) -> None:
    """Tells the race detector of an asynchronous read of global memory."""
    block = memory.find(address, count)
    ticket.global_range(block, address - block.origin, count, write=False)


# -- cp.async ----------------------------------------------------------------------------------------------------


@instruction(
    "cp.async.ca.shared{,::cta}.global{,.L2::64B,.L2::128B,.L2::256B}{,.L2::cache_hint}",
    "cp.async.cg.shared{,::cta}.global{,.L2::64B,.L2::128B,.L2::256B}{,.L2::cache_hint}",
)
def _cp_async(e: Emit) -> Lowered:
    dst, src, size = e.place(), e.place(), e.integer()
    if size not in (4, 8, 16) or (e.has("cg") and size != 16):
        raise e.fail(f"a copy of {size} bytes")
    policies = 1 if e.has("L2::cache_hint") else 0
    actual = e.src("u32") if e.remaining > policies else None
    if policies:
        e.src("b64")

    def run(w: "Warp", m: Mask) -> None:
        machine, site = w.cta.machine, Site(w)
        targets = dst.lanes(w).astype(np.uint64)
        sources = src.lanes(w).astype(np.uint64)
        lengths = np.full(LANES, size, np.uint32) if actual is None else w.R[actual]
        lanes = np.flatnonzero(m).tolist()
        pairs = [(int(targets[k]), int(sources[k]), int(lengths[k])) for k in lanes]
        for target, source, length in pairs:
            if target % size or source % size:
                site.fault(Check.MISALIGNED, f"cp.async of {size} bytes from {source:#x} to {target:#x}", target)
            if length > size:
                site.fault(Check.MISALIGNED, f"cp.async with a source size of {length} > {size}", source)
        parts = shared_groups(w, targets, m, "shared::cta")
        cta, offsets, _ = parts[0]
        places = offsets[m].astype(np.int64)
        try:
            for offset in (int(places.min()), int(places.max())):
                cta.shared.bytes(offset, size)
        except MemoryFault as fault:
            raise_fault(w, fault)
        for offset in places.tolist():
            poison(cta, offset, size)
        batch = groups.of(w.scratch, "cp.async").open
        batch.writes += 1
        ticket = machine.races.issue(w, "cp.async") if machine.races is not None else None
        if ticket is not None:
            batch.serial = ticket.clock_value

        def copy() -> None:
            try:
                for (_, source, length), offset in zip(pairs, places.tolist(), strict=True):
                    place = cta.shared.bytes(offset, size)
                    place[:] = 0
                    if length:
                        place[:length] = machine.memory.bytes(source, length)
                        if ticket is not None:
                            read_global(machine.memory, source, length, ticket)
            except MemoryFault as fault:
                site.memory(fault)
            if ticket is not None:
                ticket.write_lanes(cta, places, size)
            batch.writes -= 1

        machine.count_bytes("global read", sum(p[2] for p in pairs))
        machine.count_bytes("shared write", size * len(pairs))
        machine.engine.submit(("cp.async", w), Operation(copy))

    return e.effect(run)


@instruction("cp.async.commit_group")
def _cp_commit(e: Emit) -> Lowered:
    return e.effect(lambda w, m: groups.of(w.scratch, "cp.async").commit(m))


def wait_groups(e: Emit, kind: str, allowed: int, reads_only: bool) -> Effect:
    """A wait for all but the latest ``allowed`` groups."""

    def run(w: "Warp", m: Mask) -> int | None:
        mine = groups.of(w.scratch, kind)
        covered = mine.waited(m, allowed)
        if not groups.finished(covered, reads_only):
            w.wait = lambda: groups.finished(covered, reads_only)
            return BLOCK
        races = w.cta.machine.races
        if races is not None:
            serial = max((batch.serial for batch in covered), default=0)
            races.group_wait(w, kind, serial, reads_only)
        mine.trim()
        return None

    return e.effect(run)


@instruction("cp.async.wait_group")
def _cp_wait_group(e: Emit) -> Lowered:
    return wait_groups(e, "cp.async", e.integer(), False)


@instruction("cp.async.wait_all")
def _cp_wait_all(e: Emit) -> Lowered:
    inner = wait_groups(e, "cp.async", 0, False)

    def run(w: "Warp", m: Mask) -> int | None:
        mine = groups.of(w.scratch, "cp.async")
        if mine.open.writes:
            mine.commit(m)
        return inner.run(w, m)

    return Effect(run)


@instruction("cp.async.mbarrier.arrive{,.noinc}{,.shared,.shared::cta}.b64")
def _cp_mbarrier(e: Emit) -> Lowered:
    place, no_increment = e.place(), e.has("noinc")

    def run(w: "Warp", m: Mask) -> None:
        machine, site = w.cta.machine, Site(w)
        for address, lanes in lanes_by_address(w, place, m):
            cta, offset = w.cta.resolve(address)
            barrier = cta.mbarriers.get(offset)
            if barrier is None:
                site.fault(Check.MBARRIER, "cp.async arrives on an mbarrier that is not initialised", address)
                return
            count = lane_count(lanes)
            if not no_increment:
                barrier.pending += count
            ticket = machine.races.issue(w, "cp.async", advance=False) if machine.races is not None else None

            def arrive(
                at: tuple[Cta, int] = (cta, offset),
                barrier: Mbarrier = barrier,
                count: int = count,
                ticket: Any = ticket,
            ) -> None:
                if ticket is not None:
                    ticket.arrive(*at, barrier)
                if not barrier.arrive(count):
                    site.fault(Check.MBARRIER, f"{count} arrivals, {barrier.pending} expected", at[1])
                machine.events += 1

            machine.engine.submit(("cp.async", w), Operation(arrive))

    return e.effect(run)
