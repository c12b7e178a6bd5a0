"""Tensor copies (TMA): tiled loads and stores through tensor maps, reductions, multicast, maps built on the device."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx import tensormap
from moegen.ptx.asyncs import Operation
from moegen.ptx.boxes import chunk_index, gather_box, scatter_box
from moegen.ptx.dtypes import TYPES, Mask
from moegen.ptx.emit import Emit, Lowered, Pure
from moegen.ptx.isa_atomic import combine
from moegen.ptx.isa_bulk import bulk_load_targets, submit_store
from moegen.ptx.isa_copy import Site, deliver, poison
from moegen.ptx.isa_memory import raise_fault
from moegen.ptx.masks import active_lanes, common_value, first_lane, lane_count
from moegen.ptx.memory import LOW_MASK, MemoryFault
from moegen.ptx.place import Place
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.state import Cta
from moegen.ptx.tensormap import TensorMap, TensorMapError

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

_MAP_BYTES = 128


@lru_cache(maxsize=256)
def _decode(raw: bytes) -> TensorMap:
    return tensormap.decode(raw)


def read_map(w: "Warp", place: Place, lane: int) -> TensorMap:
    """The tensor map at a generic address; reports one that is not valid."""
    address = place.lane(w, lane)
    try:
        raw = generic_bytes(w, address, _MAP_BYTES, place.param)
        if address % 64:
            raise MemoryFault("misaligned", f"tensor map at {address:#x}: a multiple of 64 is needed", address)
    except MemoryFault as fault:
        raise_fault(w, fault)
        raise
    try:
        return _decode(raw)
    except TensorMapError as error:
        w.cta.machine.fault(w, Check.TENSORMAP, error.what, lane, address)
        raise


def generic_bytes(w: "Warp", address: int, count: int, param: bool = False) -> bytes:
    """Bytes at a generic address.

    Raises:
        MemoryFault: outside memory.
    """
    top, low = address >> 56, address & ((1 << 56) - 1)
    if top == 3 or param:
        return w.cta.grid.param_block.bytes(low, count).tobytes()
    if top == 1:
        cta, offset = w.cta.resolve(low)
        return cta.shared.bytes(offset, count).tobytes()
    return w.cta.machine.memory.bytes(address, count).tobytes()


# -- loads -------------------------------------------------------------------------------------------------------


@instruction(
    "cp.async.bulk.tensor.{1d,2d,3d,4d,5d}.shared::{cluster,cta}.global{,.tile}.mbarrier::complete_tx::bytes"
    "{,.multicast::cluster}{,.cta_group::1,.cta_group::2}{,.L2::cache_hint}",
    "cp.async.bulk.tensor.{1d,2d,3d,4d,5d}.shared::{cluster,cta}.global{,.tile}.mbarrier::complete_tx::bytes"
    "{,.multicast::cluster}.L2::cache_hint{.cta_group::1,.cta_group::2}",
)
def _tensor_load(e: Emit) -> Lowered:
    dims = int(e.mods[4][0])
    dst = e.place()
    place, coords = e.tensor_place(dims)
    bar = e.place()
    mask_slot = e.src("b16") if e.has("multicast::cluster") else None
    if e.has("L2::cache_hint"):
        e.src("b64")
    pair = e.has("cta_group::2")

    def run(w: "Warp", m: Mask) -> None:
        R = w.R
        for lane in active_lanes(m):
            _issue_load(
                w,
                read_map(w, place, lane),
                tuple(signed(R[c].item(lane)) for c in coords),
                dst.lane(w, lane) & LOW_MASK,
                bar.lane(w, lane) & LOW_MASK,
                None if mask_slot is None else R[mask_slot].item(lane),
                pair,
            )

    return e.effect(run)


def signed(word: int) -> int:
    """A 32-bit word as a signed number."""
    return (word ^ 1 << 31) - (1 << 31)


def _check_rank(w: "Warp", m: TensorMap, coords: tuple[int, ...]) -> None:
    if m.rank != len(coords):
        w.cta.machine.fault(w, Check.TENSORMAP, f"a {len(coords)}d copy through a map of rank {m.rank}")


def _signal_of(w: "Warp", target: Cta, barrier: int, mask: int | None, pair: bool) -> Cta:
    """CTA whose barrier a copy into ``target`` signals."""
    home = w.cta.resolve(barrier)[0]
    if mask is None:
        return home
    if not pair:
        return target
    # With a CTA pair the barrier of the pair member with the named CTA's parity is signalled.
    return w.cta.cluster.ctas[(target.rank & ~1) | (home.rank & 1)]


def _issue_load(
    w: "Warp", m: TensorMap, coords: tuple[int, ...], destination: int, barrier: int, mask: int | None, pair: bool
) -> None:
    machine, site = w.cta.machine, Site(w)
    _check_rank(w, m, coords)
    if destination % 128:
        site.fault(Check.MISALIGNED, f"a tensor copy to {destination:#x}: a multiple of 128 is needed", destination)
    size = m.box_bytes
    try:
        targets = bulk_load_targets(w, destination, mask)
        home, bar_offset = w.cta.resolve(barrier)
        if not pair and mask is None and targets[0][0] is not home:
            raise MemoryFault("out-of-bounds", "the barrier lies in another CTA than the destination", barrier)
        for cta, offset in targets:
            poison(cta, offset, size)
    except MemoryFault as fault:
        raise_fault(w, fault)
        return
    goals = [_signal_of(w, cta, barrier, mask, pair) for cta, _ in targets]
    ticket = machine.races.issue(w, "tma") if machine.races is not None else None

    def copy() -> None:
        if ticket is not None:
            ticket.at_barrier(goals[0], bar_offset)
        try:
            image = gather_box(machine.memory, m, coords, ticket)
        except MemoryFault as fault:
            site.memory(fault)
            return
        except TensorMapError as error:
            site.fault(Check.TENSORMAP, error.what)
            return
        for (cta, offset), goal in zip(targets, goals, strict=True):
            cta.shared.views[16][chunk_index(offset, image.size, m.swizzle)] = image
            if ticket is not None:
                ticket.at_barrier(goal, bar_offset)
                ticket.write_range(cta, offset, size)
            deliver(goal, bar_offset, size, site, ticket)

    machine.count_bytes("global read", size)
    machine.count_bytes("shared write", size * len(targets))
    machine.engine.submit(("bulk", machine.next_serial()), Operation(copy))


# -- stores ------------------------------------------------------------------------------------------------------

_STORE = "cp.async.bulk.tensor.{1d,2d,3d,4d,5d}.global.shared::cta{,.tile}.bulk_group{,.L2::cache_hint}"
_REDUCE = (
    "cp.reduce.async.bulk.tensor.{1d,2d,3d,4d,5d}.global.shared::cta.{add,min,max,and,or,xor}{,.tile}.bulk_group"
    "{,.L2::cache_hint}"
)


def _reduction(m: TensorMap, name: str) -> tuple[Any, Any]:
    number, bits = m.number
    if number in {"u", "s"}:
        kind = TYPES[f"{number}{bits}"]
    else:
        kind = TYPES[number]
    return combine(name, kind), kind


@instruction(_STORE, _REDUCE)
def _tensor_store(e: Emit) -> Lowered:
    reduce = e.mods[1] == "reduce"
    dims = int(e.mods[5 if reduce else 4][0])
    place, coords = e.tensor_place(dims)
    src = e.place()
    if e.has("L2::cache_hint"):
        e.src("b64")
    name = next((m for m in e.mods if m in {"add", "min", "max", "and", "or", "xor"}), "")

    def run(w: "Warp", m: Mask) -> None:
        issued = set()
        first = first_lane(m)
        alike = None not in (place.common(w, m), src.common(w, m), *(common_value(w.R[c], m) for c in coords))
        if alike and reduce and lane_count(m) > 1:
            w.cta.machine.fault(w, Check.CONVERGENCE, "a tensor reduction issued by several lanes", first)
        for lane in [first] if alike else active_lanes(m):
            at = tuple(signed(w.R[c].item(lane)) for c in coords)
            key = (place.lane(w, lane), at, src.lane(w, lane))
            if key in issued:
                # Identical stores of one warp are one store: generated code runs them without electing a lane.
                if reduce:
                    w.cta.machine.fault(w, Check.CONVERGENCE, "a tensor reduction issued by several lanes", lane)
                continue
            issued.add(key)
            _issue_store(w, read_map(w, place, lane), at, key[2] & LOW_MASK, name)

    return e.effect(run)


def _issue_store(w: "Warp", m: TensorMap, coords: tuple[int, ...], source: int, reduction: str) -> None:
    machine, site = w.cta.machine, Site(w)
    _check_rank(w, m, coords)
    if source % 128:
        site.fault(Check.MISALIGNED, f"a tensor copy from {source:#x}: a multiple of 128 is needed", source)
    if min(coords) < 0:
        # Loads may start before the tensor; a store there is an illegal instruction on the device.
        site.fault(Check.OUT_OF_BOUNDS, f"a tensor copy to negative coordinates {coords}")
    size = m.box_bytes
    try:
        cta, offset = w.cta.resolve(source, "shared::cta")
        cta.shared.bytes(offset, size)
    except MemoryFault as fault:
        raise_fault(w, fault)
        return
    op, kind = _reduction(m, reduction) if reduction else (None, None)
    ticket = machine.races.issue(w, "bulk") if machine.races is not None else None

    def read() -> Any:
        if ticket is not None:
            ticket.read_range(cta, offset, size, Check.PROXY_FENCE)
        return cta.shared.views[16].take(chunk_index(offset, size // 16, m.swizzle))

    def write(image: Any) -> None:
        try:
            scatter_box(machine.memory, m, coords, image, op, kind, ticket)
        except MemoryFault as fault:
            site.memory(fault)
        except TensorMapError as error:
            site.fault(Check.TENSORMAP, error.what)

    submit_store(w, read, write, ticket)
    machine.count_bytes("global reduce" if reduction else "global write", size)
    machine.count_bytes("shared read", size)


@instruction("cp.async.bulk.prefetch.tensor.{1d,2d,3d,4d,5d}.L2.global{,.tile}{,.L2::cache_hint}")
def _tensor_prefetch(e: Emit) -> Lowered:
    e.tensor_place(int(e.mods[5][0]))
    if e.has("L2::cache_hint"):
        e.src("b64")
    e.done()
    return Pure([])


# -- maps made on the device -------------------------------------------------------------------------------------


@instruction(
    "tensormap.replace.tile.{global_address,global_stride}{,.global,.shared::cta}.b1024.b64",
    "tensormap.replace.tile.{rank,box_dim,global_dim,element_stride,elemtype,interleave_layout,swizzle_mode,fill_mode}"
    "{,.global,.shared::cta}.b1024.b32",
)
def _replace(e: Emit) -> Lowered:
    field = e.mods[3]
    place = e.place()
    ordinal = e.integer() if field in {"box_dim", "global_dim", "global_stride", "element_stride"} else 0
    value_slot = e.src(e.type())
    space = e.mods[4] if len(e.mods) == 7 else "generic"

    def run(w: "Warp", m: Mask) -> None:
        for lane in active_lanes(m):
            address = place.lane(w, lane)
            try:
                raw = _map_bytes(w, space, address)
            except MemoryFault as fault:
                raise_fault(w, fault)
                return
            replace_field(raw.view(np.uint32), field, ordinal, int(w.R[value_slot][lane]))

    return e.effect(run)


def _map_bytes(w: "Warp", space: str, address: int) -> Any:
    top, low = address >> 56, address & ((1 << 56) - 1)
    if space.startswith("shared") or (space == "generic" and top == 1):
        cta, offset = w.cta.resolve(low)
        return cta.shared.bytes(offset, _MAP_BYTES)
    return w.cta.machine.memory.bytes(address, _MAP_BYTES)


def replace_field(words: Any, field: str, ordinal: int, value: int) -> None:
    """Overwrites one field of a tensor map (u32 words) in place."""

    def put(word: int, shift: int, bits: int, new: int) -> None:
        mask = ((1 << bits) - 1) << shift
        words[word] = (int(words[word]) & ~mask) | ((new << shift) & mask)

    if field == "global_address":
        words[0], words[1] = value & 0xFFFFFFFF, value >> 32
    elif field == "global_dim":
        words[8 + ordinal] = (value - 1) & 0xFFFFFFFF
    elif field == "global_stride":
        words[3 + ordinal] = (value >> 4) & 0xFFFFFFFF
        put(7, 4 * ordinal, 4, value >> 36)
    elif field == "rank":
        put(2, 4, 3, value)
    elif field == "elemtype":
        put(2, 7, 4, value)
    elif field == "swizzle_mode":
        put(2, 13, 2, value)
    elif field == "interleave_layout":
        put(2, 11, 2, value)
    elif field == "element_stride":
        put(13, 3 * ordinal, 3, value - 1)
    elif field == "box_dim" and ordinal == 0:
        put(13, 24, 8, value - 1)
    elif field == "box_dim":
        put(14, 8 * (ordinal - 1), 8, value - 1)
    # fill_mode: zero fill is the only one implemented; other values are kept out by the decoder's format check.


@instruction(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{cta,cluster,gpu,sys}.sync.aligned",
    "fence.proxy.tensormap::generic.acquire.{cta,cluster,gpu,sys}",
)
def _map_fence(e: Emit) -> Lowered:
    if e.mods[0] == "fence":
        e.place()
        if e.integer() != _MAP_BYTES:
            raise e.fail("the size must be 128")
        return e.effect(lambda w, m: None)
    dst, src = e.place(), e.place()
    if e.integer() != _MAP_BYTES:
        raise e.fail("the size must be 128")

    def run(w: "Warp", m: Mask) -> None:
        try:
            cta, offset = w.cta.resolve(src.lane(w, 0) & LOW_MASK)
            target = w.cta.machine.memory.bytes(dst.lane(w, 0), _MAP_BYTES)
            target[:] = cta.shared.bytes(offset, _MAP_BYTES)
        except MemoryFault as fault:
            raise_fault(w, fault)

    return e.effect(run)
