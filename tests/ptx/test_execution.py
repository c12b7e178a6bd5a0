"""Divergence, special registers and warp exchanges: hand-written kernels with results worked out here."""

import numpy as np
import pytest
from ptx.snippets import SCHEDULES, WORDS, failing, run

from moegen.ptx import Check, OperandError, Options, Severity


@pytest.mark.parametrize("options", SCHEDULES)
def test_nested_divergent_loops(options: Options) -> None:
    body = """
    ld.global.u32 %r5, [%rd4];
    and.b32 %r6, %r5, 31;
    mov.u32 %r7, 0;
    mov.u32 %r8, 0;
    OUTER:
    setp.ge.u32 %p1, %r8, %r6;
    @%p1 bra DONE;
    and.b32 %r9, %r8, 3;
    INNER:
    setp.eq.u32 %p2, %r9, 0;
    @%p2 bra NEXT;
    add.u32 %r7, %r7, %r9;
    sub.u32 %r9, %r9, 1;
    bra INNER;
    NEXT:
    add.u32 %r8, %r8, 1;
    shr.u32 %r10, %r5, %r8;
    and.b32 %r10, %r10, 1;
    setp.ne.u32 %p3, %r10, 0;
    @%p3 add.u32 %r7, %r7, 100;
    bra OUTER;
    DONE:
    st.global.u32 [%rd5], %r7;"""

    def want(x: int) -> int:
        total = 0
        for k in range(x & 31):
            total += sum(range((k & 3) + 1))
            total += 100 * (x >> (k + 1) & 1)
        return total

    got, _ = run(body, WORDS, block=64, grid=4, options=options)
    assert got.tolist() == [want(x) for x in WORDS.tolist()]


def test_lanes_that_leave_early_and_partial_warps() -> None:
    body = """
    setp.lt.u32 %p1, %r1, 7;
    @%p1 ret;
    setp.eq.u32 %p2, %r1, 40;
    @%p2 exit;
    st.global.u32 [%rd5], %r1;"""
    got, _ = run(body, np.zeros(48), block=48)
    assert got.tolist() == [0 if k < 7 or k == 40 else k for k in range(48)]


def test_lanes_of_a_warp_may_wait_for_each_other() -> None:
    # Lane 0 spins at a low pc on what lane 5 writes later on.
    body = """
    .shared .align 4 .b32 flag[2];
    mov.u32 %r6, flag;
    st.shared.u32 [%r6], 0;
    bar.warp.sync -1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra OTHERS;
    SPIN:
    ld.volatile.shared.u32 %r5, [%r6];
    setp.eq.u32 %p2, %r5, 0;
    @%p2 bra SPIN;
    bra END;
    OTHERS:
    setp.ne.u32 %p3, %r1, 5;
    @%p3 bra END;
    mov.u32 %r5, 77;
    st.volatile.shared.u32 [%r6], %r5;
    END:
    st.global.u32 [%rd5], %r5;"""
    got, _ = run(body, WORDS, block=32)
    assert got[0] == 77


