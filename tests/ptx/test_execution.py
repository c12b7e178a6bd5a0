"""Divergence, memory, warp exchanges, barriers, clusters: hand-written kernels with results worked out here."""

from typing import Any

import numpy as np
import pytest
from ptx.snippets import run

from moegen.ptx import Check, ExecutionError, Options, Policy

WORDS = np.random.default_rng(3).integers(0, 1 << 32, 256).astype(np.uint32)
SCHEDULES = [
    Options(seed=1, races=True),
    Options(seed=2, policy=Policy.LAZY, slice_steps=3),
    Options(seed=3, policy=Policy.EAGER, slice_steps=500, timeout_probability=0.5),
]


def failing(body: str, check: Check, **more: Any) -> str:
    """Runs a kernel that must be refused with a finding; its text."""
    with pytest.raises(ExecutionError) as caught:
        run(body, WORDS, **more)
    report = caught.value.report
    assert report is not None
    assert report.check is check, str(report)
    assert report.kernel == "k"
    assert report.line > 0 or check is Check.DEADLOCK or report.cta >= 0
    return str(report)


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


# -- memory ------------------------------------------------------------------------------------------------------


def test_widths_signs_and_vectors() -> None:
    body = """
    .shared .align 16 .b8 s[2048];
    .reg .s16 %s<3>;
    mov.u32 %r6, s;
    mad.lo.u32 %r7, %r1, 16, %r6;
    mul.wide.u32 %rd6, %r1, 16;
    add.s64 %rd7, %rd1, %rd6;
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd7];
    st.shared.v2.u32 [%r7], {%r11, %r10};
    st.shared.u16 [%r7+8], %h1;
    st.shared.b32 [%r7+8], %r12;
    ld.shared.s8 %s1, [%r7+9];
    cvt.s32.s16 %r14, %s1;
    ld.shared.u16 %h2, [%r7+10];
    cvt.u32.u16 %r15, %h2;
    ld.shared.s16 %r16, [%r7+2];
    cvt.u64.u32 %rd8, %r7;
    cvta.shared.u64 %rd8, %rd8;
    ld.u64 %rd9, [%rd8];
    shr.u64 %rd9, %rd9, 32;
    cvt.u32.u64 %r17, %rd9;
    mul.wide.u32 %rd6, %r1, 16;
    add.s64 %rd7, %rd2, %rd6;
    st.global.v4.b32 [%rd7], {%r14, %r15, %r16, %r17};"""
    got, _ = run(body, WORDS, block=32, out=128)
    rows, out = WORDS.reshape(-1, 4)[:32].astype(np.int64), got.reshape(32, 4)
    assert out[:, 0].view(np.int32).tolist() == (((rows[:, 2] >> 8 & 255) ^ 128) - 128).tolist()
    assert out[:, 1].tolist() == (rows[:, 2] >> 16).tolist()
    assert out[:, 2].view(np.int32).tolist() == (((rows[:, 1] >> 16) ^ 0x8000) - 0x8000).tolist()
    assert out[:, 3].tolist() == rows[:, 0].tolist()


def test_local_memory_is_private() -> None:
    body = """
    .local .align 8 .b8 depot[64];
    mov.u64 %rd6, depot;
    cvta.local.u64 %rd7, %rd6;
    and.b32 %r5, %r1, 15;
    mul.wide.u32 %rd8, %r5, 4;
    add.s64 %rd9, %rd7, %rd8;
    st.u32 [%rd9], %r1;
    add.s64 %rd9, %rd6, %rd8;
    ld.local.u32 %r6, [%rd9];
    st.global.u32 [%rd5], %r6;"""
    got, _ = run(body, np.zeros(64), block=64)
    assert got.tolist() == list(range(64))


def test_module_variables() -> None:
    extra = ".global .align 4 .u32 counter = 5;\n.const .align 4 .b32 table[4] = {10, 20, 0xFFFFFFFF, -4};"
    body = """
    and.b32 %r5, %r1, 3;
    mul.wide.u32 %rd6, %r5, 4;
    mov.u64 %rd7, table;
    add.s64 %rd7, %rd7, %rd6;
    ld.const.u32 %r6, [%rd7];
    atom.global.add.u32 %r7, [counter], 1;
    add.u32 %r6, %r6, %r7;
    st.global.u32 [%rd5], %r6;"""
    got, _ = run(body, np.zeros(32), extra=extra)
    table = [10, 20, 0xFFFFFFFF, 0xFFFFFFFC]
    assert got.tolist() == [(table[k % 4] + 5 + k) & 0xFFFFFFFF for k in range(32)]


