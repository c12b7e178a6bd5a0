"""mbarrier instructions."""

from typing import TYPE_CHECKING

import numpy as np

from moegen.ptx.dtypes import LANES, Mask
from moegen.ptx.emit import Emit, Lowered
from moegen.ptx.isa_memory import raise_fault
from moegen.ptx.kernel import BLOCK, YIELD
from moegen.ptx.masks import active_lanes, common_value, first_lane, lane_count
from moegen.ptx.mbarrier import MAX_COUNT, Mbarrier
from moegen.ptx.memory import LOW_MASK, RANK_SHIFT, MemoryFault, low_part
from moegen.ptx.place import Place
from moegen.ptx.program import Address
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.state import Cta
from moegen.ptx.uniform import TRUTH

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

_SPACE = "{,.shared,.shared::cta}"
_ANY_SPACE = "{,.shared,.shared::cta,.shared::cluster}"


def lanes_by_address(w: "Warp", place: Place, m: Mask) -> list[tuple[int, Mask]]:
    """Distinct addresses (window removed) of the active lanes, each with its lanes."""
    common = place.common(w, m)
    if common is not None:
        return [(common & LOW_MASK, m)]
    addresses = low_part(place.lanes(w).astype(np.uint64))
    return [(int(a), m & (addresses == a)) for a in np.unique(addresses[m])]


def locate(w: "Warp", address: int, space: str = "shared::cluster") -> tuple[Cta, int]:
    """CTA and offset of a barrier address; reports misalignment and bounds."""
    cta, offset = w.cta, address
    try:
        cta, offset = w.cta.resolve(address, space)
        if address % 8:
            raise MemoryFault("misaligned", f"mbarrier address {address:#x} is not a multiple of 8", address)
        cta.shared.bytes(offset, 8)
    except MemoryFault as fault:
        raise_fault(w, fault)
    return cta, offset


def barrier_at(w: "Warp", address: int, space: str = "shared::cluster") -> tuple[Cta, Mbarrier]:
    """The initialised barrier at a shared address; reports one that was never initialised."""
    cta, offset = w.cta, address & ((1 << RANK_SHIFT) - 1)
    barrier = cta.mbarriers.get(offset) if address >> RANK_SHIFT == cta.rank else None
    if barrier is None:
        cta, offset = locate(w, address, space)
        barrier = cta.mbarriers.get(offset)
    if barrier is None:
        w.cta.machine.fault(w, Check.MBARRIER, "use of an mbarrier that is not initialised", address=address)
    assert barrier is not None
    races = w.cta.machine.races
    if races is not None:
        races.mbarrier_use(w, cta, offset)
    return cta, barrier


@instruction(f"mbarrier.init{_SPACE}.b64")
def _init(e: Emit) -> Lowered:
    place, count = e.place(), e.src("u32")

    def run(w: "Warp", m: Mask) -> None:
        for address, lanes in lanes_by_address(w, place, m):
            cta, offset = locate(w, address, "shared::cta")
            number = int(w.R[count][first_lane(lanes)])
            if not 1 <= number <= MAX_COUNT:
                w.cta.machine.fault(w, Check.MBARRIER, f"mbarrier.init with count {number}", address=address)
            cta.mbarriers[offset] = Mbarrier(number)
            races = w.cta.machine.races
            if races is not None:
                races.mbarrier_init(w, cta, offset)

    return e.effect(run)


@instruction(f"mbarrier.inval{_SPACE}.b64")
def _inval(e: Emit) -> Lowered:
    place = e.place()

    def run(w: "Warp", m: Mask) -> None:
        for address, _ in lanes_by_address(w, place, m):
            cta, barrier = barrier_at(w, address, "shared::cta")
            del barrier
            offset = address & ((1 << RANK_SHIFT) - 1)
            del cta.mbarriers[offset]
            races = w.cta.machine.races
            if races is not None:
                races.mbarrier_inval(w, cta, offset)

    return e.effect(run)


def _arrive_lanes(w: "Warp", barrier: Mbarrier, address: int, counts: list[int], drop: bool) -> list[int]:
    """Arrivals of several lanes; returns the phase each lane saw."""
    total = sum(counts)
    if not drop and total <= barrier.pending:
        phase = barrier.phase
        barrier.arrive(total)
        return [phase] * len(counts)
    phases = []
    for count in counts:
        phases.append(barrier.phase)
        if not (barrier.drop(count) if drop else barrier.arrive(count)):
            message = f"{count} arrivals at an mbarrier that waits for {barrier.pending} more of {barrier.expected}"
            w.cta.machine.fault(w, Check.MBARRIER, message, address=address)
    return phases


