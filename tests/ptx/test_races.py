"""The race detector: each rule with a kernel that keeps it and one that breaks it."""

from typing import Any

import numpy as np
import pytest
from ptx.snippets import aligned, module, run

from moegen.ptx import Check, ExecutionError, Options, Policy, Result, Severity

CHECKED = [Options(seed=s, races=True, policy=p) for s, p in enumerate([Policy.RANDOM, Policy.LAZY, Policy.EAGER])]

EXCHANGE = """
    .shared .align 4 .b32 s[64];
    mov.u32 %r6, s;
    shl.b32 %r8, %r1, 2;
    add.u32 %r9, %r6, %r8;
    xor.b32 %r10, %r8, 252;
    add.u32 %r10, %r6, %r10;
    st.shared.u32 [%r9], %r1;
    bar.sync 0;
    ld.shared.u32 %r12, [%r10];
    bar.sync 0;
    st.shared.u32 [%r9], %r12;
    bar.sync 0;
    ld.shared.u32 %r13, [%r10];
    st.global.u32 [%rd5], %r13;"""


def findings(body: str, options: Options, **more: Any) -> list[Check]:
    """Kinds of what is reported, also by a run that had to be stopped."""
    collecting = Options(**{**options.__dict__, "stop_at_error": False})
    try:
        _, result = run(body, np.zeros(64), block=64, options=collecting, **more)
    except ExecutionError as error:
        return [report.check for report in error.reports]
    return [report.check for report in result.reports]


@pytest.mark.parametrize("options", CHECKED)
def test_barriers_order_accesses(options: Options) -> None:
    assert findings(EXCHANGE, options) == []


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("options", CHECKED)
def test_every_missing_barrier_is_found_in_every_schedule(number: int, options: Options) -> None:
    parts = EXCHANGE.split("    bar.sync 0;\n")
    merged = [*parts[:number], parts[number] + parts[number + 1], *parts[number + 2 :]]
    body = "    bar.sync 0;\n".join(merged)
    assert set(findings(body, options)) & {Check.RACE, Check.UNINITIALISED}


def test_reports_name_both_places_and_raise() -> None:
    body = EXCHANGE.replace("    bar.sync 0;\n    ld.shared.u32 %r13", "    ld.shared.u32 %r13")
    with pytest.raises(ExecutionError) as caught:
        run(body, np.zeros(64), block=64, options=CHECKED[0])
    report = caught.value.report
    assert report is not None
    assert "warp" in report.message
    assert "(line" in report.message
    assert report.text.startswith(("ld.shared", "st.shared"))
    assert report.warp in (0, 1)
    assert 0x400 <= report.address < 0x500


def test_severities() -> None:
    body = EXCHANGE.replace("    bar.sync 0;\n    ld.shared.u32 %r13", "    ld.shared.u32 %r13")
    lowered = Options(seed=0, races=True, severity={Check.RACE: Severity.WARNING})
    _, result = run(body, np.zeros(64), block=64, options=lowered)
    assert result.errors == []
    assert {report.severity for report in result.reports} == {Severity.WARNING}
    off = Options(seed=0, races=True, severity={Check.RACE: Severity.OFF})
    assert run(body, np.zeros(64), block=64, options=off)[1].reports == []


def test_reads_of_what_nobody_wrote() -> None:
    body = """
    .shared .align 4 .b32 s[64];
    mov.u32 %r6, s;
    shl.b32 %r8, %r1, 2;
    add.u32 %r9, %r6, %r8;
    setp.lt.u32 %p1, %r1, 20;
    @%p1 st.shared.u32 [%r9], %r1;
    bar.sync 0;
    ld.shared.u32 %r12, [%r9];"""
    assert set(findings(body, CHECKED[0])) == {Check.UNINITIALISED}


def test_halves_of_a_word_are_told_apart() -> None:
    body = """
    .shared .align 4 .b16 s[64];
    mov.u32 %r6, s;
    and.b32 %r8, %r1, 31;
    shr.u32 %r9, %r1, 5;
    mad.lo.u32 %r8, %r8, 4, %r6;
    mad.lo.u32 %r8, %r9, 2, %r8;
    cvt.u16.u32 %h1, %r1;
    st.shared.u16 [%r8], %h1;
    bar.sync 0;
    ld.shared.u16 %h2, [%r8];"""
    assert findings(body, CHECKED[0]) == []


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses() -> None:
    body = """
    .shared .align 4 .b32 s[1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.shared.u32 [s], 0;
    bar.sync 0;
    atom.shared.add.u32 %r5, [s], 1;
    {barrier}
    ld.shared.u32 %r6, [s];"""
    assert findings(body.replace("{barrier}", "bar.sync 0;"), CHECKED[0]) == []
    assert Check.RACE in findings(body.replace("{barrier}", ""), CHECKED[0])


