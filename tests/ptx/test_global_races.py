"""Races in global memory: synchronising patterns that are right, and each of their parts left out."""

from dataclasses import replace

import numpy as np
import pytest
from ptx.snippets import aligned, module, run

from moegen.ptx import Check, Options, Policy
from moegen.ptx.launch import Launch

SCHEDULES = [
    Options(seed=1, races=True, resident_clusters=0, stop_at_error=False),
    Options(seed=2, races=True, resident_clusters=0, stop_at_error=False, policy=Policy.LAZY),
]

# CTA 0: every thread writes a word, one raises a flag. CTA 1: one waits for the flag, every thread reads.
HANDOVER = """
    mul.wide.u32 %rd6, %r1, 4;
    add.s64 %rd7, %rd2, %rd6;
    setp.ne.u32 %p1, %r2, 0;
    setp.ne.u32 %p2, %r1, 0;
    @%p1 bra CONSUMER;
    st.global.u32 [%rd7], %r1;
    bar.sync 0;
    @%p2 bra DONE;
    {release}
    bra DONE;
    CONSUMER:
    @%p2 bra READY;
    SPIN:
    {acquire}
    setp.eq.u32 %p3, %r9, 0;
    @%p3 bra SPIN;
    {after}
    READY:
    bar.sync 0;
    ld.global.u32 %r10, [%rd7];
    add.s64 %rd8, %rd7, 256;
    st.global.u32 [%rd8], %r10;
    DONE:"""
RELEASES = {
    "st.release": "st.release.gpu.global.u32 [%rd1], 1;",
    "fence and volatile store": "fence.acq_rel.gpu; st.volatile.global.u32 [%rd1], 1;",
    "membar and atomic": "membar.gl; atom.global.add.u32 %r8, [%rd1], 1;",
    "red.release": "red.release.gpu.global.add.u32 [%rd1], 1;",
}
ACQUIRES = {
    "ld.acquire": ("ld.acquire.gpu.global.u32 %r9, [%rd1];", ""),
    "volatile load and fence": ("ld.volatile.global.u32 %r9, [%rd1];", "fence.acq_rel.gpu;"),
    "atomic and membar": ("atom.global.or.b32 %r9, [%rd1], 0;", "membar.gl;"),
    "atom.acquire": ("atom.acquire.gpu.global.add.u32 %r9, [%rd1], 0;", ""),
}


def findings(body: str, options: Options, grid: int = 2, block: int = 64) -> set[Check]:
    _, result = run(body, np.zeros(64), out=256, block=block, grid=grid, options=options)
    return {report.check for report in result.reports}


def handover(release: str, acquire: str, after: str) -> str:
    return HANDOVER.format(release=release, acquire=acquire, after=after)


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("acquire", ACQUIRES)
def test_releases_and_acquires_order_ctas(release: str, acquire: str, options: Options) -> None:
    assert findings(handover(RELEASES[release], *ACQUIRES[acquire]), options) == set()


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize(
    ("release", "acquire", "after"),
    [
        ("st.relaxed.gpu.global.u32 [%rd1], 1;", "ld.acquire.gpu.global.u32 %r9, [%rd1];", ""),
        ("st.volatile.global.u32 [%rd1], 1; membar.gl;", "ld.acquire.gpu.global.u32 %r9, [%rd1];", ""),
        ("st.release.cta.global.u32 [%rd1], 1;", "ld.acquire.gpu.global.u32 %r9, [%rd1];", ""),
        ("st.release.gpu.global.u32 [%rd1], 1;", "ld.relaxed.gpu.global.u32 %r9, [%rd1];", ""),
        ("st.release.gpu.global.u32 [%rd1], 1;", "ld.relaxed.gpu.global.u32 %r9, [%rd1];", "membar.cta;"),
        ("st.release.gpu.global.u32 [%rd1], 1;", "ld.global.u32 %r9, [%rd1];", "membar.gl;"),
        ("red.global.add.u32 [%rd1], 1;", "atom.acquire.gpu.global.add.u32 %r9, [%rd1], 0;", ""),
    ],
)
def test_each_missing_part_is_found(release: str, acquire: str, after: str, options: Options) -> None:
    assert Check.RACE_GLOBAL in findings(handover(release, acquire, after), options)


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_barrier_on_either_side_is_found(number: int) -> None:
    body = handover(RELEASES["st.release"], *ACQUIRES["ld.acquire"])
    parts = body.split("bar.sync 0;")
    parts[number : number + 2] = [parts[number] + parts[number + 1]]
    assert Check.RACE_GLOBAL in findings("bar.sync 0;".join(parts), SCHEDULES[0])