def test_atomics_return_old_values_and_add_up() -> None:
    body = """
    .shared .align 8 .b64 cell[2];
    mov.u32 %r6, cell;
    mov.b64 %rd6, 0;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.shared.b64 [%r6], %rd6;
    @%p1 st.shared.b64 [%r6+8], %rd6;
    bar.sync 0;
    ld.global.u32 %r5, [%rd4];
    atom.shared.add.u32 %r7, [%r6], %r5;
    atom.shared.max.s32 %r8, [%r6+4], %r5;
    red.shared.xor.b32 [%r6+8], %r5;
    atom.shared.cas.b32 %r9, [%r6+12], 0, %r5;
    bar.sync 0;
    ld.shared.u32 %r10, [%r6];
    ld.shared.u32 %r11, [%r6+4];
    ld.shared.u32 %r12, [%r6+8];
    xor.b32 %r10, %r10, %r11;
    xor.b32 %r10, %r10, %r12;
    st.global.u32 [%rd5], %r10;
    st.global.u32 [%rd5+256], %r7;"""
    got, _ = run(body, WORDS[:64], block=64, out=128, options=Options(races=True))
    total = sum(WORDS[:64].tolist()) & 0xFFFFFFFF
    top = max(0, int(WORDS[:64].view(np.int32).max()))
    assert (got[:64] == (total ^ top ^ np.bitwise_xor.reduce(WORDS[:64]))).all()
    before = sorted(got[64:].tolist())
    assert 0 in before
    assert len(set(before)) == 64


def test_half_atomics_round_each_step() -> None:
    body = """
    .shared .align 4 .b32 cell[1];
    mov.u32 %r6, cell;
    st.shared.u32 [%r6], 0;
    bar.sync 0;
    mov.b32 %r5, 0x3f803f00;
    red.shared.add.noftz.bf16x2 [%r6], %r5;
    bar.sync 0;
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%rd5], %r7;"""
    got, _ = run(body, np.zeros(32))
    # 32 x 0.5 = 16 and 32 x 1.0 = 32, both exact in bf16.
    assert (got == (0x4200 << 16 | 0x4180)).all()


@pytest.mark.parametrize(
    ("body", "check", "text"),
    [
        ("add.s64 %rd4, %rd4, 4096; ld.global.u32 %r5, [%rd4];", Check.OUT_OF_BOUNDS, "lane"),
        ("ld.global.u32 %r5, [%rd4+2];", Check.MISALIGNED, "multiple of 4"),
        ("mov.u32 %r5, 3000; ld.shared.u32 %r6, [%r5];", Check.OUT_OF_BOUNDS, "shared load"),
        ("mov.u32 %r5, 1026; st.shared.u32 [%r5], %r6;", Check.MISALIGNED, "multiple of 4"),
        ("setp.eq.u32 %p1, %r1, 9; @%p1 ld.global.u8 %h1, [8];", Check.OUT_OF_BOUNDS, "no allocation"),
        ("cvta.shared.u64 %rd6, 1024; st.u32 [%rd6], %r1; trap;", Check.OUT_OF_BOUNDS, "shared store"),
        ("trap;", Check.TRAP, "trap"),
        ("bar.sync 0, 48;", Check.BARRIER, "48 threads"),
        ("bar.sync 17;", Check.BARRIER, "17"),
        ("barrier.cluster.wait;", Check.BARRIER, "without an arrive"),
        ("setp.lt.u32 %p1, %r1, 3; @%p1 bra L; bar.sync 1; bra M; L: bar.sync 2; M: ret;", Check.DEADLOCK, "29 lanes"),
        ("setp.lt.u32 %p1, %r1, 3; @%p1 bar.warp.sync 0xF0;", Check.CONVERGENCE, "names 0xf0 only"),
        ("L: bra L;", Check.STEP_LIMIT, "steps"),
        ("mbarrier.arrive.shared.b64 %rd6, [1024];", Check.MBARRIER, "not initialised"),
        ("setp.eq.u32 %p1, %r1, 0; @!%p1 bra L; bar.sync 1, 64; L: ret;", Check.DEADLOCK, "bar.sync 1, 64"),
    ],
)
def test_faults_name_their_place(body: str, check: Check, text: str) -> None:
    directives = ""
    more: dict[str, Any] = {"extra": "", "smem": 0}
    if "shared" in body or "mbarrier" in body:
        body = ".shared .align 8 .b8 room[16];\n" + body
    if "trap" in body and "cvta" in body:
        body = body.replace(".shared .align 8 .b8 room[16];\n", "")
    report = failing(body, check, directives=directives, options=Options(max_steps=2000), **more)
    assert text in report


