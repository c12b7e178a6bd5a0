"""clusterlaunchcontrol: a running cluster takes over the work of one that has not started.

The 16-byte response is opaque in PTX; here its words are 1 and the first CTA's x, y, z, or zeros if there was nothing
to cancel.
"""

from typing import TYPE_CHECKING

import numpy as np

from moegen.ptx.asyncs import Operation
from moegen.ptx.dtypes import Mask
from moegen.ptx.emit import Emit, Lowered, Pure
from moegen.ptx.isa_copy import Site, deliver, poison
from moegen.ptx.isa_memory import raise_fault
from moegen.ptx.masks import lane_count
from moegen.ptx.memory import LOW_MASK, MemoryFault
from moegen.ptx.program import Sink
from moegen.ptx.registry import instruction
from moegen.ptx.report import Check

if TYPE_CHECKING:
    from moegen.ptx.state import Grid
    from moegen.ptx.warp import Warp

_RESPONSE = 16


def cancel(grid: "Grid") -> np.ndarray:
    """Takes the next cluster from the queue of those that have not started; the response's bytes."""
    words = [0, 0, 0, 0]
    if grid.queue:
        words = [1, *grid.queue.pop()]
        grid.total -= grid.cluster_shape[0] * grid.cluster_shape[1] * grid.cluster_shape[2]
    return np.array(words, np.uint32).view(np.uint8)


@instruction(
    "clusterlaunchcontrol.try_cancel.async{,.shared::cta}.mbarrier::complete_tx::bytes{,.multicast::cluster::all}.b128"
)
def _try_cancel(e: Emit) -> Lowered:
    dst, bar = e.place(), e.place()
    everywhere = e.has("multicast::cluster::all")

    def run(w: "Warp", m: Mask) -> None:
        machine, site = w.cta.machine, Site(w)
        if lane_count(m) != 1:
            machine.fault(w, Check.CONVERGENCE, f"try_cancel by {lane_count(m)} lanes: one is needed")
        lane = int(m.argmax())
        targets = w.cta.cluster.ctas if everywhere else [w.cta]
        try:
            place, barrier = (w.cta.resolve(p.lane(w, lane) & LOW_MASK)[1] for p in (dst, bar))
            if place % _RESPONSE:
                raise MemoryFault("misaligned", f"a response at {place:#x}: a multiple of 16 is needed", place)
            for cta in targets:
                poison(cta, place, _RESPONSE)
        except MemoryFault as fault:
            raise_fault(w, fault)
            return
        ticket = machine.races.issue(w, "tma") if machine.races is not None else None

        def respond() -> None:
            response = cancel(w.cta.grid)
            for cta in targets:
                cta.shared.bytes(place, _RESPONSE)[:] = response
                if ticket is not None:
                    ticket.at_barrier(cta, barrier)
                    ticket.write_range(cta, place, _RESPONSE)
                deliver(cta, barrier, _RESPONSE, site, ticket)

        machine.engine.submit(("bulk", machine.next_serial()), Operation(respond))

    return e.effect(run)


def _word(slot: int, number: int) -> str:
    return f"R[{slot}].view(U4).reshape(32, 4)[:, {number}].copy()"


@instruction("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128")
def _is_canceled(e: Emit) -> Lowered:
    dst, response = e.dst("pred"), e.src("b128")
    e.done()
    return Pure([(dst, "t")], f"t = {_word(response, 0)} != 0")


@instruction(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::{x,y,z}.b32.b128",
)
def _first_cta(e: Emit) -> Lowered:
    if e.has("v4"):
        wanted = list(enumerate(e.vector(4)))
    else:
        wanted = [("xyz".index(e.mods[2][-1]), e.take())]
    response = e.src("b128")
    e.done()
    outs = [
        (e.as_dest(item, e.type(-2)), _word(response, number + 1))
        for number, item in wanted
        if not isinstance(item, Sink) and number < 3
    ]
    return Pure(outs)
