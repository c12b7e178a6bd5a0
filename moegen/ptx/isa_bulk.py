"""Bulk copies without tensor maps: into shared memory, within a cluster, to global memory, and their groups."""

from typing import TYPE_CHECKING, Any

from moegen.ptx import groups
from moegen.ptx.asyncs import Operation
from moegen.ptx.dtypes import TYPES, Mask
from moegen.ptx.emit import Emit, Lowered, Pure
from moegen.ptx.isa_atomic import combine
from moegen.ptx.isa_copy import Site, deliver, poison, read_global, wait_groups
from moegen.ptx.isa_memory import raise_fault
from moegen.ptx.masks import active_lanes
from moegen.ptx.memory import LOW_MASK, MemoryFault
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.state import Cta

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp


def bulk_load_targets(w: "Warp", destination: int, mask: int | None) -> list[tuple[Cta, int]]:
    """CTAs and offsets that a (multicast) copy into shared memory writes."""
    cta, offset = w.cta.resolve(destination)
    if mask is None:
        return [(cta, offset)]
    cluster = w.cta.cluster
    chosen = [k for k in range(16) if mask >> k & 1]
    if any(k >= cluster.size for k in chosen):
        raise MemoryFault("out-of-bounds", f"multicast mask {mask:#x} in a cluster of {cluster.size}", mask)
    return [(cluster.ctas[k], offset) for k in chosen]


@instruction(
    "cp.async.bulk.shared::{cluster,cta}.global.mbarrier::complete_tx::bytes{,.multicast::cluster}{,.L2::cache_hint}",
)
def _bulk_load(e: Emit) -> Lowered:
    dst, src, size, bar = e.place(), e.place(), e.src("u32"), e.place()
    mask_slot = e.src("b16") if e.has("multicast::cluster") else None
    if e.has("L2::cache_hint"):
        e.src("b64")

    def run(w: "Warp", m: Mask) -> None:
        for lane in active_lanes(m):
            _one_bulk_load(
                w,
                dst.lane(w, lane) & LOW_MASK,
                src.lane(w, lane),
                int(w.R[size][lane]),
                bar.lane(w, lane) & LOW_MASK,
                None if mask_slot is None else int(w.R[mask_slot][lane]),
            )

    return e.effect(run)


def _check_bulk(site: Site, size: int, *addresses: int) -> None:
    if size % 16 or any(a % 16 for a in addresses):
        shown = ", ".join(f"{a:#x}" for a in addresses)
        site.fault(
            Check.MISALIGNED, f"a bulk copy of {size} bytes at {shown}: multiples of 16 are needed", addresses[0]
        )


def _one_bulk_load(w: "Warp", destination: int, source: int, size: int, barrier: int, mask: int | None) -> None:
    machine, site = w.cta.machine, Site(w)
    _check_bulk(site, size, destination, source)
    try:
        targets = bulk_load_targets(w, destination, mask)
        _, bar_offset = w.cta.resolve(barrier)
        for cta, offset in targets:
            poison(cta, offset, size)
    except MemoryFault as fault:
        raise_fault(w, fault)
        return
    home = w.cta.resolve(barrier)[0]
    ticket = machine.races.issue(w, "tma") if machine.races is not None else None

    def copy() -> None:
        try:
            data = machine.memory.bytes(source, size)
            for cta, offset in targets:
                cta.shared.bytes(offset, size)[:] = data
                goal = home if mask is None else cta
                if ticket is not None:
                    ticket.at_barrier(goal, bar_offset)
                    read_global(machine.memory, source, size, ticket)
                    ticket.write_range(cta, offset, size)
                deliver(goal, bar_offset, size, site, ticket)
        except MemoryFault as fault:
            site.memory(fault)

    machine.count_bytes("global read", size)
    machine.count_bytes("shared write", size * len(targets))
    machine.engine.submit(("bulk", machine.next_serial()), Operation(copy))


@instruction("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes")
def _bulk_to_cluster(e: Emit) -> Lowered:
    dst, src, size, bar = e.place(), e.place(), e.src("u32"), e.place()

    def run(w: "Warp", m: Mask) -> None:
        for lane in active_lanes(m):
            places = [p.lane(w, lane) & LOW_MASK for p in (dst, src, bar)]
            _one_bulk_to_cluster(w, places, int(w.R[size][lane]))

    return e.effect(run)


