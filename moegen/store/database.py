"""The working store of trials: one SQLite file on a local disk, many processes writing.

The file only ever gains records. Packs (``moegen.store.packs``) carry them between machines.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from moegen.core.canonical import canonical_json
from moegen.core.errors import StoreError
from moegen.store.files import storage_errors
from moegen.store.packs import check_closed, read_pack, write_pack
from moegen.store.schema import MIGRATIONS, VERSION
from moegen.store.trials import (
    KINDS,
    REFERENCES,
    Environment,
    Pin,
    Policy,
    Problem,
    Record,
    Retraction,
    Routing,
    Session,
    Subject,
    Trial,
    TrialStatus,
)

DATABASE = "trials.db"
_WAIT_S = 60.0
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trial with the records it refers to."""

    trial: Trial
    problem: Problem
    routing: Routing
    environment: Environment
    policy: Policy
    session: Session


class TrialDatabase:
    """Opens (and creates or migrates) the database at ``path``; use as a context manager, one per thread.

    Raises:
        StoreError: the file cannot be opened, is damaged, or was written by a newer moegen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with storage_errors("cannot create the database's folder", path.parent):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._errors():
            self._connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._migrate()

    def __enter__(self) -> "TrialDatabase":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; safe to call twice."""
        self._connection.close()

    def add(self, records: Iterable[Record]) -> int:
        """Adds records in one transaction; those already present are left alone. Returns how many were new.

        Order does not matter: a trial may come before the records it refers to.

        Raises:
            StoreError: a trial refers to a record that is neither given nor stored; nothing is then added.
        """
        batch = list(records)
        position = {kind: index for index, kind in enumerate(KINDS)}
        with self._errors(), self._transaction():
            check_closed(batch, str(self.path), frozenset(self._stored_references(batch)))
            before = self._connection.total_changes
            for record in sorted(batch, key=lambda item: position[item.kind]):
                row = _row(record)
                columns, slots = ", ".join(row), ", ".join("?" for _ in row)
                statement = f"INSERT OR IGNORE INTO {record.kind} ({columns}) VALUES ({slots})"
                self._connection.execute(statement, [*row.values()])
            return self._connection.total_changes - before

    def get(self, cls: type[R], identity: str) -> R | None:
        """The record of one kind with this id, or None."""
        found = list(self._select(cls, "WHERE id = ?", (identity,)))
        return found[0] if found else None

    def all(self, cls: type[R]) -> list[R]:
        """Every record of one kind, retracted trials included, ordered by id."""
        return list(self._select(cls, "ORDER BY id", ()))

    def results(
        self,
        *,
        package: str | None = None,
        target: str | None = None,
        subject: Subject | None = None,
        tokens: int | None = None,
        status: TrialStatus | None = None,
        retracted: bool = False,
    ) -> list[Result]:
        """Trials with their context, ordered by id; each argument narrows the answer.

        Args:
            package: package digest.
            retracted: also those that were taken back.
        """
        wanted = {"problem.package": package, "problem.target": target, "problem.tokens": tokens}
        wanted["problem.subject"] = subject.value if subject else None
        wanted["trial.status"] = status.value if status else None
        given = {column: value for column, value in wanted.items() if value is not None}
        terms = [f"{column} = ?" for column in given]
        if not retracted:
            terms.append("trial.id NOT IN (SELECT trial FROM retraction)")
        where = f"WHERE {' AND '.join(terms)}" if terms else ""
        clause = f"JOIN problem ON problem.id = trial.problem {where} ORDER BY trial.id"
        context: dict[str, Record] = {}
        return [self._result(trial, context) for trial in self._select(Trial, clause, tuple(given.values()))]

    def pins(self, package: str, target: str) -> list[Pin]:
        """Pins of one package on one target, ordered by id."""
        return list(self._select(Pin, "WHERE package = ? AND target = ? ORDER BY id", (package, target)))

    def retract(self, trial: str, reason: str) -> Retraction:
        """Takes a trial back.

        Raises:
            StoreError: no such trial.
        """
        if self.get(Trial, trial) is None:
            raise StoreError(f"no trial {trial}", str(self.path), "moegen db ls")
        record = Retraction(trial=trial, reason=reason)
        self.add([record])
        return record

    def export_pack(self, path: Path, package: str | None = None) -> int:
        """Writes a closed pack of everything, or of one package digest; returns the number of records."""
        records = self.closure(package)
        write_pack(path, records)
        return len(records)

    def import_pack(self, path: Path) -> int:
        """Adds a pack's records; returns how many were new. Raises StoreError as ``packs.read_pack``."""
        return self.add(read_pack(path))

    def merge(self, other: Path) -> int:
        """Adds every record of another database file; returns how many were new."""
        with TrialDatabase(other) as source:
            return self.add(source.closure())

    def closure(self, package: str | None = None, subject: Subject | None = None) -> list[Record]:
        """Every record, or those of one package digest with all that they refer to, retractions and pins: what a pack
        holds.

        Args:
            package: package digest.
            subject: of a package, only trials of whole pipelines, or of single ops.
        """
        if package is None:
            return [record for cls in KINDS.values() for record in self.all(cls)]
        results = self.results(package=package, subject=subject, retracted=True)
        trials = {result.trial.id for result in results}
        context = [getattr(result, name) for result in results for name in ("trial", *REFERENCES)]
        taken_back = [record for record in self.all(Retraction) if record.trial in trials]
        pins = [pin for pin in self.all(Pin) if pin.package == package]
        return list({record.id: record for record in (*context, *taken_back, *pins)}.values())

    def _result(self, trial: Trial, context: dict[str, Record]) -> Result:
        parts: dict[str, Any] = {}
        for name, kind in REFERENCES.items():
            identity = getattr(trial, name)
            if identity not in context:
                record = self.get(KINDS[kind], identity)
                if record is None:
                    raise StoreError(f"trial {trial.id} lacks its {name}", str(self.path), "merge the pack again")
                context[identity] = record
            parts[name] = context[identity]
        return Result(trial=trial, **parts)

    def _stored_references(self, batch: list[Record]) -> Iterator[str]:
        for name, kind in REFERENCES.items():
            for identity in {getattr(record, name) for record in batch if isinstance(record, Trial)}:
                if self._connection.execute(f"SELECT 1 FROM {kind} WHERE id = ?", (identity,)).fetchone():
                    yield identity

    def _select(self, cls: type[R], clause: str, arguments: tuple[object, ...]) -> Iterator[R]:
        columns = ", ".join(f"{cls.kind}.{name}" for name in ("id", *(item.name for item in fields(cls))))
        with self._errors():
            rows = self._connection.execute(f"SELECT {columns} FROM {cls.kind} {clause}", arguments).fetchall()
        for identity, *row in rows:
            yield self._checked(cls, identity, row)

    def _checked(self, cls: type[R], identity: str, row: Sequence[Any]) -> R:
        """The record of a row; an id is the digest of its record's content, so a damaged row shows."""
        with suppress(StoreError, TypeError, ValueError):
            record = _record(cls, row)
            if record.id == identity:
                return record
        raise StoreError(
            f"{cls.kind} record {str(identity)[:16]}… is damaged",
            str(self.path),
            "move the file away, and import the packs that were exported from it: moegen db import",
        )

    def _migrate(self) -> None:
        if self._version() == VERSION:
            return
        with self._transaction():  # re-read inside: another process may have migrated meanwhile
            version = self._version()
            if version > VERSION:
                raise StoreError(
                    f"schema version {version}, this moegen knows {VERSION}", str(self.path), "upgrade moegen"
                )
            for script in MIGRATIONS[version:]:
                for statement in filter(str.strip, script.split(";")):
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite3 decodes the messages of a damaged file
            raise StoreError(
                f"database: {error}", str(self.path), "set MOEGEN_HOME to a writable local folder"
            ) from error


def _row(record: Record) -> dict[str, object]:
    row: dict[str, object] = {"id": record.id}
    for item in fields(record):
        value = getattr(record, item.name)
        if isinstance(value, Enum):
            value = value.value
        elif isinstance(value, tuple | dict):
            value = canonical_json(value).decode()
        row[item.name] = value
    return row


def _record(cls: type[R], row: Sequence[Any]) -> R:
    values = dict(zip((item.name for item in fields(cls)), row, strict=True))
    if "artifacts" in values:
        values["artifacts"] = tuple(json.loads(values["artifacts"]))
    if "parameters" in values:
        values["parameters"] = json.loads(values["parameters"])
    if "dirty" in values:
        values["dirty"] = bool(values["dirty"])
    if "status" in values:
        values["status"] = TrialStatus(values["status"])
    if "subject" in values:
        values["subject"] = Subject(values["subject"])
    return cls(**values)
