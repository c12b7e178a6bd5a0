"""wgmma: asynchronous matrix multiplication of a warpgroup, operands in shared memory or registers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx import groups, numerics
from moegen.ptx.asyncs import Operation
from moegen.ptx.descriptors import DescriptorError, SharedDescriptor, k_major_chunks, mn_major_index, shared_descriptor
from moegen.ptx.dtypes import ALL, LANES, Mask
from moegen.ptx.emit import Emit, Lowered
from moegen.ptx.isa_copy import Site, wait_groups
from moegen.ptx.isa_mma import a_matrix
from moegen.ptx.memory import MemoryFault
from moegen.ptx.program import Vector
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.state import Cta
from moegen.ptx.tcgen05_mma import decode_bytes

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

_SIZE = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
_POISON = 0x7FFFDEAD
_T = np.arange(LANES)


def _converged(w: "Warp", m: Mask, what: str) -> None:
    if m is not ALL:
        w.cta.machine.fault(w, Check.CONVERGENCE, f"{what} with some lanes inactive")


class Part:
    """One warp's share of an operation.

    Until it is done, its accumulator registers hold arrays of a poison pattern, into which the results are written in
    the end. Such an array may be moved to other registers (a compiler renames accumulators between operations) and is
    known by identity; anything else that reads it before gets garbage.

    Attributes:
        warp: who issued it.
        sources: accumulator values at issue, or the earlier share (and position) that will give them.
        a: register operand f64 [16, k], or None.
        block, rows: the registers' arrays, together and one by one.
    """

    __slots__ = ("a", "batch", "block", "rows", "sources", "warp")

    def __init__(self, warp: "Warp", slots: list[int], a: Any) -> None:
        self.warp = warp
        self.a = a
        self.sources: list[Any] = []
        pending: dict[int, tuple[Part, int]] = warp.scratch.setdefault("wgmma pending", {})
        self.block = np.full((len(slots), LANES), _POISON, np.uint32)
        self.rows = list(self.block)
        for slot in slots:
            value = warp.R[slot]
            self.sources.append(pending.get(id(value), value))
        for k, (slot, array) in enumerate(zip(slots, self.rows, strict=True)):
            pending[id(array)] = (self, k)
            warp.R[slot] = array
        self.batch = groups.of(warp.scratch, "wgmma").open
        self.batch.reads += 1
        self.batch.writes += 1

    def accumulators(self) -> list[Any]:
        """Values to accumulate on; earlier operations of the queue are done by now."""
        return [s[0].rows[s[1]] if isinstance(s, tuple) else s for s in self.sources]

    def finish(self, results: Any) -> None:
        """Results, u32 [registers, lanes], arrive."""
        self.block[:] = results
        pending = self.warp.scratch["wgmma pending"]
        for row in self.rows:
            del pending[id(row)]
        self.batch.reads -= 1
        self.batch.writes -= 1


class Job:
    """An operation of a warpgroup; it runs once all four warps have issued it."""

    def __init__(self, spec: "Spec", key: tuple[Any, ...], ticket: Any) -> None:
        self.spec = spec
        self.key = key
        self.ticket = ticket
        self.parts: dict[int, Part] = {}


class Spec:
    """What all four warps must agree on."""

    __slots__ = ("a", "accumulate", "b", "scale_a", "scale_b", "site")

    def __init__(
        self, a: SharedDescriptor | None, b: SharedDescriptor, accumulate: bool, scale_a: int, scale_b: int, site: Site
    ) -> None:
        self.a = a
        self.b = b
        self.accumulate = accumulate
        self.scale_a = scale_a
        self.scale_b = scale_b
        self.site = site

    def agrees(self, other: "Spec") -> bool:
        """Whether another warp means the same operation."""
        mine = (self.a, self.b, self.accumulate, self.scale_a, self.scale_b, self.site.item)
        return mine == (other.a, other.b, other.accumulate, other.scale_a, other.scale_b, other.site.item)


def _tile(cta: Cta, d: SharedDescriptor, rows: int, depth: int, name: str, mn: bool, site: Site, ticket: Any) -> Any:
    size = _SIZE[name]
    if mn:
        index = mn_major_index(d, rows, depth, size, False)
        raw = cta.shared.data[index[..., None] + np.arange(size)]
        flat = np.ascontiguousarray(np.moveaxis(raw.reshape(depth, rows, size), 0, 1)).reshape(rows, -1)
        chunks = np.unique(index >> 4)
    else:
        chunks = k_major_chunks(d, rows, depth * size)
        flat = cta.shared.views[16][chunks].view(np.uint8).reshape(rows, -1)
    if ticket is not None:
        ticket.read_chunks(cta, chunks, Check.PROXY_FENCE_OPERAND)
    return decode_bytes(flat, name, packed=False)


_N = "{" + ",".join(f"n{n}" for n in range(8, 257, 8)) + "}"


@instruction(
    f"wgmma.mma_async.sync.aligned.m64{_N}k16.{{f16,f32}}.f16.f16",
    f"wgmma.mma_async.sync.aligned.m64{_N}k16.f32.bf16.bf16",
    f"wgmma.mma_async.sync.aligned.m64{_N}k8.f32.tf32.tf32",
    f"wgmma.mma_async.sync.aligned.m64{_N}k32.{{f16,f32}}.{{e4m3,e5m2}}.{{e4m3,e5m2}}",
    f"wgmma.mma_async.sync.aligned.m64{_N}k32{{,.satfinite}}.s32.{{s8,u8}}.{{s8,u8}}",
)
def _wgmma(e: Emit) -> Lowered:
    d_type, a_type, b_type = e.mods[-3:]
    n = int(e.mods[4].split("n")[1].split("k")[0])
    depth = _DEPTH[a_type]
    count = n // 2 if d_type != "f16" else n // 4
    slots = e.dests("f32" if d_type == "f32" else "b32", count)
    in_registers = isinstance(e.peek(), Vector)
    a_slots = e.sources("b32", 4) if in_registers else []
    a_slot = 0 if in_registers else e.src("b64")
    b_slot = e.src("b64")
    scale_d, negated = e.pred()
    scale_a = scale_b = 1
    trans_a = trans_b = 0
    if d_type != "s32":
        scale_a, scale_b = e.integer(), e.integer()
        if scale_a not in (1, -1) or scale_b not in (1, -1):
            raise e.fail("operand scales must be 1 or -1")
        if _SIZE[a_type] == 2:
            trans_a = 0 if in_registers else e.integer()
            trans_b = e.integer()
    saturate = e.has("satfinite")

    def compute(job: Job, cta: Cta) -> None:
        spec, site = job.spec, job.spec.site
        try:
            b = _tile(cta, spec.b, n, depth, b_type, bool(trans_b), site, job.ticket)
            if spec.a is not None:
                a = _tile(cta, spec.a, 64, depth, a_type, bool(trans_a), site, job.ticket)
            else:
                a = np.concatenate([job.parts[k].a for k in range(4)])
        except (MemoryFault, IndexError):
            site.fault(Check.OUT_OF_BOUNDS, "a wgmma operand leaves shared memory", spec.b.start)
            return
        c = None
        if spec.accumulate:
            c = np.concatenate([_rows(job.parts[k].accumulators(), n, d_type) for k in range(4)])
        bits = _multiply(a * spec.scale_a, b * spec.scale_b, c, d_type, saturate)
        for k in range(4):
            job.parts[k].finish(_registers(bits[16 * k : 16 * k + 16], n, d_type))

    def run(w: "Warp", m: Mask) -> None:
        _converged(w, m, "wgmma")
        machine, R = w.cta.machine, w.R
        try:
            spec = Spec(
                None if in_registers else shared_descriptor(int(R[a_slot][0]), False),
                shared_descriptor(int(R[b_slot][0]), False),
                bool(R[scale_d][0]) != negated,
                scale_a,
                scale_b,
                Site(w),
            )
        except DescriptorError as error:
            machine.fault(w, Check.DESCRIPTOR, error.what)
            return
        a = a_matrix([R[s] for s in a_slots], depth, a_type) if in_registers else None
        job = _join(w, spec)
        part = job.parts[w.index % 4] = Part(w, slots, a)
        if job.ticket is not None:
            part.batch.serial = job.ticket.clock_value
        if len(job.parts) == 4:
            if machine.races is not None and job.ticket is not None:
                machine.races.refresh(job.ticket, w)
            cta = w.cta
            machine.engine.submit(job.key, Operation(lambda: compute(job, cta), tensor=True))

    return e.effect(run)


def _join(w: "Warp", spec: Spec) -> Job:
    """The warpgroup's operation that this warp's next issue belongs to."""
    group = w.index // 4
    number = w.scratch["wgmma issued"] = w.scratch.get("wgmma issued", 0) + 1
    jobs: dict[tuple[int, int], Job] = w.cta.jobs
    job = jobs.get((group, number))
    if job is None:
        races = w.cta.machine.races
        ticket = races.issue(w, "wgmma") if races is not None else None
        job = jobs[group, number] = Job(spec, ("wgmma", w.cta, group), ticket)
    elif not job.spec.agrees(spec):
        w.cta.machine.fault(w, Check.CONVERGENCE, "the warps of a warpgroup issue different wgmma operations")
    if len(job.parts) == 3:
        del jobs[group, number]
    return job


def _rows(registers: list[Any], n: int, d_type: str) -> Any:
    """One warp's accumulator registers as [16, n]."""
    g, t = _T // 4, _T % 4
    if d_type == "f16":
        values = np.stack(registers).view(np.float16).reshape(-1, LANES, 2).astype(np.float32)
        out = np.empty((16, n), np.float32)
        for j in range(len(registers)):
            for h in range(2):
                out[g + 8 * (j % 2), 8 * (j // 2) + 2 * t + h] = values[j, :, h]
        return out
    values = np.stack(registers).view(np.int32 if d_type == "s32" else np.float32)
    # [tile, row half, column pair member, lane] to [row, column]
    shaped = values.reshape(n // 8, 2, 2, 8, 4)
    return np.ascontiguousarray(shaped.transpose(1, 3, 0, 4, 2)).reshape(16, n)


def _registers(bits: Any, n: int, d_type: str) -> Any:
    """Accumulator bits [16, n] to one warp's registers, u32 [registers, lanes]."""
    shaped = bits.reshape(2, 8, n // 8, 4, 2)
    words = np.ascontiguousarray(shaped.transpose(2, 0, 4, 1, 3)).reshape(n // 2, LANES)
    if d_type == "f16":
        return words[0::2] | (words[1::2] << np.uint32(16))
    return words


def _multiply(a: Any, b: Any, c: Any, d_type: str, saturate: bool) -> Any:
    if d_type == "s32":
        total = (a @ b.T).astype(np.int64) + (0 if c is None else c.astype(np.int64))
        if saturate:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return total.astype(np.int32).view(np.uint32)
    return numerics.finish(numerics.accumulate_exact(a, b, c), d_type)


@instruction("wgmma.fence.sync.aligned")
def _fence(e: Emit) -> Lowered:
    return e.effect(lambda w, m: _converged(w, m, "wgmma.fence"))


@instruction("wgmma.commit_group.sync.aligned")
def _commit(e: Emit) -> Lowered:
    def run(w: "Warp", m: Mask) -> None:
        _converged(w, m, "wgmma.commit_group")
        groups.of(w.scratch, "wgmma").commit(m)

    return e.effect(run)


@instruction("wgmma.wait_group.sync.aligned")
def _wait(e: Emit) -> Lowered:
    return wait_groups(e, "wgmma", e.integer(), False)
