"""Packs: records as JSON lines, sorted, so that a pack diffs and merges in git and two packs merge as sets."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from moegen.core.canonical import canonical_json
from moegen.core.errors import StoreError
from moegen.store.files import storage_errors, write_atomic
from moegen.store.trials import KINDS, REFERENCES, Record, Trial, record_from_json, record_to_json

_ORDER = {kind: position for position, kind in enumerate(KINDS)}


def pack_bytes(records: Iterable[Record]) -> bytes:
    """The one text of a set of records: no duplicates, ordered by kind and id, one canonical JSON object a line."""
    unique = {record.id: record for record in records}
    ordered = sorted(unique.values(), key=lambda record: (_ORDER[record.kind], record.id))
    return b"".join(canonical_json(record_to_json(record)) + b"\n" for record in ordered)


def write_pack(path: Path, records: Iterable[Record]) -> None:
    """Writes a pack atomically.

    Raises:
        StoreError: a trial refers to a record that is not among ``records``, or the file cannot be written.
    """
    unique = list(records)
    check_closed(unique, str(path))
    write_atomic(path, pack_bytes(unique))


def read_pack(path: Path) -> list[Record]:
    """Reads and checks a pack.

    Raises:
        StoreError: with file and line: not JSON, an unknown kind, a wrong id, or a trial without its context.
    """
    records: list[Record] = []
    with storage_errors("cannot read the pack", path, "check the path"):
        lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(record_from_json(json.loads(line)))
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"not a JSON object ({error})", f"{path}:{number}", "restore the pack") from error
        except StoreError as error:
            raise StoreError(error.what, f"{path}:{number}", "restore the pack from its source") from error
    check_closed(records, str(path))
    return records


def check_closed(records: Sequence[Record], where: str, known: frozenset[str] = frozenset()) -> None:
    """Checks that every record that a trial refers to is present, here or among the ids ``known``.

    Raises:
        StoreError: naming the trial and what it lacks.
    """
    present = {record.id for record in records} | known
    for record in records:
        if isinstance(record, Trial):
            for name in REFERENCES:
                if getattr(record, name) not in present:
                    raise StoreError(f"trial {record.id[:16]}… refers to a {name} that is missing", where)
