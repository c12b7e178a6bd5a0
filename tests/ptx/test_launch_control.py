"""clusterlaunchcontrol: clusters take over the work of clusters that have not started."""

import numpy as np
import pytest
from ptx.snippets import SCHEDULES, failing, run

from moegen.ptx import Check, Options

# One thread per CTA: counts the tasks it does, its own and those of the clusters that it cancels.
TASKS = """
    .shared .align 16 .b8 response[16];
    .shared .align 8 .b64 bar;
    .reg .b128 %q1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    mbarrier.init.shared.b64 [bar], 1;
    fence.mbarrier_init.release.cluster;
    mov.u32 %r5, %ctaid.x;
    mov.u32 %r6, %ctaid.y;
    mov.u32 %r7, 0;
    mov.u32 %r22, %nctaid.x;
    setp.eq.u32 %p4, %r1, 0;
    mov.u32 %r20, response;
    mov.u32 %r21, bar;
    NEXT:
    mad.lo.u32 %r8, %r6, %r22, %r5;
    mul.wide.u32 %rd6, %r8, 4;
    add.s64 %rd7, %rd2, %rd6;
    red.global.add.u32 [%rd7], 1;
    mbarrier.arrive.expect_tx.shared.b64 %rd8, [%r21], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r20], [%r21];
    WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r21], %r7;
    @!%p2 bra WAIT;
    xor.b32 %r7, %r7, 1;
    ld.shared.b128 %q1, [%r20];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q1;
    @!%p3 bra DONE;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r5, %r6, _, _}, %q1;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r9, %q1;
    fence.proxy.async.shared::cta;
    bra NEXT;
    DONE:"""


@pytest.mark.parametrize("resident", [1, 2, 0])
@pytest.mark.parametrize("options", SCHEDULES)
def test_every_task_is_done_once(options: Options, resident: int) -> None:
    chosen = Options(**{**options.__dict__, "resident_clusters": resident})
    done, result = run(TASKS, np.zeros(21), grid=(7, 3, 1), options=chosen)
    assert done.tolist() == [1] * 21
    assert result.reports == []


def test_several_lanes_or_a_misplaced_response_are_refused() -> None:
    several = TASKS.replace("setp.ne.u32 %p1, %r1, 0;", "setp.gt.u32 %p1, %r1, 3;")
    several = several.replace("mbarrier.arrive.expect_tx", "@%p4 mbarrier.arrive.expect_tx")
    assert "try_cancel by 4 lanes" in failing(several, Check.CONVERGENCE)
    misplaced = TASKS.replace("%r20, response;", "%r20, response; add.u32 %r20, %r20, 8;")
    assert "multiple of 16" in failing(misplaced, Check.MISALIGNED)