_ARRIVE_SEM = "{,.release.cta,.release.cluster,.relaxed.cta,.relaxed.cluster}"


@instruction(f"mbarrier.{{arrive,arrive_drop}}{{,.expect_tx,.noComplete}}{_ARRIVE_SEM}{_ANY_SPACE}.b64")
def _arrive(e: Emit) -> Lowered:
    expect, drop, no_complete = e.has("expect_tx"), e.mods[1] == "arrive_drop", e.has("noComplete")
    # shared::cluster forms give no state; the destination may then be missing or a sink.
    dst = None if isinstance(e.peek(), Address) else e.dst("b64")
    place = e.place()
    amount = e.src("u32") if e.remaining else None
    if (expect or no_complete) and amount is None:
        raise e.fail("a count is needed")

    def run(w: "Warp", m: Mask) -> None:
        machine = w.cta.machine
        states = np.zeros(LANES, np.uint64)
        for address, lanes in lanes_by_address(w, place, m):
            _, barrier = barrier_at(w, address)
            races = machine.races
            if races is not None:
                races.mbarrier_arrive(w, barrier)
            counts = [1] * lane_count(lanes) if amount is None else w.R[amount][lanes].tolist()
            if expect:
                barrier.expect(sum(counts))
                counts = [1] * len(counts)
            phases = _arrive_lanes(w, barrier, address, counts, drop)
            if dst is not None:
                states[lanes] = phases
        machine.events += 1
        if dst is not None:
            w.set(dst, states, m)

    return e.effect(run)


@instruction(f"mbarrier.{{expect_tx,complete_tx}}{{,.relaxed.cta,.relaxed.cluster}}{_ANY_SPACE}.b64")
def _tx(e: Emit) -> Lowered:
    place, amount = e.place(), e.src("u32")
    expect = e.mods[1] == "expect_tx"

    def run(w: "Warp", m: Mask) -> None:
        for address, lanes in lanes_by_address(w, place, m):
            _, barrier = barrier_at(w, address)
            total = int(w.R[amount][lanes].astype(np.int64).sum())
            if expect:
                barrier.expect(total)
            else:
                barrier.complete_tx(total)
        w.cta.machine.events += 1

    return e.effect(run)


_WAIT_SEM = "{,.acquire.cta,.acquire.cluster,.relaxed.cta,.relaxed.cluster}"


@instruction(f"mbarrier.{{test_wait,try_wait}}{{,.parity}}{_WAIT_SEM}{_SPACE}.b64")
def _wait(e: Emit) -> Lowered:
    dst, place = e.dst("pred"), e.place()
    parity = e.has("parity")
    token = e.src("u32" if parity else "b64")
    may_block = e.mods[1] == "try_wait"
    if may_block and e.remaining:
        e.src("u32")

    def passed(barrier: Mbarrier, value: int) -> bool:
        return barrier.passed(value) if parity else barrier.phase != value

    def by_lane(w: "Warp", m: Mask) -> int:
        result = np.zeros(LANES, np.bool_)
        for lane in active_lanes(m):
            _, barrier = barrier_at(w, place.lane(w, lane) & LOW_MASK, "shared::cta")
            result[lane] = passed(barrier, w.R[token].item(lane))
            if result[lane] and w.cta.machine.races is not None:
                w.cta.machine.races.mbarrier_wait(w, barrier)
        w.set(dst, result, m)
        return YIELD

    def run(w: "Warp", m: Mask) -> int | None:
        machine = w.cta.machine
        address, value = place.common(w, m), common_value(w.R[token], m)
        if address is None or value is None:
            return by_lane(w, m)
        _, barrier = barrier_at(w, address & LOW_MASK, "shared::cta")
        done = passed(barrier, value)
        refuse = machine.rng.random() < machine.options.timeout_probability
        if done and not (refuse and may_block):
            if machine.races is not None:
                machine.races.mbarrier_wait(w, barrier)
            w.scratch.pop("may_expire", None)
            w.set(dst, TRUTH[True], m)
            return None
        if may_block and not refuse and not w.scratch.pop("expired", False):
            w.wait = (lambda: (barrier.phase & 1) != (value & 1)) if parity else (lambda: barrier.phase != value)
            w.scratch["may_expire"] = True
            return BLOCK
        w.scratch.pop("may_expire", None)
        w.set(dst, TRUTH[False], m)
        return YIELD

    return e.effect(run)
