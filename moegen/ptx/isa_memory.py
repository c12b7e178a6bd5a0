"""Loads, stores and prefetches in every state space."""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.dtypes import LANES, Mask, PtxType
from moegen.ptx.emit import Emit, Lowered, Order, Pure
from moegen.ptx.masks import common_value, first_lane, lane_count
from moegen.ptx.memory import (
    RANK_SHIFT,
    SHARED_WINDOW,
    Block,
    MemoryFault,
    check_aligned,
    element,
    gather_block,
    gather_global,
    low_part,
    scatter_block,
    scatter_global,
    window,
)
from moegen.ptx.place import Place
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.state import Cta
from moegen.ptx.uniform import KNOWN, same

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

_TYPES = "{b8,u8,s8,b16,u16,s16,b32,u32,s32,b64,u64,s64,f32,f64,b128}"
_CACHE = "{,.ca,.cg,.cs,.lu,.cv,.nc}"
_SCOPES = ("cta", "cluster", "gpu", "sys")


def _ordered(strong: str) -> str:
    """Memory-order modifiers of loads (``acquire``) or stores (``release``), as a brace pattern."""
    named = [f".{order}.{scope}" for order in ("relaxed", strong) for scope in _SCOPES]
    return "{" + ",".join(["", ".weak", ".volatile", ".mmio.relaxed.sys", *named]) + "}"


_ORDER, _STORE_ORDER = _ordered("acquire"), _ordered("release")
_HINT = "{.L1::evict_normal,.L1::evict_unchanged,.L1::evict_first,.L1::evict_last,.L1::no_allocate}"
_EVICT = "{," + _HINT[1:]
_L2 = "{,.L2::cache_hint,.L2::64B,.L2::128B,.L2::256B}"
_VEC = "{,.v2,.v4,.v8}"
_SPACE = "{,.global,.shared,.shared::cta,.shared::cluster,.local,.const,.param,.param::entry}"


def raise_fault(w: "Warp", fault: MemoryFault) -> None:
    """Turns a memory fault into a report at the warp's current instruction."""
    lane = -1 if fault.lane is None else fault.lane
    w.cta.machine.fault(w, Check(fault.kind), fault.what, lane, fault.address)


def first_bad(addresses: Any, width: int, size: int, mask: Mask) -> tuple[int, int]:
    """Lane and address of the first active access outside ``size`` bytes."""
    wrong = mask & (addresses.astype(np.uint64) + np.uint64(width) > size)
    lane = int(wrong.argmax())
    return lane, int(addresses[lane])


def note_global(w: "Warp", space: str, addresses: Any, width: int, mask: Mask, order: Order, write: bool) -> None:
    """Tells the race detector of a load or store that may touch global memory."""
    races = w.cta.machine.races
    if races is None or space not in {"global", "generic"}:
        return
    wide = addresses.astype(np.uint64)
    if space == "generic":
        mask = mask & (wide < np.uint64(SHARED_WINDOW))
        if not mask.any():
            return
    if not write:
        races.memory.before(w, wide[mask], order)
    races.memory.lanes(w, wide, width, mask, order.reach, write)
    if write:
        races.memory.after(w, wide[mask], order, adds=False)


# -- one space at a time -----------------------------------------------------------------------------------------


def shared_groups(w: "Warp", addresses: Any, mask: Mask, space: str) -> list[tuple[Cta, Any, Mask]]:
    """Splits shared-window addresses by CTA: (CTA, offsets as u64 lanes, mask)."""
    cta = w.cta
    wide = addresses.astype(np.uint64)
    if cta.cluster.size == 1:
        return [(cta, wide, mask)]
    ranks = wide >> np.uint64(RANK_SHIFT)
    offsets = wide & np.uint64((1 << RANK_SHIFT) - 1)
    common = common_value(ranks, mask)
    if common is not None:
        return [(cta.resolve(common << RANK_SHIFT, space)[0], offsets, mask)]
    groups = []
    for rank in np.unique(ranks[mask]).tolist():
        target, _ = cta.resolve(rank << RANK_SHIFT, space)
        groups.append((target, offsets, mask & (ranks == rank)))
    return groups


def load_shared(w: "Warp", addresses: Any, width: int, mask: Mask, space: str) -> Any:
    """Elements of ``width`` bytes at shared addresses."""
    out = None
    check_aligned(addresses, width, mask)
    for cta, offsets, part in shared_groups(w, addresses, mask, space):
        races = w.cta.machine.races
        try:
            got = gather_block(cta.shared, offsets, width, part)
        except IndexError:
            lane, address = first_bad(offsets, width, cta.shared.size, part)
            raise MemoryFault("out-of-bounds", f"shared load of {width} bytes", address, lane) from None
        if races is not None:
            races.shared_access(w, cta, offsets, width, part, write=False)
        out = got if out is None else np.where(part, got, out)
    return out


