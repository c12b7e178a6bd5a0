"""Atomics and reductions on global and shared memory, one lane after another in lane order."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.dtypes import ALL, LANES, TYPES, Mask, PtxType
from moegen.ptx.emit import REACH, Emit, Lowered, Order
from moegen.ptx.formats import bf16_to_f32, f32_to_bf16
from moegen.ptx.isa_memory import raise_fault, space_of
from moegen.ptx.lanes_float import fmax_, fmin_, nan2, nan4, nan8
from moegen.ptx.memory import SHARED_WINDOW, MemoryFault, check_aligned, window
from moegen.ptx.registry import instruction

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

Combine = Callable[[Any, Any], Any]


def _bf16(op: Callable[[Any, Any], Any]) -> Combine:
    return lambda a, b: f32_to_bf16(op(bf16_to_f32(a), bf16_to_f32(b)).astype(np.float32))


def _half(op: Callable[[Any, Any], Any]) -> Combine:
    return lambda a, b: nan2(
        op(a.view(np.float16).astype(np.float32), b.view(np.float16).astype(np.float32)).astype(np.float16)
    )


def _float(op: Callable[[Any, Any], Any], kind: PtxType) -> Combine:
    fix = nan4 if kind.bits == 32 else nan8
    return lambda a, b: fix(op(a.view(kind.view), b.view(kind.view)))


def combine(name: str, kind: PtxType) -> Combine:
    """Function of (memory, operand) register bits, elementwise over arrays of ``kind.store``."""
    if name in {"and", "or", "xor"}:
        return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[name]
    if name == "exch":
        return lambda a, b: b
    if name == "inc":
        return lambda a, b: np.where(a >= b, a.dtype.type(0), a + a.dtype.type(1))
    if name == "dec":
        return lambda a, b: np.where((a == 0) | (a > b), b, a - a.dtype.type(1))
    if kind.kind == "f":
        op = {
            "add": np.add,
            "min": lambda a, b: fmin_(a, b, False),
            "max": lambda a, b: fmax_(a, b, False),
        }[name]
        if kind.name == "bf16":
            return _bf16(op)
        return _half(op) if kind.bits == 16 else _float(op, kind)
    if name == "add":
        return np.add
    pick = np.minimum if name == "min" else np.maximum
    return lambda a, b: pick(a.view(kind.view), b.view(kind.view)).view(kind.store)


def target_bytes(w: "Warp", space: str, address: int, width: int, lane: int) -> Any:
    """View of memory for a read-modify-write; checks bounds.

    Raises:
        MemoryFault: outside memory.
    """
    try:
        if space == "generic":
            space = window(address)
            if space != "global":
                address &= (1 << 56) - 1
        if space == "global":
            return w.cta.machine.memory.bytes(address, width)
        if not space.startswith("shared"):
            raise MemoryFault("out-of-bounds", f"an atomic on {space} memory", address)
        cta, offset = w.cta.resolve(address, "shared::cluster")
        races = w.cta.machine.races
        if races is not None:
            races.shared_atomic(w, cta, offset, width)
        return cta.shared.bytes(offset, width)
    except MemoryFault as fault:
        fault.lane = lane
        raise


def _note_global(w: "Warp", space: str, addresses: Any, width: int, mask: Mask, order: Order) -> None:
    """Tells the race detector of atomics on global memory."""
    races = w.cta.machine.races
    if races is None or space.startswith("shared"):
        return
    mask = mask & (addresses < np.uint64(SHARED_WINDOW))
    if mask.any():
        races.memory.before(w, addresses[mask], order)
        races.memory.lanes(w, addresses, width, mask, order.reach, write=True)
        races.memory.after(w, addresses[mask], order, adds=True)


def read_modify_write(
    w: "Warp", space: str, addresses: Any, mask: Mask, kind: PtxType, operands: list[Any], op: Combine, order: Order
) -> list[Any]:
    """Applies ``op`` lane by lane; returns the old values, one lane array per operand (vector element)."""
    width = kind.nbytes * len(operands)
    old = [np.zeros(LANES, kind.store) for _ in operands]
    try:
        check_aligned(addresses, width, mask)
        for lane in range(LANES) if mask is ALL else np.flatnonzero(mask).tolist():
            cell = target_bytes(w, space, int(addresses[lane]), width, lane).view(kind.store)
            for k, values in enumerate(operands):
                old[k][lane] = cell[k]
                cell[k : k + 1] = op(cell[k : k + 1], values[lane : lane + 1])
    except MemoryFault as fault:
        raise_fault(w, fault)
    _note_global(w, space, addresses, width, mask, order)
    machine = w.cta.machine
    machine.events += 1
    machine.count_bytes(f"{space.split('::')[0]} atomic", width * int(np.count_nonzero(mask)))
    return old


_SEM = "{,.relaxed,.acquire,.release,.acq_rel}"
_SCOPE = "{,.cta,.cluster,.gpu,.sys}"
_SPACE = "{,.global,.shared,.shared::cta,.shared::cluster}"
_FORMS = (
    "{and,or,xor}.{b32,b64}",
    "add.{u32,s32,u64,f32,f64}",
    "add.noftz.{f16,bf16}",
    "{inc,dec}.u32",
    "{min,max}.{u32,s32,u64,s64}",
)


def _atom_patterns(base: str, sem: str, forms: tuple[str, ...]) -> list[str]:
    return [f"{base}{sem}{_SCOPE}{_SPACE}.{form}" for form in forms]


def _packed_kind(e: Emit) -> tuple[PtxType, bool]:
    """Element type, and whether the register holds two of them."""
    name = e.mods[-1]
    if name in {"f16x2", "bf16x2"}:
        return TYPES[name[:-2]], True
    return TYPES[name], False


def _operation(e: Emit) -> str:
    return next(m for m in e.mods if m in {"and", "or", "xor", "add", "inc", "dec", "min", "max", "exch", "cas"})


@instruction(
    *_atom_patterns("atom", _SEM, (*_FORMS, "exch.{b32,b64}", "cas.{b16,b32,b64}", "add.noftz.{f16x2,bf16x2}"))
)
def _atom(e: Emit) -> Lowered:
    kind, packed = _packed_kind(e)
    name, space = _operation(e), space_of(e)
    register = TYPES["b32"] if packed else kind
    dst, place, b = e.dst(register), e.place(), e.src(register)
    c = e.src(register) if name == "cas" else None
    op, order = None if name == "cas" else combine(name, kind), e.order(REACH["gpu"])

    def run(w: "Warp", m: Mask) -> None:
        addresses = place.lanes(w).astype(np.uint64)
        R = w.R
        if c is not None:
            w.set(dst, _compare_and_swap(w, space, addresses, m, kind, R[b], R[c], order), m)
        elif packed:
            halves = R[b].view(np.uint16).reshape(LANES, 2)
            old = read_modify_write(w, space, addresses, m, kind, [halves[:, 0], halves[:, 1]], op, order)  # type: ignore[arg-type]
            w.set(dst, np.stack(old, axis=1).view(np.uint32).reshape(LANES), m)
        else:
            w.set(dst, read_modify_write(w, space, addresses, m, kind, [R[b]], op, order)[0], m)  # type: ignore[arg-type]

    return e.effect(run)


def _compare_and_swap(
    w: "Warp", space: str, addresses: Any, mask: Mask, kind: PtxType, expected: Any, new: Any, order: Order
) -> Any:
    lanes = iter(np.flatnonzero(mask).tolist())

    def swap(a: Any, b: Any) -> Any:
        lane = next(lanes)
        return b if a[0] == expected[lane] else a

    return read_modify_write(w, space, addresses, mask, kind, [new], swap, order)[0]


@instruction(*_atom_patterns("red", "{,.relaxed,.release}", (*_FORMS, "add.noftz.{f16x2,bf16x2}")))
def _red(e: Emit) -> Lowered:
    kind, packed = _packed_kind(e)
    name, space = _operation(e), space_of(e)
    place, b = e.place(), e.src(TYPES["b32"] if packed else kind)
    op, order = combine(name, kind), e.order(REACH["gpu"])

    def run(w: "Warp", m: Mask) -> None:
        addresses = place.lanes(w).astype(np.uint64)
        values = w.R[b]
        if packed:
            halves = values.view(np.uint16).reshape(LANES, 2)
            read_modify_write(w, space, addresses, m, kind, [halves[:, 0], halves[:, 1]], op, order)
        else:
            read_modify_write(w, space, addresses, m, kind, [values], op, order)

    return e.effect(run)


@instruction(
    "red{,.relaxed,.release}{,.cta,.gpu,.sys}.global.add.noftz.{v2,v4,v8}.{f16,bf16}",
    "red{,.relaxed,.release}{,.cta,.gpu,.sys}.global.add.noftz.{v2,v4}.{f16x2,bf16x2}",
    "red{,.relaxed,.release}{,.cta,.gpu,.sys}.global.add.{v2,v4}.f32",
)
def _red_vector(e: Emit) -> Lowered:
    kind, packed = _packed_kind(e)
    count = next(int(m[1:]) for m in e.mods if m in {"v2", "v4", "v8"})
    register = TYPES["b32"] if packed else kind
    place, sources = e.place(), e.sources(register, count)
    op, order = combine("add", kind), e.order(REACH["gpu"])

    def run(w: "Warp", m: Mask) -> None:
        addresses = place.lanes(w).astype(np.uint64)
        operands = [w.R[s] for s in sources]
        if packed:
            operands = [half for value in operands for half in value.view(np.uint16).reshape(LANES, 2).T]
        read_modify_write(w, "global", addresses, m, kind, operands, op, order)

    return e.effect(run)