# -- mbarriers ---------------------------------------------------------------------------------------------------

HANDOVER = """
    .shared .align 4 .b32 s[32];
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 empty;
    mov.u32 %r6, s;
    and.b32 %r8, %r1, 31;
    mad.lo.u32 %r9, %r8, 4, %r6;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [full], 32;
    mbarrier.init.shared.b64 [empty], 32;
    READY:
    bar.sync 0;
    mov.u32 %r7, 0;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra CONSUMER;
    PRODUCER:
    and.b32 %r10, %r7, 1;
    xor.b32 %r11, %r10, 1;
    W1:
    mbarrier.try_wait.parity.shared.b64 %p3, [empty], %r11;
    @!%p3 bra W1;
    st.shared.u32 [%r9], %r7;
    mbarrier.arrive.shared.b64 %rd6, [full];
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p4, %r7, 4;
    @%p4 bra PRODUCER;
    ret;
    CONSUMER:
    and.b32 %r10, %r7, 1;
    W2:
    mbarrier.try_wait.parity.shared.b64 %p3, [full], %r10;
    @!%p3 bra W2;
    ld.shared.u32 %r12, [%r9];
    mbarrier.arrive.shared.b64 %rd6, [empty];
    add.u32 %r13, %r13, %r12;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p4, %r7, 4;
    @%p4 bra CONSUMER;"""


@pytest.mark.parametrize("options", CHECKED)
def test_pipelines_over_mbarriers(options: Options) -> None:
    assert findings(HANDOVER, options) == []
    for wait in ("@!%p3 bra W1;", "@!%p3 bra W2;"):
        # A wait that may time out but is not repeated.
        loose = HANDOVER.replace(wait, "")
        hasty = Options(**{**options.__dict__, "timeout_probability": 0.9})
        assert set(findings(loose, hasty)) & {Check.RACE, Check.UNINITIALISED}


def test_an_arrive_before_the_access_does_not_order_it() -> None:
    swapped = HANDOVER.replace(
        "    st.shared.u32 [%r9], %r7;\n    mbarrier.arrive.shared.b64 %rd6, [full];",
        "    mbarrier.arrive.shared.b64 %rd6, [full];\n    st.shared.u32 [%r9], %r7;",
    )
    assert set(findings(swapped, CHECKED[0])) & {Check.RACE, Check.UNINITIALISED}


def test_initialisation_must_be_ordered_before_use() -> None:
    body = """
    .shared .align 8 .b64 bar;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [bar], 64;
    READY:
    {barrier}
    mbarrier.arrive.shared.b64 %rd6, [bar];"""
    assert findings(body.replace("{barrier}", "bar.sync 0;"), CHECKED[0]) == []
    slow = Options(races=True, slice_steps=100, seed=1, stop_at_error=False)
    text = module(body.replace("{barrier}", ""))
    kinds = set()
    for seed in range(8):
        try:
            result = text.launch(
                "k",
                grid=1,
                block=64,
                args=[np.zeros(64, np.uint32)] * 2,
                options=Options(**{**slow.__dict__, "seed": seed}),
            )
            kinds |= {report.check for report in result.reports}
        except ExecutionError as error:
            kinds |= {report.check for report in error.reports}
    assert kinds <= {Check.RACE, Check.MBARRIER, Check.DEADLOCK}
    assert Check.RACE in kinds


# -- asynchronous copies -----------------------------------------------------------------------------------------

COPY = """
    .shared .align 128 .b8 tile[256];
    .shared .align 8 .b64 bar;
    mov.u32 %r6, tile;
    mad.lo.u32 %r9, %r1, 4, %r6;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [bar], 1;
    fence.mbarrier_init.release.cluster;
    READY:
    bar.sync 0;
    mov.u32 %r7, 0;
    LOOP:
    @%p1 bra ISSUED;
    mbarrier.arrive.expect_tx.shared.b64 %rd6, [bar], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1], 256, [bar];
    ISSUED:
    WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [bar], %r7;
    @!%p2 bra WAIT;
    ld.shared.u32 %r12, [%r9];
    bar.sync 0;
    add.u32 %r12, %r12, 1;
    st.shared.u32 [%r9], %r12;
    fence.proxy.async.shared::cta;
    bar.sync 1;
    @%p1 bra STORED;
    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r6], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    STORED:
    add.s64 %rd2, %rd2, 256;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p4, %r7, 2;
    @%p4 bra LOOP;"""


