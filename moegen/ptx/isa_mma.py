"""Warp-level matrices: ldmatrix, stmatrix, movmatrix, mma.sync."""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx import formats, numerics
from moegen.ptx.dtypes import ALL, LANES, Mask
from moegen.ptx.emit import Emit, Lowered
from moegen.ptx.isa_memory import load_shared, raise_fault, store_shared
from moegen.ptx.memory import MemoryFault, element, low_part
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

_T = np.arange(LANES)
_ROW, _COLUMN = _T // 4, (_T % 4) * 2


def _converged(w: "Warp", m: Mask, what: str) -> None:
    if m is not ALL:
        w.cta.machine.fault(w, Check.CONVERGENCE, f"{what} with some lanes inactive")


# -- moves between shared memory and fragments -------------------------------------------------------------------


@instruction("ldmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}{,.shared,.shared::cta}.b16")
def _ldmatrix(e: Emit) -> Lowered:
    count, trans = int(e.mods[4][1:]), e.has("trans")
    slots = e.dests("b32", count)
    place = e.place()

    def run(w: "Warp", m: Mask) -> None:
        _converged(w, m, "ldmatrix")
        lanes = ALL if count == 4 else 8 * count > _T
        try:
            rows = load_shared(w, low_part(place.lanes(w).astype(np.uint64)), 16, lanes, "shared::cta")
        except MemoryFault as fault:
            raise_fault(w, fault)
            return
        matrices = rows.view(np.uint16).reshape(4, 8, 8)
        for k, slot in enumerate(slots):
            w.R[slot] = _fragment(matrices[k], trans)
        w.cta.machine.count_bytes("shared read", 128 * count)

    return e.effect(run)


def _fragment(matrix: Any, trans: bool) -> Any:
    """One 8x8 matrix of 16-bit elements as a register: two elements per lane."""
    if trans:
        low, high = matrix[_COLUMN, _ROW], matrix[_COLUMN + 1, _ROW]
    else:
        low, high = matrix[_ROW, _COLUMN], matrix[_ROW, _COLUMN + 1]
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


def _matrix(register: Any, trans: bool) -> Any:
    """Inverse of :func:`_fragment`."""
    out = np.empty((8, 8), np.uint16)
    pair = register.view(np.uint16).reshape(LANES, 2)
    if trans:
        out[_COLUMN, _ROW], out[_COLUMN + 1, _ROW] = pair[:, 0], pair[:, 1]
    else:
        out[_ROW, _COLUMN], out[_ROW, _COLUMN + 1] = pair[:, 0], pair[:, 1]
    return out


@instruction("stmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}{,.shared,.shared::cta}.b16")
def _stmatrix(e: Emit) -> Lowered:
    count, trans = int(e.mods[4][1:]), e.has("trans")
    place = e.place()
    slots = e.sources("b32", count)

    def run(w: "Warp", m: Mask) -> None:
        _converged(w, m, "stmatrix")
        lanes = ALL if count == 4 else 8 * count > _T
        rows = np.zeros((4, 8, 8), np.uint16)
        for k, slot in enumerate(slots):
            rows[k] = _matrix(w.R[slot], trans)
        values = rows.reshape(LANES, 8).view(element(16)).reshape(LANES)
        try:
            store_shared(w, low_part(place.lanes(w).astype(np.uint64)), 16, lanes, values, "shared::cta")
        except MemoryFault as fault:
            raise_fault(w, fault)
        w.cta.machine.count_bytes("shared write", 128 * count)

    return e.effect(run)


@instruction("movmatrix.sync.aligned.m8n8.trans.b16")
def _movmatrix(e: Emit) -> Lowered:
    dst, a = e.dst("b32"), e.src("b32")

    def run(w: "Warp", m: Mask) -> None:
        _converged(w, m, "movmatrix")
        w.R[dst] = _fragment(_matrix(w.R[a], False), True)

    return e.effect(run)


# -- fragments of mma --------------------------------------------------------------------------------------------

_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "e2m3": 8, "e3m2": 8, "e2m1": 8}


def elements(words: Any, name: str) -> Any:
    """Element values f64 of u32 words [..., n] as [..., n * per word]."""
    if name == "tf32":
        return formats.decode(words & np.uint32(0xFFFFE000), "f32")
    if name in {"f16", "bf16"}:
        return formats.decode(words.view(np.uint16), name)
    raw = words.view(np.uint8)
    if name == "s8":
        return raw.view(np.int8).astype(np.float64)
    if name == "u8":
        return raw.astype(np.float64)
    if name in {"e2m1", "e2m3", "e3m2"}:
        # Narrow formats of the f8f6f4 kind sit in a byte each, shifted up by two for 4-bit elements.
        bits = formats.FORMATS[name].bits
        return formats.table(name)[(raw >> np.uint8(2 if bits == 4 else 0)) & np.uint8((1 << bits) - 1)]
    return formats.table(name)[raw]