def store_shared(w: "Warp", addresses: Any, width: int, mask: Mask, values: Any, space: str) -> None:
    """Stores elements of ``width`` bytes at shared addresses."""
    check_aligned(addresses, width, mask)
    for cta, offsets, part in shared_groups(w, addresses, mask, space):
        try:
            scatter_block(cta.shared, offsets, width, part, values)
        except IndexError:
            lane, address = first_bad(offsets, width, cta.shared.size, part)
            raise MemoryFault("out-of-bounds", f"shared store of {width} bytes", address, lane) from None
        races = w.cta.machine.races
        if races is not None:
            races.shared_access(w, cta, offsets, width, part, write=True)


def _local_index(w: "Warp", addresses: Any, width: int, mask: Mask) -> tuple[Block, Any]:
    size = w.local.shape[1]
    limit = w.kernel.entry.local_size
    offsets = low_part(addresses.astype(np.uint64))
    wrong = mask & (offsets + np.uint64(width) > limit)
    if wrong.any():
        lane = int(wrong.argmax())
        raise MemoryFault("out-of-bounds", f"local access of {width} bytes", int(offsets[lane]), lane)
    pitch = (size + 31) // 32 * 32
    block = w.scratch.get("local")
    if block is None:
        data = np.full(LANES * pitch, 0xCD, np.uint8)
        block = w.scratch["local"] = Block(0, LANES * pitch, "local memory", data)
    return block, offsets + np.arange(LANES, dtype=np.uint64) * np.uint64(pitch)


def load(w: "Warp", space: str, addresses: Any, width: int, mask: Mask) -> Any:
    """Elements of ``width`` bytes in a state space (``generic`` looks at the window).

    Raises:
        MemoryFault: outside the space, or misaligned.
    """
    if space == "generic":
        return _load_generic(w, addresses, width, mask)
    if space == "global" or space == "const":
        return gather_global(w.cta.machine.memory, addresses, width, mask)
    if space.startswith("shared"):
        return load_shared(w, addresses, width, mask, space)
    if space == "local":
        check_aligned(addresses, width, mask)
        block, index = _local_index(w, addresses, width, mask)
        return gather_block(block, index, width, mask)
    offsets = low_part(addresses)
    check_aligned(offsets, width, mask)
    try:
        return gather_block(w.cta.grid.param_block, offsets, width, mask)
    except IndexError:
        lane, address = first_bad(offsets, width, w.cta.grid.param_block.size, mask)
        raise MemoryFault("out-of-bounds", "parameter load", address, lane) from None


def _windows(addresses: Any, mask: Mask) -> list[tuple[str, Mask]]:
    first = first_lane(mask)
    tops = addresses >> np.uint64(56)
    same = tops == tops[first]
    if (same | ~mask).all():
        return [(window(int(addresses[first])), mask)]
    return [(window(int(top) << 56), mask & (tops == top)) for top in np.unique(tops[mask])]


def _load_generic(w: "Warp", addresses: Any, width: int, mask: Mask) -> Any:
    out = None
    for space, part in _windows(addresses, mask):
        where = addresses if space == "global" else low_part(addresses)
        got = load(w, "shared::cluster" if space == "shared" else space, where, width, part)
        out = got if out is None else np.where(part, got, out)
    return out


def store(w: "Warp", space: str, addresses: Any, width: int, mask: Mask, values: Any) -> None:
    """Stores elements of ``width`` bytes in a state space.

    Raises:
        MemoryFault: outside the space, misaligned, or not writable.
    """
    if space == "generic":
        for name, part in _windows(addresses, mask):
            where = addresses if name == "global" else low_part(addresses)
            store(w, "shared::cluster" if name == "shared" else name, where, width, part, values)
    elif space == "global":
        scatter_global(w.cta.machine.memory, addresses, width, mask, values)
        w.cta.machine.events += 1
    elif space.startswith("shared"):
        store_shared(w, addresses, width, mask, values, space)
    elif space == "local":
        check_aligned(addresses, width, mask)
        block, index = _local_index(w, addresses, width, mask)
        scatter_block(block, index, width, mask, values)
    else:
        raise MemoryFault("out-of-bounds", f"a store to {space} memory", int(addresses[first_lane(mask)]))


# -- ld ----------------------------------------------------------------------------------------------------------


def space_of(e: Emit) -> str:
    """State space of an access, from its modifiers."""
    for mod in e.mods[1:]:
        name = mod.replace("@", "::")
        if name in {"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry"}:
            return name
    return "generic"


def _vector_length(e: Emit) -> int:
    return next((int(m[1:]) for m in e.mods if m in {"v2", "v4", "v8"}), 1)


def _static_param(e: Emit, kind: PtxType, dests: list[int], place: Place) -> Lowered:
    """A load at a fixed parameter offset: one value for all lanes."""

    width, limit = kind.nbytes, e.entry.param_bytes

    def run(w: "Warp", m: Mask) -> None:
        for k, dst in enumerate(dests):
            start = place.offset + k * width
            if start + width > limit:
                raise_fault(w, MemoryFault("out-of-bounds", f"parameter load at {start}", start))
            value = w.cta.grid.params[start : start + width].view(kind.store)
            w.set(dst, same(widen(np.repeat(value, LANES), kind, _width(e, dst, kind))), m)

    return e.effect(run)