def copied(body: str, options: Options) -> Result:
    source = aligned(256).view(np.uint32)
    source[:] = np.arange(64)
    target = aligned(512).view(np.uint32)
    collecting = Options(**{**options.__dict__, "stop_at_error": False})
    result = module(body).launch("k", grid=1, block=64, args=[source, target], options=collecting)
    if not result.reports:
        assert target.tolist() == 2 * list(range(1, 65))
    return result


@pytest.mark.parametrize("options", CHECKED)
def test_bulk_copies_in_and_out(options: Options) -> None:
    assert copied(COPY, options).reports == []


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("fence.proxy.async.shared::cta;", "", {Check.PROXY_FENCE}),
        ("fence.mbarrier_init.release.cluster;", "", {Check.PROXY_FENCE}),
        ("    bar.sync 1;\n", "", {Check.RACE, Check.PROXY_FENCE}),
        ("    bar.sync 0;\n    add.u32 %r12, %r12, 1;", "    add.u32 %r12, %r12, 1;", set()),
        ("cp.async.bulk.wait_group.read 0;", "", {Check.RACE, Check.ASYNC_EXIT}),
        ("@!%p2 bra WAIT;", "", {Check.RACE, Check.UNINITIALISED}),
    ],
)
@pytest.mark.parametrize("options", CHECKED)
def test_copies_without_one_of_their_guards(old: str, new: str, kinds: set[Check], options: Options) -> None:
    assert old in COPY
    hasty = Options(**{**options.__dict__, "timeout_probability": 0.9})
    found: set[Check] = set()
    for seed in range(4):
        try:
            found |= {
                r.check for r in copied(COPY.replace(old, new), Options(**{**hasty.__dict__, "seed": seed})).reports
            }
        except ExecutionError as error:
            found |= {report.check for report in error.reports}
        if found:
            break
    if kinds:
        assert found & kinds
    else:
        # Each thread rewrites what it alone has read: the first barrier is not needed here.
        assert found == set()


def test_cp_async_is_a_generic_write_that_needs_its_wait() -> None:
    body = """
    .shared .align 128 .b8 tile[1024];
    mov.u32 %r6, tile;
    mad.lo.u32 %r9, %r1, 16, %r6;
    mad.wide.u32 %rd6, %r1, 4, 0;
    and.b64 %rd6, %rd6, 0xF0;
    add.s64 %rd7, %rd1, %rd6;
    cp.async.ca.shared.global [%r9], [%rd7], 16;
    cp.async.commit_group;
    {wait}
    bar.sync 0;
    xor.b32 %r10, %r1, 63;
    mad.lo.u32 %r10, %r10, 16, %r6;
    ld.shared.u32 %r11, [%r10];"""
    source = aligned(256).view(np.uint32)
    for wait, expected in (
        ("cp.async.wait_group 0;", set()),
        ("cp.async.wait_group 1;", {Check.RACE, Check.UNINITIALISED}),
    ):
        for options in CHECKED:
            collecting = Options(**{**options.__dict__, "stop_at_error": False})
            loaded = module(body.replace("{wait}", wait))
            result = loaded.launch("k", grid=1, block=64, args=[source, source.copy()], options=collecting)
            found = {report.check for report in result.reports}
            assert found <= expected
            assert bool(found) == bool(expected)


# -- clusters ----------------------------------------------------------------------------------------------------

PEERS = """
    .shared .align 4 .b32 s[32];
    mov.u32 %r5, %cluster_ctarank;
    mov.u32 %r6, s;
    mad.lo.u32 %r8, %r1, 4, %r6;
    st.shared.u32 [%r8], %r1;
    barrier.cluster.arrive{release};
    barrier.cluster.wait;
    xor.b32 %r10, %r5, 1;
    mapa.shared::cluster.u32 %r11, %r8, %r10;
    ld.shared::cluster.u32 %r12, [%r11];
    barrier.cluster.arrive;
    barrier.cluster.wait;"""


@pytest.mark.parametrize("options", CHECKED)
def test_cluster_barriers_order_and_relaxed_ones_do_not(options: Options) -> None:
    collecting = Options(**{**options.__dict__, "stop_at_error": False})
    _, result = run(PEERS.replace("{release}", ""), np.zeros(64), grid=2, cluster=2, options=collecting)
    assert result.reports == []
    _, result = run(PEERS.replace("{release}", ".relaxed"), np.zeros(64), grid=2, cluster=2, options=collecting)
    assert {report.check for report in result.reports} == {Check.RACE}
