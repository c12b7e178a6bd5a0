"""Every hook of the race detectors for global memory and lanes: without it a finding is missed or invented."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from faults import Fault, guards
from ptx import test_global_races as between_ctas
from ptx import test_lane_races as between_lanes

from moegen.ptx import Check
from moegen.ptx.global_races import GlobalRaces
from moegen.ptx.lane_races import LaneShadow
from moegen.ptx.races import RaceDetector

OPTIONS = between_ctas.SCHEDULES[0]


def silenced(owner: type, name: str, result: Any = None) -> Fault:
    """A fault under which a method does nothing."""

    @contextmanager
    def fault() -> Iterator[None]:
        with mock.patch.object(owner, name, return_value=result):
            yield

    fault.__name__ = f"{name.strip('_')}_{result}".lower()
    fault.__doc__ = f"{owner.__name__}.{name} does nothing but return {result}"
    return fault


@guards(
    silenced(GlobalRaces, "record"),
    silenced(GlobalRaces, "_check"),
    silenced(GlobalRaces, "before"),
    silenced(GlobalRaces, "after"),
    silenced(GlobalRaces, "fence"),
    silenced(GlobalRaces, "_acquire"),
    silenced(GlobalRaces, "_ordered", True),
    silenced(GlobalRaces, "_ordered", False),
    silenced(GlobalRaces, "_known"),
)
def test_ctas_and_what_orders_them(tmp_path: Path) -> None:
    for release in between_ctas.RELEASES.values():
        for acquire, after in between_ctas.ACQUIRES.values():
            body = between_ctas.handover(release, acquire, after)
            assert between_ctas.findings(body, OPTIONS) == set()
    broken = between_ctas.handover("st.relaxed.gpu.global.u32 [%rd1], 1;", *between_ctas.ACQUIRES["ld.acquire"])
    assert between_ctas.findings(broken, OPTIONS) == {Check.RACE_GLOBAL}
    between_ctas.test_what_a_cta_learnt_is_handed_on_by_the_next()


@guards(silenced(GlobalRaces, "waited"))
def test_grids(tmp_path: Path) -> None:
    between_ctas.test_a_programmatic_grid_comes_after_its_primary_once_it_has_waited("griddepcontrol.wait;", set())


@guards(
    silenced(LaneShadow, "access"),
    silenced(RaceDetector, "lanes_synchronise"),
    silenced(RaceDetector, "report_lanes"),
)
def test_lanes(tmp_path: Path) -> None:
    write, read = between_lanes.WRITE, between_lanes.READ_OTHER
    assert between_lanes.findings(write, read) == {Check.RACE_LANES}
    assert between_lanes.findings(write, "bar.warp.sync -1;", read) == set()
    between_lanes.test_global_memory()
