"""Named barriers, clusters, mbarriers and schedules: hand-written kernels with results worked out here."""

import numpy as np
import pytest
from ptx.snippets import SCHEDULES, failing, run

from moegen.ptx import Check, ExecutionError, Options


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
