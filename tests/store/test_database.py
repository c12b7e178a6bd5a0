"""Trials are the truth: records, the SQLite store, packs, and merging as sets."""

import itertools
import json
import multiprocessing
import sqlite3
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from moegen.core.errors import StoreError
from moegen.store.database import TrialDatabase
from moegen.store.packs import pack_bytes, read_pack, write_pack
from moegen.store.schema import MIGRATIONS, VERSION
from moegen.store.trials import (
    KINDS,
    Pin,
    Policy,
    Problem,
    Record,
    Retraction,
    Subject,
    Trial,
    TrialStatus,
    record_from_json,
    record_to_json,
)
from tests import faults
from tests.faults import forgotten, guards
from tests.store.records import CONTEXT, EXAMPLES, PROBLEM, SESSION, TRIAL, record_sets


def ids(records: list[Record]) -> set[str]:
    return {record.id for record in records}


def content(database: TrialDatabase) -> set[str]:
    return {record.id for cls in KINDS.values() for record in database.all(cls)}


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: record.kind)
def test_record_round_trips_through_json_and_sqlite(record: Record, tmp_path: Path) -> None:
    assert record_from_json(json.loads(json.dumps(record_to_json(record)))) == record
    with TrialDatabase(tmp_path / "trials.db") as database:
        database.add([*CONTEXT, TRIAL, record])
        assert database.get(type(record), record.id) == record


def test_tables_have_the_fields_of_the_records(tmp_path: Path) -> None:
    TrialDatabase(tmp_path / "trials.db").close()
    with sqlite3.connect(tmp_path / "trials.db") as connection:
        for kind, cls in KINDS.items():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({kind})")]
            assert columns == ["id", *(item.name for item in fields(cls))]


@guards(forgotten(Trial, "median_us"), forgotten(Trial, "session"))
def test_every_field_of_a_trial_is_part_of_its_id(tmp_path: Path) -> None:
    with_module = {"problem": "x", "routing": "x", "environment": "x", "policy": "x", "session": "x", "variant": "x"}
    changes = with_module | {"artifacts": (), "status": TrialStatus.NOISY, "median_us": 12.5, "n": 1, "note": "x"}
    changes |= dict.fromkeys(("p20_us", "p80_us", "ci_us", "clock_mhz", "clock_ratio", "err_max", "err_rel"), 0.75)
    changes |= {"rounds": 9}
    assert set(changes) == {item.name for item in fields(Trial)}
    for name, value in changes.items():
        assert replace(TRIAL, **{name: value}).id != replace(TRIAL).id, name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0, None])
def test_a_winner_must_have_a_real_time(value: float | None) -> None:
    with pytest.raises(StoreError):
        replace(TRIAL, median_us=value)


def test_a_failure_has_no_time() -> None:
    with pytest.raises(StoreError, match="crash"):
        replace(TRIAL, status=TrialStatus.CRASH)
    assert [status for status in TrialStatus if status.selectable] == [TrialStatus.OK]