def a_matrix(registers: list[Any], k: int, name: str) -> Any:
    """A fragment of 16 rows: f64 [16, k]."""
    # Registers alternate between rows 0-7 and 8-15, then go on to the second half of K; four lanes share a row.
    values = elements(np.concatenate(registers), name).reshape(len(registers) // 2, 2, 8, 4, -1)
    return values.transpose(1, 2, 0, 3, 4).reshape(16, k)


def b_matrix(registers: list[Any], k: int, name: str) -> Any:
    """B fragment of 8 columns: f64 [8, k] (transposed)."""
    values = elements(np.concatenate(registers), name).reshape(len(registers), 8, 4, -1)
    return values.transpose(1, 0, 2, 3).reshape(8, k)


def c_matrix(registers: list[Any], name: str) -> Any:
    """Accumulator fragment 16 x 8: f32 or int64 [16, 8]."""
    out = np.empty((16, 8), np.int64 if name == "s32" else np.float32)
    if name == "f16":
        pairs = [r.view(np.float16).reshape(LANES, 2).astype(np.float32) for r in registers]
        parts = [pairs[0][:, 0], pairs[0][:, 1], pairs[1][:, 0], pairs[1][:, 1]]
    else:
        parts = [r.view(np.int32 if name == "s32" else np.float32) for r in registers]
    for k, part in enumerate(parts):
        out[_ROW + 8 * (k // 2), _COLUMN + k % 2] = part
    return out


def d_registers(matrix: Any, name: str) -> list[Any]:
    """Accumulator bits [16, 8] to registers."""
    parts = [matrix[_ROW + 8 * (k // 2), _COLUMN + k % 2] for k in range(4)]
    if name == "f16":
        return [parts[k] | (parts[k + 1] << np.uint32(16)) for k in (0, 2)]
    return parts


def accumulate(a: Any, b: Any, c: Any, name: str, saturate: bool) -> Any:
    """a @ b.T + c as accumulator bits u32 (f16 in the low half)."""
    if name == "s32":
        total = (a @ b.T).astype(np.int64) + c
        if saturate:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return total.astype(np.uint32)
    return numerics.finish(numerics.accumulate_exact(a, b, c), name)


_ROWCOL = "mma.sync.aligned.m16n8"


@instruction(
    f"{_ROWCOL}{{k8,k16}}.row.col.f16.f16.f16.f16",
    f"{_ROWCOL}{{k8,k16}}.row.col.f32.f16.f16.f32",
    f"{_ROWCOL}{{k8,k16}}.row.col.f32.bf16.bf16.f32",
    f"{_ROWCOL}{{k4,k8}}.row.col.f32.tf32.tf32.f32",
    f"{_ROWCOL}{{k16,k32}}.row.col{{,.satfinite}}.s32.{{s8,u8}}.{{s8,u8}}.s32",
    f"{_ROWCOL}{{k16,k32}}.row.col{{,.kind::f8f6f4}}.f32.{{e4m3,e5m2}}.{{e4m3,e5m2}}.f32",
    f"{_ROWCOL}k32.row.col{{,.kind::f8f6f4}}.f16.{{e4m3,e5m2}}.{{e4m3,e5m2}}.f16",
    f"{_ROWCOL}k32.row.col.kind::f8f6f4.f32.{{e4m3,e5m2,e2m3,e3m2,e2m1}}.{{e2m3,e3m2,e2m1}}.f32",
    f"{_ROWCOL}k32.row.col.kind::f8f6f4.f32.{{e2m3,e3m2,e2m1}}.{{e4m3,e5m2,e2m3,e3m2,e2m1}}.f32",
)
def _mma(e: Emit) -> Lowered:
    k = int(e.mods[3][len("m16n8k") :])
    d_type, a_type, b_type, c_type = e.mods[-4:]
    per = 32 // _BITS[a_type]
    a_count, b_count = 16 * k // per // LANES, 8 * k // per // LANES
    registers = {"f16": 2, "f32": 4, "s32": 4}
    kind = {"f16": "b32", "f32": "f32", "s32": "b32"}
    dests = e.dests(kind[d_type], registers[d_type])
    a_slots, b_slots = e.sources("b32", a_count), e.sources("b32", b_count)
    c_slots = e.sources(kind[c_type], registers[c_type])
    saturate = e.has("satfinite")

    def run(w: "Warp", m: Mask) -> None:
        _converged(w, m, "mma.sync")
        R = w.R
        a = a_matrix([R[s] for s in a_slots], k, a_type)
        b = b_matrix([R[s] for s in b_slots], k, b_type)
        c = c_matrix([R[s] for s in c_slots], c_type)
        for slot, value in zip(dests, d_registers(accumulate(a, b, c, d_type, saturate), d_type), strict=True):
            R[slot] = value

    return e.effect(run)