# -- barriers ----------------------------------------------------------------------------------------------------


def test_a_barrier_that_never_completes_is_a_deadlock() -> None:
    body = """
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra L;
    bar.sync 1, 64;
    L:
    bar.sync 2, 64;"""
    report = failing(body, Check.DEADLOCK, block=64)
    assert "warp 0" in report
    assert "bar.sync 1" in report
    assert "bar.sync 2" in report


def test_a_spin_on_an_mbarrier_nobody_completes_is_a_deadlock() -> None:
    body = """
    .shared .align 8 .b64 bar;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra SKIP;
    mbarrier.init.shared.b64 [bar], 1;
    SKIP:
    bar.warp.sync -1;
    WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;
    @!%p2 bra WAIT;"""
    assert "try_wait" in failing(body, Check.DEADLOCK)


@pytest.mark.parametrize("options", SCHEDULES)
def test_named_barriers_between_producers_and_consumers(options: Options) -> None:
    body = """
    .shared .align 4 .b32 s[64];
    mov.u32 %r6, s;
    mov.u32 %r7, 0;
    shl.b32 %r8, %r1, 2;
    and.b32 %r8, %r8, 127;
    add.u32 %r9, %r6, %r8;
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra CONSUMER;
    PRODUCER:
    bar.sync 1, 64;
    mad.lo.u32 %r10, %r7, 1000, %r1;
    st.shared.u32 [%r9], %r10;
    bar.arrive 2, 64;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p2, %r7, 5;
    @%p2 bra PRODUCER;
    bra END;
    CONSUMER:
    mov.u32 %r11, 0;
    LOOP:
    bar.arrive 1, 64;
    bar.sync 2, 64;
    ld.shared.u32 %r12, [%r9];
    add.u32 %r11, %r11, %r12;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p2, %r7, 5;
    @%p2 bra LOOP;
    st.global.u32 [%rd5], %r11;
    END:"""
    got, _ = run(body, np.zeros(64), block=64, options=options)
    assert got[32:].tolist() == [10_000 + 5 * k for k in range(32)]


def test_barrier_reductions() -> None:
    body = """
    setp.lt.u32 %p1, %r1, 40;
    barrier.red.popc.u32 %r5, 0, %p1;
    barrier.red.and.pred %p2, 1, 64, %p1;
    barrier.red.or.pred %p3, 2, %p1;
    selp.u32 %r6, 1000, 0, %p2;
    selp.u32 %r7, 2000, 0, %p3;
    add.u32 %r5, %r5, %r6;
    add.u32 %r5, %r5, %r7;
    st.global.u32 [%rd5], %r5;"""
    got, _ = run(body, np.zeros(64), block=64)
    assert (got == 2040).all()


@pytest.mark.parametrize("options", SCHEDULES)
def test_clusters_share_memory(options: Options) -> None:
    body = """
    .shared .align 8 .b32 s[32];
    mov.u32 %r5, %cluster_ctarank;
    mov.u32 %r6, s;
    shl.b32 %r7, %r1, 2;
    add.u32 %r8, %r6, %r7;
    mad.lo.u32 %r9, %r5, 100, %r1;
    st.shared.u32 [%r8], %r9;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    add.u32 %r10, %r5, 1;
    and.b32 %r10, %r10, 3;
    mapa.shared::cluster.u32 %r11, %r8, %r10;
    ld.shared::cluster.u32 %r12, [%r11];
    cvt.u64.u32 %rd6, %r8;
    cvta.shared.u64 %rd6, %rd6;
    mapa.u64 %rd7, %rd6, %r10;
    ld.u32 %r13, [%rd7];
    getctarank.shared::cluster.u32 %r14, %r11;
    sub.u32 %r13, %r13, %r12;
    add.u32 %r12, %r12, %r13;
    mad.lo.u32 %r12, %r14, 10000, %r12;
    st.global.u32 [%rd5], %r12;
    barrier.cluster.arrive;
    barrier.cluster.wait;"""
    got, _ = run(body, np.zeros(256), block=32, grid=8, cluster=4, options=options)
    want = [10_000 * ((cta + 1) % 4) + 100 * ((cta + 1) % 4) + t for cta in range(8) for t in range(32)]
    assert got.tolist() == want


