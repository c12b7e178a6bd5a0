"""Frozen tables: verified when loaded, matched by fields, equal digests for equal decisions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moegen.core.enums import Contract, Target
from moegen.core.errors import StoreFull, TableError
from moegen.core.ops import Numerics
from moegen.store import files
from moegen.store.tables import TABLES, Candidate, Fit, Point, Table, find_tables, freeze, load, match, table_path
from tests import faults
from tests.faults import forgotten, guards
from tests.store.records import ENVIRONMENT

A, B = Candidate(pipeline="pipe-a", median_us=10.0, ci_us=0.1), Candidate(pipeline="pipe-b", median_us=12.0)
TABLE = Table(
    package="p" * 64,
    name="tiny",
    environment=ENVIRONMENT,
    policy={"timer": "cpu_wall", "rounds": 8},
    selection={"margin": 0.03},
    numerics=Numerics(),
    points=(
        Point(tokens=1, routing="one_hot", winner="pipe-a", candidates=(A, B)),
        Point(tokens=1, routing="uniform", winner="pipe-b", candidates=(A, B), pinned=True),
        Point(tokens=64, routing="uniform", winner="pipe-b", candidates=(B,)),
    ),
    trials="t" * 64,
)


def test_table_round_trips(tmp_path: Path) -> None:
    path = freeze(TABLE, table_path(tmp_path, TABLE))
    assert path.parent == tmp_path / TABLES
    assert load(path) == TABLE
    assert load(path).digest == TABLE.digest
    assert json.loads(path.read_bytes())["digest"] == TABLE.digest
    assert TABLE.target is Target.CPU


@guards(faults.table_digest_unchecked)
def test_edited_table_is_refused(tmp_path: Path) -> None:
    from moegen.store import tables

    path = freeze(TABLE, tmp_path / "t.table.json")
    path.write_text(path.read_text().replace('"tokens": 64', '"tokens": 65'))
    with pytest.raises(TableError, match="digest"):
        tables.load(path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"digest": "", "table": {"schema": 99}}', "schema 99"),
        ('{"digest": "", "table": {"schema": 2}}', "damaged"),
    ],
)
def test_damaged_table_is_refused(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "t.table.json"
    path.write_text(text)
    with pytest.raises(TableError, match=what) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="cannot be read"):
        load(tmp_path / "absent.table.json")


@pytest.mark.parametrize(
    "points",
    [
        (TABLE.points[1], TABLE.points[0]),
        (TABLE.points[0], TABLE.points[0]),
        (replace(TABLE.points[0], winner="pipe-c"),),
        (replace(TABLE.points[0], candidates=(A, A)),),
        (replace(TABLE.points[0], candidates=(replace(A, median_us=0.0), B)),),
        (replace(TABLE.points[0], candidates=(replace(A, median_us=float("inf")), B)),),
    ],
)
def test_impossible_tables_are_not_frozen(points: tuple[Point, ...], tmp_path: Path) -> None:
    with pytest.raises(TableError):
        freeze(replace(TABLE, points=points), tmp_path / "t.table.json")
    assert list(tmp_path.iterdir()) == []


def test_failed_freeze_keeps_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = freeze(TABLE, tmp_path / "t.table.json")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreFull):
        freeze(replace(TABLE, name="other"), path)
    monkeypatch.undo()
    assert load(path) == TABLE
    assert list(tmp_path.iterdir()) == [path]


HARD = {
    "package": {"package": "q" * 64},
    "target": {"environment": replace(ENVIRONMENT, target="sm_90a")},
    "arch": {"environment": replace(ENVIRONMENT, arch="x86-64-v2")},
    "numerics": {"numerics": Numerics(contract=Contract.MODELOPT)},
}


@pytest.mark.parametrize("field", HARD)
def test_hard_difference_is_refused_by_name(field: str) -> None:
    other = replace(TABLE, **HARD[field])
    with pytest.raises(TableError, match=f"{field} is"):
        match(other, TABLE.package, ENVIRONMENT, TABLE.numerics)


def test_soft_and_family_differences_are_reported() -> None:
    assert match(TABLE, TABLE.package, ENVIRONMENT).fit is Fit.EXACT
    soft = match(TABLE, TABLE.package, replace(ENVIRONMENT, driver="580.2", power_limit_w=70.0))
    assert soft.fit is Fit.SOFT
    assert soft.differing == (("power_limit_w", "65.5", "70.0"), ("driver", "", "580.2"))
    family = match(TABLE, TABLE.package, replace(ENVIRONMENT, device="cpu-b", cores=4))
    assert family.fit is Fit.FAMILY
    assert [name for name, _, _ in family.differing] == ["device", "cores"]


def test_best_fit_comes_first_and_foreign_tables_are_passed_over(tmp_path: Path) -> None:
    home, shipped = tmp_path / "home", tmp_path / "tuned"
    family = replace(TABLE, environment=replace(ENVIRONMENT, device="cpu-b"))
    foreign = replace(TABLE, package="q" * 64)
    for table in (family, foreign):
        freeze(table, table_path(home, table))
    freeze(TABLE, shipped / "tiny.table.json")
    found = find_tables((home / TABLES, shipped, tmp_path / "absent"), TABLE.package, ENVIRONMENT)
    assert [(table, judged.fit) for table, judged, _ in found] == [(TABLE, Fit.EXACT), (family, Fit.FAMILY)]
    table_path(home, foreign).write_text("{")
    assert len(find_tables((home / TABLES,), TABLE.package, ENVIRONMENT)) == 1
    table_path(home, family).write_text("{")
    with pytest.raises(TableError, match="damaged"):
        find_tables((home / TABLES,), TABLE.package, ENVIRONMENT)


def test_tables_of_two_numerics_classes_have_two_files(tmp_path: Path) -> None:
    other = replace(TABLE, numerics=Numerics(contract=Contract.MODELOPT))
    assert table_path(tmp_path, TABLE) != table_path(tmp_path, other)


@guards(*(forgotten(Table, name) for name in ("points", "selection", "numerics", "environment")))
def test_digest_sees_every_decision(tmp_path: Path) -> None:
    changes = {
        "points": TABLE.points[:-1],
        "selection": {"margin": 0.05},
        "numerics": Numerics(contract=Contract.MODELOPT),
        "environment": replace(ENVIRONMENT, cores=3),
        "policy": {},
        "trials": "u" * 64,
    }
    for name, value in changes.items():
        assert replace(TABLE, **{name: value}).digest != TABLE.digest, name


@given(
    tokens=st.lists(st.integers(1, 99), unique=True, max_size=5).map(sorted),
    times=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=3),
)
def test_any_sound_table_survives_the_disk(
    tokens: list[int], times: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    candidates = tuple(Candidate(pipeline=f"p{number}", median_us=time) for number, time in enumerate(times))
    points = tuple(Point(tokens=count, routing="uniform", winner="p0", candidates=candidates) for count in tokens)
    table = replace(TABLE, points=points)
    assert load(freeze(table, tmp_path_factory.mktemp("t") / "t.table.json")) == table
