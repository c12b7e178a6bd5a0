"""Races between lanes of one warp: shared and global memory, each order of accesses, and what synchronises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ptx.snippets import run

from moegen.ptx import Check, Options
from moegen.ptx.lane_races import LaneShadow

COLLECT = Options(seed=3, races=True, stop_at_error=False)
# Each lane's word, and its neighbour's.
WORDS = """
    .shared .align 4 .b32 s[32];
    mov.u32 %r6, s;
    xor.b32 %r7, %r1, 1;
    mad.lo.u32 %r8, %r1, 4, %r6;
    mad.lo.u32 %r9, %r7, 4, %r6;
    mul.wide.u32 %rd6, %r7, 4;
    add.s64 %rd7, %rd2, %rd6;
    mov.pred %p1, 1;"""
WRITE, READ_OTHER, WRITE_OTHER = "st.shared.u32 [%r8], %r1;", "ld.shared.u32 %r10, [%r9];", "st.shared.u32 [%r9], %r1;"
READ = "ld.shared.u32 %r11, [%r8];"


def findings(*lines: str, block: int = 32) -> set[Check]:
    _, result = run(WORDS + "\n".join(lines), np.zeros(32), block=block, options=COLLECT)
    return {report.check for report in result.reports} - {Check.UNINITIALISED}


@pytest.mark.parametrize("sync", ["bar.warp.sync -1;", "bar.sync 0;", "barrier.cluster.arrive; barrier.cluster.wait;"])
@pytest.mark.parametrize("pair", [(WRITE, READ_OTHER), (WRITE, WRITE_OTHER), (READ, WRITE_OTHER)])
def test_lanes_need_a_synchronisation(pair: tuple[str, str], sync: str) -> None:
    assert findings(pair[0], sync, pair[1]) == set()
    assert findings(*pair) == {Check.RACE_LANES}


def test_a_lane_may_use_its_own_words_and_all_may_read_one() -> None:
    assert findings(WRITE, READ, WRITE, READ) == set()
    broadcast = "ld.shared.u32 %r10, [%r6];"
    assert findings(broadcast, broadcast, READ_OTHER) == set()
    assert findings(broadcast, WRITE) == {Check.RACE_LANES}


@pytest.mark.parametrize("exchange", ["shfl.sync.bfly.b32 %r12, %r1, 1, 31, -1;", "vote.sync.any.pred %p2, %p1, -1;"])
def test_shuffles_and_votes_order_no_memory(exchange: str) -> None:
    assert findings(WRITE, exchange, READ_OTHER) == {Check.RACE_LANES}


def test_atomics_order_lanes() -> None:
    counter = "atom.shared.add.u32 %r12, [%r6], 1;"
    assert findings(WRITE, "bar.warp.sync -1;", counter, READ_OTHER) == set()


def test_global_memory() -> None:
    own, other = "st.global.u32 [%rd5], %r1;", "ld.global.u32 %r10, [%rd7];"
    assert findings(own, "bar.warp.sync -1;", other) == set()
    assert findings(own, other) == {Check.RACE_LANES}


def test_reports_name_lane_and_address() -> None:
    _, result = run(WORDS + WRITE + READ_OTHER, np.zeros(32), options=COLLECT)
    (report,) = result.reports
    assert report.check is Check.RACE_LANES
    assert report.lane == 0
    assert report.address == 0x404
    assert report.text == "ld.shared.u32 %r10, [%r9]"


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4, unique_by=lambda t: t[1]),
            st.booleans(),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_the_shadow_agrees_with_the_definition(steps: list[tuple[list[tuple[int, int]], bool, bool]]) -> None:
    """Any sequence of accesses of four lanes to six granules: a clash is an earlier access by another lane, one of both
    a write, since the last synchronisation (and since the last write, which would have clashed itself)."""
    shadow, phase = LaneShadow(6), 0
    reads: dict[int, set[int]] = {}
    writes: dict[int, int] = {}
    for accesses, write, synchronise in steps:
        at, lanes = np.array([a for a, _ in accesses]), np.array([lane for _, lane in accesses])
        if write and len(set(at.tolist())) < len(at):
            continue
        clash = False
        for granule, lane in accesses:
            others = {writes[granule]} if granule in writes else set()
            if write:
                others |= reads.get(granule, set())
            clash |= bool(others - {lane})
        assert (shadow.access(at, lanes, phase, write) is not None) == clash
        for granule, lane in accesses:
            if write:
                writes[granule] = lane
            else:
                reads.setdefault(granule, set()).add(lane)
        if synchronise or clash:
            phase, reads, writes = phase + 1, {}, {}