def test_another_ctas_memory_needs_the_cluster_space() -> None:
    body = """
    .shared .align 8 .b32 s[32];
    mov.u32 %r6, s;
    mapa.shared::cluster.u32 %r7, %r6, 1;
    ld.shared.u32 %r8, [%r7];"""
    with pytest.raises(ExecutionError, match=r"shared::cta|lies in CTA|out-of-bounds"):
        run(body.replace("ld.shared.u32", "ld.shared::cta.u32"), np.zeros(64), grid=2, cluster=2)


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


# -- mbarriers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", SCHEDULES)
def test_mbarrier_phases(options: Options) -> None:
    body = """
    .shared .align 8 .b64 bar;
    .shared .align 4 .b32 s[64];
    mov.u32 %r6, s;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra SKIP;
    mbarrier.init.shared.b64 [bar], 64;
    SKIP:
    bar.sync 0;
    mov.u32 %r7, 0;
    mov.u32 %r11, 0;
    shl.b32 %r8, %r1, 2;
    add.u32 %r9, %r6, %r8;
    xor.b32 %r10, %r8, 252;
    add.u32 %r10, %r6, %r10;
    LOOP:
    mad.lo.u32 %r12, %r7, 1000, %r1;
    st.shared.u32 [%r9], %r12;
    mbarrier.arrive.shared.b64 %rd6, [bar];
    WAIT:
    mbarrier.try_wait.shared.b64 %p2, [bar], %rd6;
    @!%p2 bra WAIT;
    ld.shared.u32 %r13, [%r10];
    add.u32 %r11, %r11, %r13;
    and.b32 %r14, %r7, 1;
    bar.sync 0;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p3, %r7, 4;
    @%p3 bra LOOP;
    st.global.u32 [%rd5], %r11;"""
    got, _ = run(body, np.zeros(64), block=64, options=options)
    assert got.tolist() == [6000 + 4 * (63 - k) for k in range(64)]


def test_more_arrivals_than_expected() -> None:
    body = """
    .shared .align 8 .b64 bar;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra SKIP;
    mbarrier.init.shared.b64 [bar], 3;
    mbarrier.arrive.shared.b64 %rd6, [bar], 4;
    SKIP:"""
    assert "4 arrivals" in failing(body, Check.MBARRIER)


def test_equal_options_give_equal_runs_and_seeds_differ() -> None:
    body = """
    .shared .align 4 .b32 order[1];
    mov.u32 %r6, order;
    atom.global.add.u32 %r5, [%rd1], 1;
    st.global.u32 [%rd5], %r5;"""

    def once(seed: int) -> list[int]:
        got, _ = run(body, np.zeros(512), block=256, grid=2, options=Options(seed=seed, slice_steps=2))
        return got.tolist()

    assert once(7) == once(7)
    assert len({tuple(once(seed)) for seed in range(6)}) > 1


def test_grid_wide_waits_need_all_clusters_resident() -> None:
    body = """
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra WAITED;
    red.release.gpu.global.add.u32 [%rd1], 1;
    SPIN:
    ld.acquire.gpu.global.u32 %r5, [%rd1];
    setp.lt.u32 %p2, %r5, 4;
    @%p2 bra SPIN;
    WAITED:
    bar.sync 0;
    ld.global.u32 %r6, [%rd1];
    st.global.u32 [%rd5], %r6;"""
    got, _ = run(body, np.zeros(128), grid=4, options=Options(resident_clusters=0))
    assert (got == 4).all()
    with pytest.raises(ExecutionError, match="steps"):
        run(body, np.zeros(128), grid=4, options=Options(resident_clusters=1, max_steps=20_000))
