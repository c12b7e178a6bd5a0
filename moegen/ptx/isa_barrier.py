"""CTA barriers (bar, barrier) and cluster barriers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.dtypes import ALL, LANES, Mask
from moegen.ptx.emit import Emit, Lowered
from moegen.ptx.kernel import BLOCK
from moegen.ptx.masks import common_value, first_lane
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check
from moegen.ptx.state import Cta, NamedBarrier

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp


def _converged(w: "Warp", m: Mask, aligned: bool) -> int | None:
    """Waits for lanes of this warp that run elsewhere; all of them take part in a CTA barrier."""
    if m is ALL or (m == w.live).all():
        return None
    if not w.groups:
        kind = "an aligned barrier" if aligned else "a barrier"
        w.cta.machine.fault(w, Check.CONVERGENCE, f"{kind} that some lanes of the warp do not execute")
    w.wait = lambda: False
    return BLOCK


def _arrive(w: "Warp", barrier: NamedBarrier, number: int, threads: int, waits: bool) -> None:
    """Counts a warp's arrival; completes the generation when all have come."""
    cta = w.cta
    if threads % LANES or threads <= 0:
        cta.machine.fault(w, Check.BARRIER, f"barrier {number} with {threads} threads, not a multiple of {LANES}")
    if barrier.arrived and barrier.expected != threads:
        message = f"barrier {number} is used with {threads} threads while {barrier.expected} are expected"
        cta.machine.fault(w, Check.BARRIER, message)
    if w.index in barrier.parties:
        cta.machine.fault(w, Check.BARRIER, f"warp {w.index} arrives twice at barrier {number} in one generation")
    barrier.expected = threads
    barrier.arrived += LANES
    barrier.parties.append(w.index)
    races = cta.machine.races
    if races is not None:
        races.barrier_arrive(w, barrier)
    cta.machine.events += 1
    if barrier.arrived > threads:
        cta.machine.fault(w, Check.BARRIER, f"barrier {number}: {barrier.arrived} arrivals for {threads} threads")
    if barrier.arrived == threads:
        _complete(barrier)


def _complete(barrier: NamedBarrier) -> None:
    barrier.generation += 1
    barrier.arrived = 0
    barrier.parties = []


def _threads_of(cta: Cta) -> int:
    return (cta.grid.threads + LANES - 1) // LANES * LANES


def _synchronise(w: "Warp", number: int, threads: int) -> int | None:
    """Arrives once, then waits for the generation to end."""
    key = ("bar", w.pc)
    state = w.scratch.get(key)
    barrier = w.cta.barrier(number)
    if state is None:
        generation = barrier.generation
        _arrive(w, barrier, number, threads, waits=True)
        state = w.scratch[key] = (generation, barrier)
    generation = state[0]
    if barrier.generation == generation:
        w.wait = lambda: barrier.generation != generation
        return BLOCK
    del w.scratch[key]
    races = w.cta.machine.races
    if races is not None:
        races.barrier_wait(w, barrier)
    return None


def _number(w: "Warp", slot: int, m: Mask) -> int:
    number = common_value(w.R[slot], m)
    if number is None or number > 15:
        seen = w.R[slot].item(first_lane(m))
        w.cta.machine.fault(w, Check.BARRIER, f"barrier number {seen}: 0 to 15, equal in all lanes, is needed")
        return seen
    return number


def _operands(e: Emit) -> tuple[int, int | None]:
    number = e.src("u32")
    count = e.src("u32") if e.remaining else None
    return number, count


@instruction("{bar.sync,bar.cta.sync,barrier.sync.aligned,barrier.sync,barrier.cta.sync.aligned,barrier.cta.sync}")
def _bar_sync(e: Emit) -> Lowered:
    aligned = e.mods[0] == "bar" or e.has("aligned")
    number, count = _operands(e)

    def run(w: "Warp", m: Mask) -> int | None:
        if _converged(w, m, aligned) is not None:
            return BLOCK
        threads = _threads_of(w.cta) if count is None else int(w.R[count][first_lane(m)])
        return _synchronise(w, _number(w, number, m), threads)

    return e.effect(run)


@instruction(
    "{bar.arrive,bar.cta.arrive,barrier.arrive.aligned,barrier.arrive,barrier.cta.arrive.aligned,barrier.cta.arrive}"
)
def _bar_arrive(e: Emit) -> Lowered:
    aligned = e.mods[0] == "bar" or e.has("aligned")
    number, count = e.src("u32"), e.src("u32")

    def run(w: "Warp", m: Mask) -> int | None:
        if _converged(w, m, aligned) is not None:
            return BLOCK
        which = _number(w, number, m)
        _arrive(w, w.cta.barrier(which), which, int(w.R[count][first_lane(m)]), waits=False)
        return None

    return e.effect(run)


