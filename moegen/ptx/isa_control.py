"""Control flow, traps, fences and hints."""

from typing import TYPE_CHECKING

import numpy as np

from moegen.ptx.dtypes import ALL, Mask
from moegen.ptx.emit import Branch, Effect, Emit, Exit, Lowered, Pure
from moegen.ptx.kernel import BLOCK, SWITCH
from moegen.ptx.masks import first_lane
from moegen.ptx.memory import SHARED_WINDOW
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp


@instruction("bra{,.uni}")
def _bra(e: Emit) -> Lowered:
    target = e.label()
    e.done()
    return Branch(target)


@instruction("brx.idx{,.uni}")
def _branch_by_index(e: Emit) -> Lowered:
    index, targets = e.src("u32"), e.targets()

    def run(w: "Warp", m: Mask) -> int:
        chosen = w.R[index]
        wrong = m & (chosen >= len(targets))
        if wrong.any():
            lane = first_lane(wrong)
            message = f"brx.idx with index {int(chosen[lane])} of {len(targets)} targets"
            w.cta.machine.fault(w, Check.OUT_OF_BOUNDS, message, lane)
        w.scatter([(target, m & (chosen == number)) for number, target in enumerate(targets)], w.pc + 1)
        return SWITCH

    return e.effect(run)


@instruction("ret{,.uni}", "exit")
def _exit(e: Emit) -> Lowered:
    e.done()
    return Exit()


@instruction("trap")
def _trap(e: Emit) -> Lowered:
    def run(w: "Warp", m: Mask) -> None:
        w.cta.machine.fault(w, Check.TRAP, "the kernel executed trap")

    return e.effect(run)


@instruction("brkpt", "nanosleep.u32", "pmevent")
def _pause(e: Emit) -> Lowered:
    if e.mods[0] != "brkpt":
        e.src("u32")
    return e.effect(lambda w, m: None)


def hint(e: Emit) -> Lowered:
    """An instruction without effect on results."""
    e.done()
    return Pure([])


@instruction("setmaxnreg.{inc,dec}.sync.aligned.u32")
def _setmaxnreg(e: Emit) -> Lowered:
    count = e.integer()
    if not 24 <= count <= 256 or count % 8:
        raise e.fail(f"setmaxnreg {count}: a multiple of 8 from 24 to 256 is needed")

    def run(w: "Warp", m: Mask) -> None:
        if m is not ALL:
            w.cta.machine.fault(w, Check.CONVERGENCE, "setmaxnreg with some lanes inactive")

    return e.effect(run)


@instruction(
    "membar.{cta,gl,sys}",
    "fence{,.sc,.acq_rel,.acquire,.release}.{cta,cluster,gpu,sys}",
    "fence.{acquire,release}.sync_restrict::{shared::cta,shared::cluster}.cluster",
)
def _fence(e: Emit) -> Lowered:
    # Memory is sequentially consistent here; fences matter to the race detector only.
    scope = e.mods[-1]
    e.done()

    def run(w: "Warp", m: Mask) -> None:
        races = w.cta.machine.races
        if races is not None:
            races.memory.fence(w, scope)

    return Effect(run)


@instruction("fence.mbarrier_init.release.cluster")
def _fence_init(e: Emit) -> Lowered:
    def run(w: "Warp", m: Mask) -> None:
        races = w.cta.machine.races
        if races is not None:
            races.fence_init(w)

    return e.effect(run)


@instruction("fence.proxy.async{,.global,.shared::cta,.shared::cluster}", "fence.proxy.alias")
def _fence_proxy(e: Emit) -> Lowered:
    e.done()

    def run(w: "Warp", m: Mask) -> None:
        races = w.cta.machine.races
        if races is not None:
            races.fence_proxy(w)

    return Effect(run)


@instruction("fence.proxy.tensormap::generic.release.{cta,cluster,gpu,sys}")
def _fence_tensormap_release(e: Emit) -> Lowered:
    return e.effect(lambda w, m: None)


@instruction("fence.proxy.async::generic.{acquire,release}.sync_restrict::{shared::cta,shared::cluster}.cluster")
def _fence_proxy_restricted(e: Emit) -> Lowered:
    def run(w: "Warp", m: Mask) -> None:
        races = w.cta.machine.races
        if races is not None:
            races.fence_proxy(w)

    return e.effect(run)


@instruction("griddepcontrol.launch_dependents")
def _launch_dependents(e: Emit) -> Lowered:
    def run(w: "Warp", m: Mask) -> None:
        w.cta.grid.trigger(w.cta)

    return e.effect(run)


@instruction("griddepcontrol.wait")
def _dependency_wait(e: Emit) -> Lowered:
    def run(w: "Warp", m: Mask) -> int | None:
        primary = w.cta.grid.primary
        if primary is None or primary.complete:
            races = w.cta.machine.races
            if races is not None:
                races.memory.waited(w)
            return None
        w.wait = lambda: primary.complete
        return BLOCK

    return e.effect(run)


@instruction("isspacep.{global,shared,shared::cta,shared::cluster,local,const,param}")
def _isspacep(e: Emit) -> Lowered:
    dst, a = e.dst("pred"), e.src("u64")
    space = e.mods[1].split("@")[0]
    if space == "const":
        return e.pure(dst, f"R[{a}] != R[{a}]")
    window = {"global": 0, "shared": 1, "local": 2, "param": 3}[space]
    return e.pure(dst, f"(R[{a}] >> U8.type({SHARED_WINDOW.bit_length() - 1})) == {window}")


@instruction("createpolicy.fractional.L2::{evict_first,evict_last,evict_normal,evict_unchanged}.b64")
def _policy(e: Emit) -> Lowered:
    dst = e.dst("b64")
    if e.remaining:
        e.src("f32")
    zero = e.const(0, "<u8")
    return e.pure(dst, f"R[{zero}]")


@instruction("activemask.b32")
def _activemask(e: Emit) -> Lowered:
    dst = e.dst("b32")

    def run(w: "Warp", m: Mask) -> None:
        bits = np.packbits(w.mask, bitorder="little").view(np.uint32)
        w.set(dst, np.repeat(bits, 32), m)

    return e.effect(run)
