"""tcgen05.mma: block-scaled and dense kinds, one CTA or a pair."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx import formats, numerics
from moegen.ptx.asyncs import Operation
from moegen.ptx.descriptors import (
    BlockScaled,
    Dense,
    DescriptorError,
    SharedDescriptor,
    block_scaled,
    dense,
    k_major_chunks,
    mn_major_index,
)
from moegen.ptx.dtypes import Mask
from moegen.ptx.emit import Emit, Lowered
from moegen.ptx.isa_copy import Site
from moegen.ptx.isa_memory import raise_fault
from moegen.ptx.isa_tcgen05 import descriptor_at, pair_of, pipe_key, shared_chunks
from moegen.ptx.masks import first_lane, lane_count
from moegen.ptx.memory import MemoryFault
from moegen.ptx.options import Numerics
from moegen.ptx.place import Place
from moegen.ptx.program import Address
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.state import Cta

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp


# -- operands ----------------------------------------------------------------------------------------------------


@cache
def _nibble_pairs() -> Any:
    """Values of both E2M1 codes in a byte, low nibble first: two f32 that NumPy moves as one f64 [256]."""
    values = formats.table32("e2m1")
    codes = np.arange(256)
    pairs = np.stack([values[codes & 15], values[codes >> 4]], axis=1).view(np.float64)[:, 0]
    pairs.flags.writeable = False
    return pairs


def decode_bytes(raw: Any, name: str, packed: bool) -> Any:
    """Element values [rows, k] of operand bytes [rows, bytes]: f32 if packed, else f64.

    Args:
        packed: 4-bit elements lie two to a byte; else every element of up to 8 bits has a byte.
    """
    rows = raw.shape[0]
    if name == "e2m1" and packed:
        return _nibble_pairs().take(raw).view(np.float32).reshape(rows, -1)
    if name in {"f16", "bf16"}:
        return formats.decode(raw.view(np.uint16), name)
    if name == "tf32":
        return formats.decode(raw.view(np.uint32) & np.uint32(0xFFFFE000), "f32")
    if name in {"u8", "s8"}:
        return raw.view(np.uint8 if name == "u8" else np.int8).astype(np.float64)
    bits = formats.FORMATS[name].bits
    return formats.table(name)[raw & np.uint8((1 << bits) - 1)]


_SIZE = {"f16": 2, "bf16": 2, "tf32": 4}


def operand(
    cta: Cta, d: SharedDescriptor, rows: int, depth: int, name: str, *, packed: bool, mn: bool, site: Site, ticket: Any
) -> Any:
    """An operand tile from shared memory, [rows, depth]; see :func:`decode_bytes`."""
    size = _SIZE.get(name, 1)
    if mn:
        index = mn_major_index(d, rows, depth, size, True)
        raw = cta.shared.data[index[..., None] + np.arange(size)] if size > 1 else cta.shared.data[index]
        if ticket is not None:
            ticket.read_chunks(cta, np.unique(index >> 4), Check.PROXY_FENCE_OPERAND)
        flat = np.ascontiguousarray(np.moveaxis(raw.reshape(depth, rows, size), 0, 1)).reshape(rows, -1)
        return decode_bytes(flat, name, packed)
    row_bytes = depth // 2 if packed and name == "e2m1" else depth * size
    chunks = k_major_chunks(d, rows, row_bytes)
    raw = shared_chunks(cta, chunks, site).reshape(rows, row_bytes)
    if ticket is not None:
        ticket.read_chunks(cta, chunks, Check.PROXY_FENCE_OPERAND)
    return decode_bytes(raw, name, packed)


def scales(cta: Cta, column: int, rows: int, first: int, count: int, ticket: Any) -> Any:
    """Codes of scale factors u8 [rows, count] from tensor memory: row r in lane r % 32, column + r // 32, bytes from
    ``first``.
    """
    groups = (rows + 31) // 32
    cta.tmem.check(column, groups)
    words = cta.tmem.data[:32, column : column + groups]
    if ticket is not None:
        ticket.tmem_read(cta, 32, column, groups)
    return np.ascontiguousarray(words.T).view(np.uint8).reshape(groups * 32, 4)[:rows, first : first + count]


# -- block-scaled kinds ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """Shape facts of a block-scaled kind: elements along K, elements per scale, 4-bit packing."""

    depth: int
    block: int
    packed: bool


_KINDS = {
    ("mxf4nvf4", "block16"): _Kind(64, 16, True),
    ("mxf4nvf4", "scale_vec@4X"): _Kind(64, 16, True),
    ("mxf4nvf4", "block32"): _Kind(64, 32, True),
    ("mxf4nvf4", "scale_vec@2X"): _Kind(64, 32, True),
    ("mxf4", "block32"): _Kind(64, 32, True),
    ("mxf4", "scale_vec@2X"): _Kind(64, 32, True),
    ("mxf8f6f4", "block32"): _Kind(32, 32, False),
    ("mxf8f6f4", "scale_vec@1X"): _Kind(32, 32, False),
}
_COLLECT = "{,.collector::a::discard,.collector::a::lastuse,.collector::a::fill,.collector::a::use}"
_PREFIX = "tcgen05.mma.cta_group::{1,2}.kind::"


@instruction(
    f"{_PREFIX}mxf4nvf4.block_scale.{{block16,block32,scale_vec::2X,scale_vec::4X}}{_COLLECT}",
    f"{_PREFIX}mxf4.block_scale.{{block32,scale_vec::2X}}{_COLLECT}",
    f"{_PREFIX}mxf8f6f4.block_scale.{{block32,scale_vec::1X}}{_COLLECT}",
)
def _mma_scaled(e: Emit) -> Lowered:
    kind = _KINDS[e.mods[3].split("@")[1], e.mods[5]]
    two = e.has("cta_group::2")
    d_place, a_slot, b_slot, idesc = e.place(), e.src("b64"), e.src("b64"), e.src("b32")
    sfa_place, sfb_place = e.place(), e.place()
    enable, negated = e.pred()

    def run(w: "Warp", m: Mask) -> None:
        lane, R = first_lane(m), w.R
        _single(w, m)
        bits = R[idesc].item(lane)
        sfa_bits, sfb_bits = sfa_place.lane(w, lane), sfb_place.lane(w, lane)
        try:
            shape = block_scaled(bits, kind.packed)
        except DescriptorError as error:
            w.cta.machine.fault(w, Check.DESCRIPTOR, error.what)
            return
        _check_scaled(w, shape, kind, two)
        item = _Scaled(
            kind,
            shape,
            descriptor_at(w, R[a_slot].item(lane)),
            descriptor_at(w, R[b_slot].item(lane)),
            d_place.lane(w, lane) & 0xFFFF,
            sfa_bits & 0xFFFF,
            sfb_bits & 0xFFFF,
            R[enable].item(lane) != negated,
        )
        _submit(w, two, item, shape.n)

    return e.effect(run)


def _single(w: "Warp", m: Mask) -> None:
    count = lane_count(m)
    if count != 1:
        w.cta.machine.fault(w, Check.CONVERGENCE, f"tcgen05.mma issued by {count} lanes: one is needed")


def _check_scaled(w: "Warp", shape: BlockScaled, kind: _Kind, two: bool) -> None:
    want = (256, 128) if two else (128,)
    step = 16 if two else 8
    if shape.m not in want or not step <= shape.n <= 256 or shape.n % step:
        w.cta.machine.fault(w, Check.DESCRIPTOR, f"tcgen05.mma of M {shape.m}, N {shape.n}")
    if two and shape.m == 128:
        w.cta.machine.fault(w, Check.DESCRIPTOR, "tcgen05.mma of M 128 across a CTA pair is not implemented")
    if kind.packed and (shape.a_mn or shape.b_mn):
        w.cta.machine.fault(w, Check.DESCRIPTOR, "4-bit operands must be K-major")
    count = kind.depth // kind.block
    for name, first in (("A", shape.sfa), ("B", shape.sfb)):
        if first % max(count, 1) or first + count > 4:
            w.cta.machine.fault(w, Check.DESCRIPTOR, f"scale id {first} of {name} with {count} scales per instruction")


@dataclass(slots=True)
class _Scaled:
    """One block-scaled instruction, decoded."""

    kind: _Kind
    shape: BlockScaled
    a: SharedDescriptor
    b: SharedDescriptor
    d_column: int
    sfa_column: int
    sfb_column: int
    accumulate: bool

    def execute(self, ctas: list[Cta], site: Site, ticket: Any) -> None:
        """Multiplies and accumulates in the tensor memory of every CTA of the group."""
        s, k = self.shape, self.kind
        share = s.n // len(ctas)
        b = np.concatenate(
            [
                operand(cta, self.b, share, k.depth, s.b, packed=k.packed, mn=s.b_mn, site=site, ticket=ticket)
                for cta in ctas
            ]
        )
        if s.negate_b:
            b = -b
        count = k.depth // k.block
        for cta in ctas:
            rows = s.m // len(ctas)
            a = operand(cta, self.a, rows, k.depth, s.a, packed=k.packed, mn=s.a_mn, site=site, ticket=ticket)
            if s.negate_a:
                a = -a
            sfa = scales(cta, self.sfa_column, rows, s.sfa, count, ticket)
            sfb = scales(cta, self.sfb_column, s.n, s.sfb, count, ticket)
            c = accumulator(cta, self.d_column, rows, s.n, self.accumulate)
            bits = numerics.finish(self._products(a, b, sfa, sfb, c, cta), "f32")
            put(cta, self.d_column, bits, self.accumulate, ticket)

    def _products(self, a: Any, b: Any, sfa: Any, sfb: Any, c: Any, cta: Cta) -> Any:
        """Scaled products and the accumulator, f32 [m, n]."""
        k, name = self.kind, self.shape.scale
        if cta.machine.options.numerics is Numerics.MMA_SIM:
            values = formats.table(name)
            a, b = a.astype(np.float64), b.astype(np.float64)
            fraction = 35 if k.packed else 25
            return numerics.accumulate_mma_sim(a, b, values[sfa], values[sfb], c, block=k.block, fraction_bits=fraction)
        if k.packed:
            # Operands are multiples of half a unit of the scales, at most 12 of them.
            largest = 12**2 * k.depth * formats.spread(sfa, name) * formats.spread(sfb, name)
            if largest <= 1 << 24:
                values = formats.table32(name)
                return numerics.accumulate_single(_scaled(a, values.take(sfa)), _scaled(b, values.take(sfb)), c)
        values = formats.table(name)
        return numerics.accumulate_exact(_scaled(a, values.take(sfa)), _scaled(b, values.take(sfb)), c)


def _scaled(values: Any, factors: Any) -> Any:
    """Each block of a row times its factor."""
    rows, blocks = factors.shape
    return (values.reshape(rows, blocks, -1) * factors[:, :, None]).reshape(rows, -1)


def accumulator(cta: Cta, column: int, rows: int, n: int, accumulate: bool) -> Any:
    """Accumulator f32 [rows, n], or None when it is overwritten."""
    cta.tmem.check(column, n)
    return cta.tmem.data[:rows, column : column + n].view(np.float32) if accumulate else None


def put(cta: Cta, column: int, bits: Any, accumulated: bool, ticket: Any) -> None:
    """Stores accumulator words, and tells the race detector."""
    rows, n = bits.shape
    cta.tmem.data[:rows, column : column + n] = bits
    if ticket is not None:
        (ticket.tmem_update if accumulated else ticket.tmem_write)(cta, rows, column, n)


def _submit(w: "Warp", two: bool, item: Any, n: int) -> None:
    machine, site, key = w.cta.machine, Site(w), pipe_key(w, two)
    ctas = pair_of(w, two)
    if ctas[0] is not w.cta:
        w.cta.machine.fault(w, Check.TMEM_ACCESS, "tcgen05.mma of a CTA pair issued by its odd CTA")
    for cta in ctas:
        try:
            cta.tmem.check(item.d_column, n)
        except MemoryFault as fault:
            raise_fault(w, fault)
    ticket = machine.races.issue(w, "tensor", pipe=key) if machine.races is not None else None

    def multiply() -> None:
        try:
            item.execute(ctas, site, ticket)
        except MemoryFault as fault:
            site.memory(fault)

    machine.engine.submit(key, Operation(multiply, tensor=True))


# -- dense kinds -------------------------------------------------------------------------------------------------

_DEPTH = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}


@instruction(f"{_PREFIX}{{f16,tf32,f8f6f4,i8}}{_COLLECT}")
def _mma_dense(e: Emit) -> Lowered:
    kind = e.mods[3].split("@")[1]
    two = e.has("cta_group::2")
    d_place = e.place()
    a_place: Place | None = None
    a_slot = 0
    if isinstance(e.peek(), Address):
        a_place = e.place()
    else:
        a_slot = e.src("b64")
    b_slot, idesc = e.src("b64"), e.src("b32")
    lanes_off = e.sources("b32", 8 if two else 4) if e.remaining == 2 else []
    enable, negated = e.pred()

    def run(w: "Warp", m: Mask) -> None:
        lane = first_lane(m)
        _single(w, m)
        try:
            shape = dense(int(w.R[idesc][lane]), kind)
        except DescriptorError as error:
            w.cta.machine.fault(w, Check.DESCRIPTOR, error.what)
            return
        step = 16 if two else 8
        if shape.m != (256 if two else 128) or not step <= shape.n <= 256 or shape.n % step:
            w.cta.machine.fault(w, Check.DESCRIPTOR, f"tcgen05.mma of M {shape.m}, N {shape.n} is not implemented")
        if any(int(w.R[s][lane]) for s in lanes_off):
            w.cta.machine.fault(w, Check.DESCRIPTOR, "disabled output lanes are not implemented")
        item = _Dense(
            kind,
            shape,
            None if a_place is not None else descriptor_at(w, int(w.R[a_slot][lane])),
            0 if a_place is None else a_place.lane(w, lane) & 0xFFFF,
            descriptor_at(w, int(w.R[b_slot][lane])),
            d_place.lane(w, lane) & 0xFFFF,
            bool(w.R[enable][lane]) != negated,
        )
        _submit(w, two, item, shape.n)

    return e.effect(run)


@dataclass(slots=True)
class _Dense:
    """One dense instruction, decoded."""

    kind: str
    shape: Dense
    a: SharedDescriptor | None
    a_column: int
    b: SharedDescriptor
    d_column: int
    accumulate: bool

    def execute(self, ctas: list[Cta], site: Site, ticket: Any) -> None:
        """Multiplies and accumulates in the tensor memory of every CTA of the group."""
        s, depth = self.shape, _DEPTH[self.kind]
        share = s.n // len(ctas)
        b = np.concatenate(
            [operand(cta, self.b, share, depth, s.b, packed=False, mn=s.b_mn, site=site, ticket=ticket) for cta in ctas]
        )
        b = -b if s.negate_b else b
        for cta in ctas:
            rows = s.m // len(ctas)
            a = self._a(cta, rows, depth, site, ticket)
            a = -a if s.negate_a else a
            words = s.n
            c = accumulator(cta, self.d_column, rows, words, self.accumulate)
            if s.d == "s32":
                total = (a @ b.T).astype(np.int64) + (0 if c is None else c.view(np.int32).astype(np.int64))
                if s.saturate:
                    total = np.clip(total, -(1 << 31), (1 << 31) - 1)
                put(cta, self.d_column, total.astype(np.int32).view(np.uint32), self.accumulate, ticket)
                continue
            if c is not None and s.d == "f16":
                c = formats.decode(c.view(np.uint32) & np.uint32(0xFFFF), "f16").astype(np.float32)
            put(cta, self.d_column, numerics.finish(numerics.accumulate_exact(a, b, c), s.d), self.accumulate, ticket)

    def _a(self, cta: Cta, rows: int, depth: int, site: Site, ticket: Any) -> Any:
        s = self.shape
        if self.a is not None:
            return operand(cta, self.a, rows, depth, s.a, packed=False, mn=s.a_mn, site=site, ticket=ticket)
        size = _SIZE.get(s.a, 1)
        columns = depth * size // 4
        cta.tmem.check(self.a_column, columns)
        if ticket is not None:
            ticket.tmem_read(cta, rows, self.a_column, columns)
        words = np.ascontiguousarray(cta.tmem.data[:rows, self.a_column : self.a_column + columns])
        return decode_bytes(words.view(np.uint8), s.a, packed=False)