@settings(max_examples=12)
@given(left=record_sets, middle=record_sets, right=record_sets)
def test_merging_is_a_set_union(
    left: list[Record], middle: list[Record], right: list[Record], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Commutative, associative, idempotent, whatever the order of packs and of lines."""
    folder = tmp_path_factory.mktemp("merge")
    packs = []
    for number, records in enumerate((left, middle, right)):
        packs.append(folder / f"{number}.jsonl")
        write_pack(packs[-1], records)
    wanted = ids(left) | ids(middle) | ids(right)
    texts = set()
    for number, order in enumerate(itertools.permutations(packs)):
        path = folder / f"out{number}.jsonl"
        with TrialDatabase(folder / f"{number}.db") as database:
            added = sum(database.import_pack(pack) for pack in order)
            assert added == len(wanted)
            assert content(database) == wanted
            assert database.import_pack(order[0]) == 0
            database.export_pack(path)
        texts.add(path.read_bytes())
    assert texts == {pack_bytes([*left, *middle, *right])}


@guards(faults.numbered_records)
def test_the_same_measurement_is_stored_once(tmp_path: Path) -> None:
    with TrialDatabase(tmp_path / "a.db") as first, TrialDatabase(tmp_path / "b.db") as second:
        first.add([*CONTEXT, TRIAL])
        second.add([*CONTEXT, replace(TRIAL, note="another"), TRIAL])
        assert first.merge(tmp_path / "b.db") == 1
        assert second.merge(tmp_path / "a.db") == 0
        assert content(first) == content(second)


def test_trials_come_with_their_context_and_filters(tmp_path: Path) -> None:
    other = replace(PROBLEM, package="q" * 64, subject=Subject.OP, op="gemm1")
    on_other = replace(TRIAL, problem=other.id)
    with TrialDatabase(tmp_path / "trials.db") as database:
        assert database.add([on_other, TRIAL, *CONTEXT, other]) == 8, "order within a batch does not matter"
        found = database.results(package="q" * 64)
        assert [item.trial for item in found] == [on_other]
        assert (found[0].problem, found[0].session) == (other, SESSION)
        assert len(database.results()) == 2
        assert [item.trial for item in database.results(subject=Subject.PIPELINE)] == [TRIAL]
        assert database.results(status=TrialStatus.CRASH) == database.results(target="sm_90a") == []
        assert len(database.results(tokens=8)) == 2


def test_retractions_hide_and_pins_are_found(tmp_path: Path) -> None:
    with TrialDatabase(tmp_path / "trials.db") as database:
        database.add([*CONTEXT, TRIAL])
        record = database.retract(TRIAL.id, "throttled")
        assert database.results() == []
        assert [item.trial for item in database.results(retracted=True)] == [TRIAL]
        assert database.retract(TRIAL.id, "throttled") == record
        assert database.all(Retraction) == [record]
        with pytest.raises(StoreError, match="no trial"):
            database.retract("0" * 64, "absent")
        pin = Pin(package="p" * 64, target="cpu", pipeline="pipe-b", reason="steady")
        database.add([pin])
        assert database.pins("p" * 64, "cpu") == [pin]
        assert database.pins("p" * 64, "sm_90a") == []


def test_a_retraction_may_arrive_before_its_trial(tmp_path: Path) -> None:
    with TrialDatabase(tmp_path / "trials.db") as database:
        database.add([Retraction(trial=TRIAL.id, reason="busy")])
        database.add([*CONTEXT, TRIAL])
        assert database.results() == []


@guards(faults.references_unchecked)
def test_a_trial_without_its_context_is_refused(tmp_path: Path) -> None:
    with TrialDatabase(tmp_path / "trials.db") as database:
        with pytest.raises(StoreError, match="missing"):
            database.add([TRIAL])
        database.add(CONTEXT)
        assert database.add([TRIAL]) == 1
    with pytest.raises(StoreError, match="session that is missing"):
        write_pack(tmp_path / "x.jsonl", [*CONTEXT[:-1], TRIAL])


def test_export_of_one_package_is_closed(tmp_path: Path) -> None:
    other = replace(PROBLEM, package="q" * 64)
    pin = Pin(package="q" * 64, target="cpu", pipeline="pipe-b", reason="steady")
    retraction = Retraction(trial=TRIAL.id, reason="busy")
    with TrialDatabase(tmp_path / "trials.db") as database:
        database.add([*CONTEXT, other, TRIAL, replace(TRIAL, problem=other.id), pin, retraction])
        assert database.export_pack(tmp_path / "p.jsonl", "p" * 64) == 7
        assert database.export_pack(tmp_path / "q.jsonl", "q" * 64) == 7
    assert ids(read_pack(tmp_path / "p.jsonl")) == ids([*CONTEXT, TRIAL, retraction])
    assert pin in read_pack(tmp_path / "q.jsonl")


BAD_LINES = {
    "not a JSON object": "{",
    "int. object is not iterable": "5",
    "unknown record kind": '{"kind": "guess"}',
    "not a policy record": '{"kind": "policy", "timer": "t"}',
    "is not the digest": json.dumps(record_to_json(SESSION) | {"seed": 5}),
    "not a trial record": json.dumps(record_to_json(TRIAL) | {"status": "great"}),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_bad_pack_is_refused_with_its_line(what: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(pack_bytes(CONTEXT) + BAD_LINES[what].encode() + b"\n")
    with TrialDatabase(tmp_path / "trials.db") as database:
        with pytest.raises(StoreError, match=what) as caught:
            database.import_pack(path)
        assert f"{path}:6" in str(caught.value)
        assert content(database) == set(), "a bad pack adds nothing"


def test_missing_pack_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere\.jsonl"):
        read_pack(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize("version", range(1, VERSION))
def test_older_database_is_migrated_with_its_records(version: int, tmp_path: Path) -> None:
    path, policy = tmp_path / "old.db", Policy(timer="t", cache="cold", parameters={})
    with sqlite3.connect(path) as connection:
        for script in MIGRATIONS[:version]:
            connection.executescript(script)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("INSERT INTO policy VALUES (?, 't', 'cold', '{}')", (policy.id,))
    with TrialDatabase(path) as database:
        assert database.all(Policy) == [policy]
        database.add([*CONTEXT, TRIAL])
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert connection.execute("SELECT name, routing, variant, median_us FROM result").fetchall() == [
            ("tiny", "uniform", "pipe-a", 12.25)
        ]


@pytest.mark.parametrize("change", ["median_us = median_us / 2", "note = 'x'", "artifacts = 'no json'", "status = 'x'"])
def test_a_row_that_is_not_what_was_added_is_refused(change: str, tmp_path: Path) -> None:
    """A wrong time would otherwise choose a winner."""
    path = tmp_path / "trials.db"
    with TrialDatabase(path) as database:
        database.add([*CONTEXT, TRIAL])
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE trial SET {change}")
    with TrialDatabase(path) as database, pytest.raises(StoreError, match=f"{TRIAL.id[:16]}… is damaged"):
        database.results()


def test_newer_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StoreError, match="upgrade moegen"):
        TrialDatabase(path)


def test_damaged_database_and_bad_place_are_typed_errors(tmp_path: Path) -> None:
    (tmp_path / "noise.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="database"):
        TrialDatabase(tmp_path / "noise.db")
    with pytest.raises(StoreError, match="MOEGEN_HOME"):
        TrialDatabase(Path("/proc/moegen/trials.db"))


def test_strict_columns_refuse_wrong_types(tmp_path: Path) -> None:
    TrialDatabase(tmp_path / "trials.db").close()
    with sqlite3.connect(tmp_path / "trials.db") as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO retraction VALUES ('id', x'00', 'blob')")


WRITERS, TRIALS_EACH = 8, 25


def _write(path: Path, number: int) -> None:
    session = replace(SESSION, seed=number)
    for index in range(TRIALS_EACH):
        with TrialDatabase(path) as database:
            database.add([*CONTEXT, session, replace(TRIAL, session=session.id, note=str(index))])


def test_many_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trials.db"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(path, number)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    with TrialDatabase(path) as database:
        assert len(database.results()) == WRITERS * TRIALS_EACH
        assert database.all(Problem) == [PROBLEM]