def test_special_registers_in_three_dimensions() -> None:
    body = """
    mov.u32 %r5, %tid.y;
    mov.u32 %r6, %tid.z;
    mad.lo.u32 %r5, %r6, 100, %r5;
    mov.u32 %r6, %laneid;
    mov.u32 %r7, %nctaid.x;
    mad.lo.u32 %r5, %r5, 1000, %r6;
    mad.lo.u32 %r5, %r7, 1000000, %r5;
    mov.u32 %r8, %tid.y;
    mov.u32 %r9, %ntid.x;
    mad.lo.u32 %r1, %r8, %r9, %r1;
    mov.u32 %r8, %tid.z;
    mad.lo.u32 %r1, %r8, 12, %r1;
    mul.wide.u32 %rd6, %r1, 4;
    add.s64 %rd7, %rd2, %rd6;
    st.global.u32 [%rd7], %r5;"""
    from ptx.snippets import module

    out = np.zeros(24, np.uint32)
    module(body).launch("k", grid=1, block=(4, 3, 2), args=[WORDS, out])
    want = [1_000_000 + 1000 * (t // 4 % 3 + 100 * (t // 12)) + t for t in range(24)]
    assert out.tolist() == want


# -- warp exchanges ----------------------------------------------------------------------------------------------


def test_shuffles() -> None:
    body = """
    shfl.sync.idx.b32 %r5|%p1, %r1, 3, 0x181f, -1;
    shfl.sync.up.b32 %r6|%p2, %r1, 5, 0, -1;
    shfl.sync.down.b32 %r7, %r1, 5, 31, -1;
    shfl.sync.bfly.b32 %r8, %r1, 6, 31, -1;
    selp.u32 %r9, 1, 0, %p2;
    mul.wide.u32 %rd6, %r1, 20;
    add.s64 %rd7, %rd2, %rd6;
    st.global.u32 [%rd7], %r5;
    st.global.u32 [%rd7+4], %r6;
    st.global.u32 [%rd7+8], %r7;
    st.global.u32 [%rd7+12], %r8;
    st.global.u32 [%rd7+16], %r9;"""
    got, _ = run(body, np.zeros(32), out=160)
    out = got.reshape(32, 5)
    lanes = list(range(32))
    assert out[:, 0].tolist() == [k // 8 * 8 + 3 for k in lanes]
    assert out[:, 1].tolist() == [k - 5 if k >= 5 else k for k in lanes]
    assert out[:, 2].tolist() == [k + 5 if k < 27 else k for k in lanes]
    assert out[:, 3].tolist() == [k ^ 6 for k in lanes]
    assert out[:, 4].tolist() == [int(k >= 5) for k in lanes]


def test_votes_matches_and_reductions() -> None:
    body = """
    ld.global.u32 %r5, [%rd4];
    and.b32 %r6, %r5, 1;
    setp.ne.u32 %p1, %r6, 0;
    vote.sync.ballot.b32 %r7, %p1, -1;
    vote.sync.any.pred %p2, !%p1, -1;
    and.b32 %r8, %r5, 3;
    match.any.sync.b32 %r9, %r8, -1;
    redux.sync.add.s32 %r10, %r5, -1;
    redux.sync.min.u32 %r11, %r5, -1;
    elect.sync %r12|%p3, -1;
    selp.u32 %r13, 1, 0, %p3;
    mul.wide.u32 %rd6, %r1, 20;
    add.s64 %rd7, %rd2, %rd6;
    st.global.u32 [%rd7], %r7;
    st.global.u32 [%rd7+4], %r9;
    st.global.u32 [%rd7+8], %r10;
    st.global.u32 [%rd7+12], %r11;
    st.global.u32 [%rd7+16], %r13;"""
    got, _ = run(body, WORDS[:32], out=160)
    out, x = got.reshape(32, 5), WORDS[:32].tolist()
    ballot = sum((v & 1) << k for k, v in enumerate(x))
    assert (out[:, 0] == ballot).all()
    assert out[:, 1].tolist() == [sum((w & 3 == v & 3) << k for k, w in enumerate(x)) for v in x]
    assert (out[:, 2] == sum(x) & 0xFFFFFFFF).all()
    assert (out[:, 3] == min(x)).all()
    assert out[:, 4].tolist() == [1] + [0] * 31


def test_a_sync_waits_for_lanes_on_another_path() -> None:
    body = """
    setp.lt.u32 %p1, %r1, 10;
    @%p1 bra FAST;
    add.u32 %r5, %r1, 100;
    add.u32 %r5, %r5, 100;
    bra JOIN;
    FAST:
    mov.u32 %r5, %r1;
    JOIN:
    shfl.sync.idx.b32 %r6, %r5, 20, 31, -1;
    st.global.u32 [%rd5], %r6;"""
    got, _ = run(body, np.zeros(32))
    assert (got == 220).all()


INDIRECT = """
    ld.global.u32 %r5, [%rd4];
    and.b32 %r6, %r5, 3;
    {
    TABLE: .branchtargets A, B, C, B;
    brx.idx %r6, TABLE;
    A:
    mov.u32 %r7, 10;
    bra END;
    B:
    mov.u32 %r7, 20;
    bra END;
    C:
    mov.u32 %r7, 30;
    END:
    }
    bar.warp.sync -1;
    st.global.u32 [%rd5], %r7;"""


@pytest.mark.parametrize("options", SCHEDULES)
def test_branches_by_index(options: Options) -> None:
    got, _ = run(INDIRECT, WORDS[:64], block=64, options=options)
    assert got.tolist() == np.array([10, 20, 30, 20])[WORDS[:64] & 3].tolist()


def test_an_index_beyond_the_targets_is_a_fault() -> None:
    assert "index" in failing(INDIRECT.replace("and.b32 %r6, %r5, 3", "or.b32 %r6, %r5, 4"), Check.OUT_OF_BOUNDS)


def test_an_indirect_branch_needs_a_list() -> None:
    with pytest.raises(OperandError, match="branchtargets"):
        run(INDIRECT.replace("brx.idx %r6, TABLE", "brx.idx %r6, A"), WORDS)


def test_executed_approximations_are_flagged_on_demand() -> None:
    body = """
    setp.gt.u32 %p1, %r1, 100;
    mov.f32 %f1, 0f40400000;
    rcp.approx.ftz.f32 %f2, %f1;
    div.full.f32 %f2, %f2, %f1;
    @!%p1 bra END;
    ex2.approx.f32 %f2, %f1;
    END:
    st.global.f32 [%rd5], %f2;"""
    asked = Options(severity={Check.APPROXIMATION: Severity.WARNING})
    found = [report.text.split()[0] for report in run(body, WORDS[:32], options=asked)[1].reports]
    assert found == ["rcp.approx.ftz.f32", "div.full.f32"]
    assert run(body, WORDS[:32])[1].reports == []