def _one_bulk_to_cluster(w: "Warp", places: list[int], amount: int) -> None:
    machine, site = w.cta.machine, Site(w)
    _check_bulk(site, amount, *places[:2])
    try:
        (to, to_offset), (source, from_offset), (home, bar_offset) = (w.cta.resolve(a) for a in places)
        poison(to, to_offset, amount)
    except MemoryFault as fault:
        raise_fault(w, fault)
        return
    ticket = machine.races.issue(w, "tma") if machine.races is not None else None

    def copy() -> None:
        to.shared.bytes(to_offset, amount)[:] = source.shared.bytes(from_offset, amount)
        if ticket is not None:
            ticket.at_barrier(home, bar_offset)
            ticket.read_range(source, from_offset, amount, Check.PROXY_FENCE)
            ticket.write_range(to, to_offset, amount)
        deliver(home, bar_offset, amount, site, ticket)

    machine.engine.submit(("bulk", machine.next_serial()), Operation(copy))


def submit_store(w: "Warp", read: Any, write: Any, ticket: Any) -> None:
    """A bulk operation that reads shared memory and later writes global memory, tracked by bulk groups.

    Args:
        read: returns the data (and does the race detector's reads).
        write: takes the data.
    """
    machine = w.cta.machine
    batch = groups.of(w.scratch, "bulk").open
    batch.reads += 1
    batch.writes += 1
    if ticket is not None:
        batch.serial = ticket.clock_value
    key = ("bulk", machine.next_serial())

    def first() -> None:
        data = read()
        batch.reads -= 1

        def second() -> None:
            write(data)
            batch.writes -= 1
            machine.events += 1

        machine.engine.submit(key, Operation(second))

    machine.engine.submit(key, Operation(first))


@instruction(
    "cp.async.bulk.global.shared::cta.bulk_group{,.L2::cache_hint}",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group{,.L2::cache_hint}.{add,min,max}.{u32,s32,u64,s64}",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group{,.L2::cache_hint}.{inc,dec}.u32",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group{,.L2::cache_hint}.{and,or,xor}.{b32,b64}",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group{,.L2::cache_hint}.add.{f32,f64}",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group{,.L2::cache_hint}.add.noftz.{f16,bf16}",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group{,.L2::cache_hint}.{min,max}.{f16,bf16}",
)
def _bulk_store(e: Emit) -> Lowered:
    dst, src, size = e.place(), e.place(), e.src("u32")
    if e.has("L2::cache_hint"):
        e.src("b64")
    reduce = e.mods[1] == "reduce"
    kind = TYPES[e.mods[-1]] if reduce else None
    name = next((m for m in e.mods if m in {"add", "min", "max", "inc", "dec", "and", "or", "xor"}), "")
    op: Any = combine(name, kind) if kind is not None else None

    def run(w: "Warp", m: Mask) -> None:
        machine = w.cta.machine
        for lane in active_lanes(m):
            site = Site(w)
            amount, target = int(w.R[size][lane]), dst.lane(w, lane)
            source = src.lane(w, lane) & LOW_MASK
            _check_bulk(site, amount, target, source)
            try:
                cta, offset = w.cta.resolve(source)
                cta.shared.bytes(offset, amount)
            except MemoryFault as fault:
                raise_fault(w, fault)
                return
            ticket = machine.races.issue(w, "bulk") if machine.races is not None else None

            def read(cta: Cta = cta, offset: int = offset, amount: int = amount, ticket: Any = ticket) -> Any:
                if ticket is not None:
                    ticket.read_range(cta, offset, amount, Check.PROXY_FENCE)
                return cta.shared.bytes(offset, amount).copy()

            def write(
                data: Any, target: int = target, amount: int = amount, site: Site = site, ticket: Any = ticket
            ) -> None:
                try:
                    block = machine.memory.find(target, max(amount, 1))
                    place = block.bytes(target, amount)
                except MemoryFault as fault:
                    site.memory(fault)
                    return
                if ticket is not None and amount:
                    ticket.global_range(block, target - block.origin, amount, write=True, reduce=op is not None)
                if op is None or kind is None:
                    place[:] = data
                else:
                    cells = place.view(kind.store)
                    cells[:] = op(cells, data.view(kind.store))

            submit_store(w, read, write, ticket)
            machine.count_bytes("global reduce" if reduce else "global write", amount)
            machine.count_bytes("shared read", amount)

    return e.effect(run)


@instruction("cp.async.bulk.commit_group")
def _bulk_commit(e: Emit) -> Lowered:
    return e.effect(lambda w, m: groups.of(w.scratch, "bulk").commit(m))


@instruction("cp.async.bulk.wait_group{,.read}")
def _bulk_wait(e: Emit) -> Lowered:
    return wait_groups(e, "bulk", e.integer(), e.has("read"))


@instruction("cp.async.bulk.prefetch.L2.global{,.L2::cache_hint}")
def _bulk_prefetch(e: Emit) -> Lowered:
    e.place()
    e.src("u32")
    if e.has("L2::cache_hint"):
        e.src("b64")
    e.done()
    return Pure([])