def _width(e: Emit, slot: int, kind: PtxType) -> int:
    registers = e.entry.registers
    return registers[slot].bits if slot < len(registers) else kind.bits


def widen(values: Any, kind: PtxType, bits: int) -> Any:
    """Register bits of loaded values; a wider register is sign- or zero-extended."""
    if bits == kind.bits:
        return values
    if kind.kind == "s":
        return values.view(kind.view).astype(f"i{bits // 8}").view(f"u{bits // 8}")
    return values.astype(f"u{bits // 8}")


@instruction(
    f"ld{_CACHE}{_SPACE}{{,.v2,.v4,.v8}}.{_TYPES}",
    f"ld{_ORDER}{{,.global,.shared,.shared::cta,.shared::cluster}}{_VEC}.{_TYPES}",
    f"ld.global{{.nc,.ca,.cg,.cs,.lu,.cv}}{_EVICT}{_L2}{_VEC}.{_TYPES}",
    f"ld.global{_HINT}{_L2}{_VEC}.{_TYPES}",
    f"ld.global{{.L2::cache_hint,.L2::64B,.L2::128B,.L2::256B}}{_VEC}.{_TYPES}",
)
def _ld(e: Emit) -> Lowered:
    kind, count, space = e.type(), _vector_length(e), space_of(e)
    dests = e.dests(kind, count, loose=True)
    place = e.place()
    if e.has("L2::cache_hint"):
        e.src("b64")
    if place.param:
        if not space.startswith("param"):
            raise e.fail("a parameter address without .param")
        return _static_param(e, kind, dests, place)
    width = kind.nbytes * count
    if width > 32:
        raise e.fail("a vector access of more than 32 bytes")
    name, order = f"{space.split('::')[0]} read", e.order()
    bits = [_width(e, dst, kind) for dst in dests]

    def run(w: "Warp", m: Mask) -> None:
        addresses = place.lanes(w)
        try:
            got = load(w, space, addresses, width, m)
        except MemoryFault as fault:
            raise_fault(w, fault)
            return
        note_global(w, space, addresses, width, m, order, write=False)
        w.cta.machine.count_bytes(name, width * lane_count(m))
        if count == 1:
            value = widen(got, kind, bits[0]) if bits[0] != kind.bits else got
            w.set(dests[0], same(value) if place.slot is None or id(w.R[place.slot]) in KNOWN else value, m)
            return
        parts = got.view(kind.store).reshape(LANES, count).T.copy()
        for k, dst in enumerate(dests):
            w.set(dst, widen(parts[k], kind, bits[k]), m)

    return e.effect(run)


# -- st ----------------------------------------------------------------------------------------------------------


@instruction(
    f"st{{,.wb,.cg,.cs,.wt}}{{,.global,.shared,.shared::cta,.shared::cluster,.local}}{_VEC}.{_TYPES}",
    f"st{_STORE_ORDER}{{,.global,.shared,.shared::cta,.shared::cluster}}{_VEC}.{_TYPES}",
    f"st.global{{.wb,.cg,.cs,.wt}}{_HINT}{{,.L2::cache_hint}}{_VEC}.{_TYPES}",
    f"st.global{_HINT}{{,.L2::cache_hint}}{_VEC}.{_TYPES}",
    f"st.global.L2::cache_hint{_VEC}.{_TYPES}",
)
def _st(e: Emit) -> Lowered:
    kind, count, space = e.type(), _vector_length(e), space_of(e)
    place = e.place()
    sources = e.sources(kind, count, loose=True)
    if e.has("L2::cache_hint"):
        e.src("b64")
    width = kind.nbytes * count
    if width > 32:
        raise e.fail("a vector access of more than 32 bytes")
    name, order = f"{space.split('::')[0]} write", e.order()
    store_type = kind.store

    def run(w: "Warp", m: Mask) -> None:
        R = w.R
        if count == 1:
            values = R[sources[0]]
            if values.dtype.itemsize != kind.nbytes:
                values = values.astype(store_type)
        else:
            rows = np.empty((LANES, count), store_type)
            for k, slot in enumerate(sources):
                rows[:, k] = R[slot]
            values = rows.view(element(width)).reshape(LANES)
        addresses = place.lanes(w)
        try:
            store(w, space, addresses, width, m, values)
        except MemoryFault as fault:
            raise_fault(w, fault)
            return
        note_global(w, space, addresses, width, m, order, write=True)
        w.cta.machine.count_bytes(name, width * lane_count(m))

    return e.effect(run)


@instruction("ldu.global.{b32,u32,b64,u64,f32}")
def _ldu(e: Emit) -> Lowered:
    return _ld(e)


@instruction(
    "prefetch{,.global}.{L1,L2}",
    "prefetchu.L1",
    "prefetch.global.L2::{evict_last,evict_normal}",
    "prefetch{,.param,.const}.tensormap",
)
def _prefetch(e: Emit) -> Lowered:
    e.place()
    e.done()
    return Pure([])


@instruction("applypriority.global.L2::evict_normal", "discard.global.L2")
def _cache_hint(e: Emit) -> Lowered:
    e.place()
    if e.integer() != 128:
        raise e.fail("the size must be 128")
    e.done()
    return Pure([])