@instruction(
    "{bar,bar.cta,barrier,barrier.cta}.red{,.aligned}.popc.u32",
    "{bar,bar.cta,barrier,barrier.cta}.red{,.aligned}.{and,or}.pred",
)
def _bar_red(e: Emit) -> Lowered:
    operation = e.mods[-2]
    dst = e.dst("u32" if operation == "popc" else "pred")
    number = e.src("u32")
    # The thread count is optional and precedes the predicate.
    count = e.src("u32") if e.remaining == 2 else None
    slot, negated = e.pred()

    def run(w: "Warp", m: Mask) -> int | None:
        if _converged(w, m, True) is not None:
            return BLOCK
        which = _number(w, number, m)
        barrier = w.cta.barrier(which)
        key = f"red{w.pc}"
        if ("bar", w.pc) not in w.scratch:
            if not barrier.arrived:
                barrier.reduction = []
            barrier.reduction.append((~w.R[slot] if negated else w.R[slot])[m])
            w.scratch[key] = barrier.reduction
        threads = _threads_of(w.cta) if count is None else int(w.R[count][first_lane(m)])
        if _synchronise(w, which, threads) is not None:
            return BLOCK
        votes = np.concatenate(w.scratch.pop(key))
        result: Any = {"popc": votes.sum, "and": votes.all, "or": votes.any}[operation]()
        w.set(dst, np.full(LANES, result, np.uint32 if operation == "popc" else np.bool_), m)
        return None

    return e.effect(run)


# -- clusters ----------------------------------------------------------------------------------------------------


@instruction("barrier.cluster.arrive{,.release,.relaxed}{,.aligned}")
def _cluster_arrive(e: Emit) -> Lowered:
    relaxed = e.has("relaxed")

    def run(w: "Warp", m: Mask) -> int | None:
        if _converged(w, m, e.has("aligned")) is not None:
            return BLOCK
        cluster = w.cta.cluster
        me = (w.cta.rank, w.index)
        if me in cluster.arrived:
            w.cta.machine.fault(w, Check.BARRIER, "a warp arrives twice at the cluster barrier without a wait")
        w.scratch["cluster"] = cluster.generation
        cluster.arrived.add(me)
        races = w.cta.machine.races
        if races is not None:
            races.cluster_arrive(w, relaxed)
        w.cta.machine.events += 1
        cluster_progress(cluster)
        return None

    return e.effect(run)


def cluster_progress(cluster: Any) -> None:
    """Completes the cluster barrier when every warp that still runs has arrived."""
    running = {(cta.rank, w.index) for cta in cluster.ctas for w in cta.warps if not w.done}
    if cluster.arrived and running <= cluster.arrived:
        cluster.arrived.clear()
        cluster.generation += 1


@instruction("barrier.cluster.wait{,.acquire}{,.aligned}")
def _cluster_wait(e: Emit) -> Lowered:
    def run(w: "Warp", m: Mask) -> int | None:
        if _converged(w, m, e.has("aligned")) is not None:
            return BLOCK
        generation = w.scratch.get("cluster")
        cluster = w.cta.cluster
        if generation is None:
            w.cta.machine.fault(w, Check.BARRIER, "barrier.cluster.wait without an arrive")
            return None
        if cluster.generation == generation:
            w.wait = lambda: cluster.generation != generation
            return BLOCK
        del w.scratch["cluster"]
        races = w.cta.machine.races
        if races is not None:
            races.cluster_wait(w)
        return None

    return e.effect(run)


@instruction("mapa{,.shared::cluster}.{u32,u64}")
def _mapa(e: Emit) -> Lowered:
    kind = e.type()
    dst, a, rank = e.dst(kind), e.src(kind), e.src("u32")
    n = kind.nbytes
    if e.has("shared::cluster") or n == 4:
        keep = 0xFFFFFF
    else:  # a generic address keeps its window
        keep = 0xFF00000000FFFFFF
    return e.pure(dst, f"(R[{a}] & U{n}.type({keep})) | (R[{rank}].astype(U{n}) << U{n}.type(24))")


@instruction("getctarank{,.shared::cluster}.{u32,u64}")
def _getctarank(e: Emit) -> Lowered:
    kind = e.type()
    dst, a = e.dst("u32"), e.src(kind)
    return e.pure(dst, f"((R[{a}] >> U{kind.nbytes}.type(24)) & U{kind.nbytes}.type(255)).astype(U4)")