def test_what_a_cta_learnt_is_handed_on_by_the_next() -> None:
    """CTA 0 to CTA 1 to CTA 2: the last reads what the first wrote."""
    body = """
    setp.eq.u32 %p1, %r2, 1;
    setp.eq.u32 %p2, %r2, 2;
    setp.ne.u32 %p5, %r1, 0;
    @%p5 bra DONE;
    @%p1 bra SECOND;
    @%p2 bra THIRD;
    st.global.u32 [%rd2], 7;
    st.release.gpu.global.u32 [%rd1], 1;
    bra DONE;
    SECOND:
    ld.acquire.gpu.global.u32 %r9, [%rd1];
    setp.eq.u32 %p3, %r9, 0;
    @%p3 bra SECOND;
    st.{second}.gpu.global.u32 [%rd1+64], 1;
    bra DONE;
    THIRD:
    ld.acquire.gpu.global.u32 %r9, [%rd1+64];
    setp.eq.u32 %p3, %r9, 0;
    @%p3 bra THIRD;
    ld.global.u32 %r10, [%rd2];
    st.global.u32 [%rd2+4], %r10;
    DONE:"""
    assert findings(body.format(second="release"), SCHEDULES[0], grid=3) == set()
    assert Check.RACE_GLOBAL in findings(body.format(second="relaxed"), SCHEDULES[0], grid=3)


@pytest.mark.parametrize("resident", [0, 1])
def test_ctas_that_share_a_word_race_in_every_order(resident: int) -> None:
    options = replace(SCHEDULES[0], resident_clusters=resident)
    assert findings("mul.wide.u32 %rd6, %r1, 4; add.s64 %rd7, %rd2, %rd6; st.global.u32 [%rd7], %r2;", options) == {
        Check.RACE_GLOBAL
    }
    assert findings("st.global.u32 [%rd5], %r2;", options) == set()
    assert findings("red.global.add.u32 [%rd2], 1;", options) == set()
    assert findings("ld.global.u32 %r9, [%rd1]; st.global.u32 [%rd5], %r9;", options) == set()


def test_neighbouring_bytes_do_not_race() -> None:
    body = "cvt.u64.u32 %rd6, %r4; add.s64 %rd7, %rd2, %rd6; cvt.u16.u32 %h1, %r4; st.global.u8 [%rd7], %h1;"
    assert findings(body, SCHEDULES[0]) == set()


def test_warps_of_a_cta_need_a_barrier() -> None:
    body = """
    xor.b32 %r8, %r1, 32;
    mul.wide.u32 %rd6, %r8, 4;
    add.s64 %rd7, %rd2, %rd6;
    st.global.u32 [%rd5], %r1;
    {barrier}
    ld.global.u32 %r9, [%rd7];"""
    assert findings(body.format(barrier="bar.sync 0;"), SCHEDULES[0], grid=1) == set()
    assert findings(body.format(barrier=""), SCHEDULES[0], grid=1) == {Check.RACE_GLOBAL}


BULK = """
    .shared .align 128 .b8 tile[256];
    mov.u32 %r6, tile;
    mad.lo.u32 %r9, %r1, 4, %r6;
    setp.ne.u32 %p1, %r1, 0;
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra CONSUMER;
    st.shared.u32 [%r9], %r1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @%p1 bra DONE;
    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r6], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group{read} 0;
    st.release.gpu.global.u32 [%rd1], 1;
    cp.async.bulk.wait_group 0;
    bra DONE;
    CONSUMER:
    @%p1 bra DONE;
    SPIN:
    ld.acquire.gpu.global.u32 %r9, [%rd1];
    setp.eq.u32 %p3, %r9, 0;
    @%p3 bra SPIN;
    ld.global.u32 %r10, [%rd2];
    DONE:"""


def test_bulk_stores_are_released_once_they_are_complete() -> None:
    for read, expected in (("", set()), (".read", {Check.RACE_GLOBAL})):
        target = aligned(256).view(np.uint32)
        result = module(BULK.format(read=read)).launch(
            "k", grid=2, block=64, args=[np.zeros(4, np.uint32), target], options=SCHEDULES[0]
        )
        assert {report.check for report in result.reports} == expected


@pytest.mark.parametrize(("wait", "expected"), [("griddepcontrol.wait;", set()), ("", {Check.RACE_GLOBAL})])
def test_a_programmatic_grid_comes_after_its_primary_once_it_has_waited(wait: str, expected: set[Check]) -> None:
    code = module(f"griddepcontrol.launch_dependents; {wait} ld.global.u32 %r9, [%rd5]; st.global.u32 [%rd5], %r1;")
    arrays = [np.zeros(64, np.uint32), np.zeros(64, np.uint32)]
    params = code.pack("k", arrays)
    launches = [
        Launch(entry="k", grid=(1, 1, 1), block=(64, 1, 1), params=params, programmatic=number > 0)
        for number in range(2)
    ]
    result = code.run(launches, SCHEDULES[0])
    assert {report.check for report in result.reports} == expected


def test_reports_name_the_allocation_and_both_places() -> None:
    _, result = run("st.global.u32 [%rd2], %r2;", np.zeros(4), block=32, grid=2, options=SCHEDULES[0])
    (report,) = result.reports
    assert "array uint32[4] is written" in report.message
    assert "(line" in report.message
    assert report.text.startswith("st.global")
