"""tcgen05: tensor-memory allocation, loads, stores, copies from shared memory, commit and waits."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.asyncs import Operation
from moegen.ptx.descriptors import DescriptorError, SharedDescriptor, shared_descriptor
from moegen.ptx.dtypes import ALL, LANES, Mask
from moegen.ptx.emit import Emit, Lowered
from moegen.ptx.isa_copy import Site, check_running
from moegen.ptx.isa_memory import raise_fault, store_shared
from moegen.ptx.kernel import BLOCK
from moegen.ptx.masks import active_lanes, first_lane
from moegen.ptx.memory import LOW_MASK, MemoryFault, low_part
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.state import Cta
from moegen.ptx.tmem import TMEM_LANES

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp


def converged(w: "Warp", m: Mask, what: str) -> None:
    """Reports an aligned instruction that only some lanes execute."""
    if m is not ALL:
        w.cta.machine.fault(w, Check.CONVERGENCE, f"{what} with some lanes inactive")


def pair_of(w: "Warp", two: bool) -> list[Cta]:
    """CTAs that an instruction of a cta_group concerns; the even one first."""
    if not two:
        return [w.cta]
    ctas = w.cta.cluster.ctas
    base = w.cta.rank & ~1
    if base + 1 >= len(ctas):
        w.cta.machine.fault(w, Check.TMEM_ACCESS, "cta_group::2 in a cluster without CTA pairs")
    return [ctas[base], ctas[base + 1]]


def pipe_key(w: "Warp", two: bool) -> tuple[Any, ...]:
    """Queue of the tensor pipe that an instruction goes to."""
    return ("tensor", w.cta.cluster, w.cta.rank & ~1 if two else w.cta.rank)


# -- allocation --------------------------------------------------------------------------------------------------


@instruction("tcgen05.alloc.cta_group::{1,2}.sync.aligned{,.shared::cta}.b32")
def _alloc(e: Emit) -> Lowered:
    place, count = e.place(), e.src("u32")
    two = e.has("cta_group::2")

    def run(w: "Warp", m: Mask) -> int | None:
        converged(w, m, "tcgen05.alloc")
        columns = int(w.R[count][0])
        tmem = w.cta.tmem
        try:
            start = _allocate_pair(w, columns) if two else tmem.allocate(columns)
            if start is None:
                if w.wait is None:
                    w.wait = lambda: any((tmem.owner[s : s + columns] < 0).all() for s in range(0, 512, columns))
                return BLOCK
            races = w.cta.machine.races
            if races is not None and not two:
                races.tmem_alloc(w.cta, start, columns)
            addresses = low_part(place.lanes(w).astype(np.uint64))
            one = np.arange(LANES) == 0
            store_shared(w, addresses, 4, one, np.full(LANES, start, np.uint32), "shared::cta")
        except MemoryFault as fault:
            raise_fault(w, fault)
        w.cta.machine.events += 1
        return None

    return e.effect(run)


def _allocate_pair(w: "Warp", columns: int) -> int | None:
    """An allocation of a CTA pair happens in both at once, when both have come to it; None until then."""
    tmem = w.cta.tmem
    if tmem.granted is None:
        pair = [cta.tmem for cta in pair_of(w, True)]
        tmem.requested = columns
        if any(one.requested != columns for one in pair):
            w.wait = lambda: tmem.granted is not None or all(one.requested == columns for one in pair)
            return None
        starts = [one.allocate(columns) for one in pair]
        if None in starts:
            for one, start in zip(pair, starts, strict=True):
                if start is not None:
                    one.free(start, columns)
            return None
        races = w.cta.machine.races
        for one, start in zip(pair, starts, strict=True):
            one.granted, one.requested = start, 0
            if races is not None and start is not None:
                races.tmem_alloc(one.cta, start, columns)
        w.cta.machine.events += 1
    start, tmem.granted = tmem.granted, None
    return start


@instruction("tcgen05.dealloc.cta_group::{1,2}.sync.aligned.b32")
def _dealloc(e: Emit) -> Lowered:
    address, count = e.src("b32"), e.src("u32")

    def run(w: "Warp", m: Mask) -> None:
        converged(w, m, "tcgen05.dealloc")
        start, columns = int(w.R[address][0]), int(w.R[count][0])
        races = w.cta.machine.races
        if races is not None:
            races.tmem_free(w, w.cta, start & 0xFFFF, columns)
        try:
            w.cta.tmem.free(start, columns)
        except MemoryFault as fault:
            raise_fault(w, fault)
        w.cta.machine.events += 1

    return e.effect(run)


@instruction("tcgen05.relinquish_alloc_permit.cta_group::{1,2}.sync.aligned")
def _relinquish(e: Emit) -> Lowered:
    def run(w: "Warp", m: Mask) -> None:
        converged(w, m, "tcgen05.relinquish_alloc_permit")
        w.cta.tmem.permit = False

    return e.effect(run)


# -- ld, st ------------------------------------------------------------------------------------------------------


def fragment(shape: str, repeat: int) -> tuple[Any, Any, int]:
    """Lane and column of every register of a tensor-memory load: arrays [registers, 32 lanes], and columns covered."""
    t = np.arange(LANES)
    lanes, columns = [], []
    if shape == "32x32b":
        for j in range(repeat):
            lanes.append(t)
            columns.append(np.full(LANES, j))
        return np.array(lanes), np.array(columns), repeat
    width = {"16x128b": 4, "16x256b": 8}[shape]
    for j in range(repeat):
        if shape == "16x128b":
            parts = [(t // 4, t % 4), (t // 4 + 8, t % 4)]
        else:
            low = (t % 4) * 2
            parts = [(t // 4, low), (t // 4, low + 1), (t // 4 + 8, low), (t // 4 + 8, low + 1)]
        for lane, column in parts:
            lanes.append(lane)
            columns.append(column + width * j)
    return np.array(lanes), np.array(columns), width * repeat


_COUNTS = {"32x32b": 1, "16x128b": 2, "16x256b": 4}
_LD_SHAPES = (
    "{ld,st}.sync.aligned.32x32b.{x1,x2,x4,x8,x16,x32,x64,x128}",
    "{ld,st}.sync.aligned.16x128b.{x1,x2,x4,x8,x16,x32,x64}",
    "{ld,st}.sync.aligned.16x256b.{x1,x2,x4,x8,x16,x32}",
)


def _window(w: "Warp", address: int, shape: str, columns: int) -> tuple[int, int]:
    """First lane and column of an access; reports lanes that this warp may not touch and columns not allocated."""
    lane, column = address >> 16, address & 0xFFFF
    base = 32 * (w.index % 4)
    allowed = {base} if shape == "32x32b" else {base, base + 16}
    if lane not in allowed:
        message = f"warp {w.index} accesses tensor-memory lane {lane}; it may use lanes {base} to {base + 31}"
        w.cta.machine.fault(w, Check.TMEM_ACCESS, message, address=address)
    try:
        w.cta.tmem.check(column, columns)
    except MemoryFault as fault:
        raise_fault(w, fault)
    return lane, column


@instruction(*[f"tcgen05.{pattern}.b32" for pattern in _LD_SHAPES])
def _load_store(e: Emit) -> Lowered:
    is_load, shape, repeat = e.mods[1] == "ld", e.mods[4], int(e.mods[5][1:])
    count = _COUNTS[shape] * repeat
    slots = e.dests("b32", count) if is_load else []
    place = e.place()
    if not is_load:
        slots = e.sources("b32", count)
    lanes, columns, width = fragment(shape, repeat)
    plain = shape == "32x32b"

    def run(w: "Warp", m: Mask) -> None:
        converged(w, m, "tcgen05.ld" if is_load else "tcgen05.st")
        address = place.lane(w, 0)
        lane, column = _window(w, address, shape, width)
        data = w.cta.tmem.data
        races = w.cta.machine.races
        w.cta.machine.count_bytes("tensor read" if is_load else "tensor write", 4 * LANES * count)
        if is_load:
            if plain:
                block = data[lane : lane + LANES, column : column + repeat].T.copy()
            else:
                block = data[lane + lanes, column + columns]
            if races is not None:
                races.tmem_load(w, lane // 32, column, width)
            R = w.R
            for k, slot in enumerate(slots):
                R[slot] = block[k]
            return
        if races is not None:
            races.tmem_store(w, lane // 32, column, width)
        for k, slot in enumerate(slots):
            data[lane + lanes[k], column + columns[k]] = w.R[slot]

    return e.effect(run)


@instruction("tcgen05.wait::{ld,st}.sync.aligned")
def _wait(e: Emit) -> Lowered:
    kind = e.mods[1].split("@")[1]

    def run(w: "Warp", m: Mask) -> None:
        converged(w, m, "tcgen05.wait")
        races = w.cta.machine.races
        if races is not None:
            races.tmem_wait(w, kind)

    return e.effect(run)


@instruction("tcgen05.fence::{before_thread_sync,after_thread_sync}")
def _fence(e: Emit) -> Lowered:
    return e.effect(lambda w, m: None)


# -- cp ----------------------------------------------------------------------------------------------------------


def descriptor_at(w: "Warp", bits: int) -> SharedDescriptor:
    """Decodes a matrix descriptor; reports one that is not legal."""
    try:
        return shared_descriptor(bits, blackwell=True)
    except DescriptorError as error:
        w.cta.machine.fault(w, Check.DESCRIPTOR, error.what)
        raise


def shared_chunks(cta: Cta, chunks: Any, site: Site) -> Any:
    """16-byte chunks of shared memory (numbers of any shape), as u8 [..., 16]."""
    try:
        found = cta.shared.views[16].take(chunks)
    except IndexError:
        highest = 16 * int(chunks.max())
        site.fault(Check.OUT_OF_BOUNDS, f"a matrix descriptor reaches {highest:#x}", highest)
        raise
    return found.view(np.uint8).reshape(*chunks.shape, 16)


@lru_cache(maxsize=1024)
def _copied_chunks(d: SharedDescriptor) -> Any:
    """Numbers of the chunks of 32 rows, in groups of eight."""
    row = np.arange(32, dtype=np.int64)
    chunks = (d.start + row // 8 * d.stride + row % 8 * 16) >> 4
    chunks.flags.writeable = False
    return chunks


@instruction("tcgen05.cp.cta_group::{1,2}.32x128b.warpx4")
def _cp(e: Emit) -> Lowered:
    place, descriptor = e.place(), e.src("b64")
    two = e.has("cta_group::2")

    def run(w: "Warp", m: Mask) -> None:
        machine, site, key = w.cta.machine, Site(w), pipe_key(w, two)
        lane = first_lane(m)
        column = place.lane(w, lane) & 0xFFFF
        d = descriptor_at(w, w.R[descriptor].item(lane))
        if d.span:
            machine.fault(w, Check.DESCRIPTOR, "tcgen05.cp of a swizzled matrix is not implemented")
        chunks = _copied_chunks(d)
        ctas = pair_of(w, two)
        for cta in ctas:
            try:
                cta.tmem.check(column, 4)
            except MemoryFault as fault:
                raise_fault(w, fault)
        ticket = machine.races.issue(w, "tensor", pipe=key) if machine.races is not None else None

        def copy() -> None:
            for cta in ctas:
                words = shared_chunks(cta, chunks, site).view(np.uint32).reshape(32, 4)
                cta.tmem.data[:, column : column + 4].reshape(4, 32, 4)[:] = words
                if ticket is not None:
                    ticket.read_chunks(cta, chunks, Check.PROXY_FENCE_OPERAND)
                    ticket.tmem_write(cta, TMEM_LANES, column, 4)

        machine.count_bytes("shared read", 512 * len(ctas))
        machine.engine.submit(key, Operation(copy, tensor=True))

    return e.effect(run)


# -- commit ------------------------------------------------------------------------------------------------------


@instruction(
    "tcgen05.commit.cta_group::{1,2}.mbarrier::arrive::one{,.shared::cluster}.b64",
    "tcgen05.commit.cta_group::{1,2}.mbarrier::arrive::one{,.shared::cluster}.multicast::cluster.b64",
)
def _commit(e: Emit) -> Lowered:
    place = e.place()
    mask_slot = e.src("b16") if e.has("multicast::cluster") else None
    two = e.has("cta_group::2")

    def run(w: "Warp", m: Mask) -> None:
        machine, site = w.cta.machine, Site(w)
        for lane in active_lanes(m):
            address = place.lane(w, lane) & LOW_MASK
            try:
                cta, offset = w.cta.resolve(address)
            except MemoryFault as fault:
                raise_fault(w, fault)
                return
            targets = [cta]
            if mask_slot is not None:
                mask = int(w.R[mask_slot][lane])
                cluster = w.cta.cluster
                if mask >> cluster.size:
                    site.fault(Check.MBARRIER, f"multicast mask {mask:#x} in a cluster of {cluster.size}")
                targets = [cluster.ctas[k] for k in range(cluster.size) if mask >> k & 1]
            ticket = machine.races.issue(w, "tensor", pipe=pipe_key(w, two), advance=False) if machine.races else None
            machine.engine.submit(pipe_key(w, two), Operation(_arrival(targets, offset, site, ticket), tensor=True))

    return e.effect(run)


def _arrival(targets: list[Cta], offset: int, site: Site, ticket: Any) -> Any:
    def arrive() -> None:
        for cta in targets:
            barrier = cta.mbarriers.get(offset)
            check_running(cta, site, "a commit arrives on an mbarrier")
            if barrier is None:
                site.fault(Check.MBARRIER, f"a commit arrives on no mbarrier in CTA {cta.index}", offset)
                return
            if ticket is not None:
                ticket.arrive(cta, offset, barrier)
            if not barrier.arrive(1):
                site.fault(
                    Check.MBARRIER, f"a commit arrives on an mbarrier of CTA {cta.index} that expects none", offset
                )
            cta.machine.events += 1

    return arrive
