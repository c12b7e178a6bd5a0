"""Frozen tables: the immutable choices that serving loads and that ranks compare by digest.

A table is made from trials under one policy, for one package, one kind of machine and one numerics class.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from moegen.core.canonical import Json, canonical_json, digest, plain
from moegen.core.enums import Target
from moegen.core.errors import TableError
from moegen.core.ops import Numerics, numerics_from_json
from moegen.store.files import write_atomic
from moegen.store.trials import Environment

TABLES = Path("tables") / "v1"
SCHEMA = 2
SUFFIX = ".table.json"
_DOMAIN = "moegen.table"
_REFREEZE = "moegen tune"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A pipeline timed at a point: microseconds per call of the whole pipeline, and the half width of its interval."""

    pipeline: str
    median_us: float
    ci_us: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Point:
    """What is known at (tokens, routing class): every pipeline timed there, and the one that won.

    ``pinned`` says that a person chose the winner.
    """

    tokens: int
    routing: str
    winner: str
    candidates: tuple[Candidate, ...]
    pinned: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A frozen table.

    Attributes:
        package: digest of what the package's target offered (``Package.offer_digest``).
        layer: digest of the layer on that target (``Package.layer_digest``).
        name: the package's readable name.
        environment: machine and software that the trials ran on.
        policy: content of the measurement policy.
        selection: content of the rule that picked winners (tie band, switch margin, …).
        numerics: the class that all pipelines of this table belong to.
        points: sorted by tokens, then routing class.
        default: the pipeline that winners had to beat.
        pipelines: variants, in launch order, of every pipeline among the candidates.
        trials: digest over the ids of the trials that it was made from.
    """

    package: str
    layer: str = ""
    name: str
    environment: Environment
    policy: dict[str, Json]
    selection: dict[str, Json]
    numerics: Numerics
    points: tuple[Point, ...]
    default: str = ""
    pipelines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    trials: str = ""
    schema: int = SCHEMA

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the whole content; equal digests mean equal decisions on every rank."""
        return digest(self, _DOMAIN)

    @property
    def target(self) -> Target:
        """Target that the table's pipelines are generated for."""
        return Target(self.environment.target)


class Fit(str, Enum):
    """How well a table's machine matches the one at hand."""

    EXACT = "exact"
    SOFT = "soft"
    FAMILY = "family"


@dataclass(frozen=True, kw_only=True)
class Match:
    """A usable table's fit, with (field, table's value, this machine's value) for all that differs."""

    fit: Fit
    differing: tuple[tuple[str, str, str], ...] = ()

    def differs(self, field_name: str) -> bool:
        """True when that field is among those that differ."""
        return any(name == field_name for name, _, _ in self.differing)


def freeze(table: Table, path: Path) -> Path:
    """Checks a table and writes it, digest first, atomically; returns ``path``.

    Raises:
        TableError: a point without its winner among its candidates, a time that is no time, points out of order.
        StoreError: the file cannot be written.
    """
    _check(table, str(path))
    text = json.dumps({"digest": table.digest, "table": plain(table)}, indent=1, ensure_ascii=False)
    write_atomic(path, text.encode() + b"\n")
    return path


def load(path: Path) -> Table:
    """Reads and verifies a table.

    Raises:
        TableError: missing, damaged, of another schema, or not matching its own digest.
    """
    try:
        outer = json.loads(path.read_bytes())
        body = outer["table"]
        if body["schema"] != SCHEMA:
            raise TableError(f"table schema {body['schema']}, this moegen reads {SCHEMA}", str(path), _REFREEZE)
        table = _from_json(body)
        found, claimed = table.digest, outer["digest"]
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}", str(path), _REFREEZE) from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TableError(f"damaged table ({error})", str(path), _REFREEZE) from error
    if found != claimed:
        what = f"content has digest {found[:16]}…, the header says {str(claimed)[:16]}…"
        raise TableError(what, str(path), "restore the file; tables are not edited by hand")
    _check(table, str(path))
    return table


def match(
    table: Table, package: str, environment: Environment, numerics: Numerics | None = None, *, layer: str = ""
) -> Match:
    """Judges whether a table may serve ``package`` on the machine described by ``environment``.

    Hard fields refuse: the layer, target, architecture and, when given, the numerics class. Another device of the same
    architecture is ``family``. Any other difference (driver, power limit, versions, and kernels of the same layer that
    were rendered anew since) is ``soft``: pipelines are named by what they do, and one that is gone is never chosen.

    Args:
        package, layer: ``offer_digest`` and ``layer_digest`` of the package at hand; without ``layer`` only tables of
            the very same offer match.

    Raises:
        TableError: naming the hard field that differs.
    """
    hard = {
        "target": (table.environment.target, environment.target),
        "arch": (table.environment.arch, environment.arch),
    }
    if not (layer and table.layer == layer):
        hard["package"] = (table.package, package)
    if numerics is not None:
        hard["numerics"] = (canonical_json(table.numerics).decode(), canonical_json(numerics).decode())
    for name, (has, wants) in hard.items():
        if has != wants:
            raise TableError(
                f"{name} is {has}, this is {wants}", f"table {table.digest[:16]}… of {table.name}", _REFREEZE
            )
    theirs, ours = _facts(table.environment), _facts(environment)
    differing = tuple((name, theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name])
    if table.package != package:
        differing = (("kernels", table.package[:16], package[:16]), *differing)
    if table.environment.device != environment.device:
        return Match(fit=Fit.FAMILY, differing=differing)
    return Match(fit=Fit.SOFT if differing else Fit.EXACT, differing=differing)


def table_path(root: Path, table: Table) -> Path:
    """Where a root holds this table: one file for each offer, device and numerics class."""
    device = "".join(char if char.isalnum() else "_" for char in table.environment.device.lower())
    numerics = digest(table.numerics, "moegen.numerics")[:8]
    return root / TABLES / f"{table.name}-{_mark(table.layer, table.package)}-{device}-{numerics}{SUFFIX}"


def _mark(layer: str, package: str) -> str:
    """The part of a file's name that says whose table it is."""
    return f"{(layer or package)[:16]}-{package[:8]}"


def find_tables(
    folders: Iterable[Path], package: str, environment: Environment, *, layer: str = ""
) -> list[tuple[Table, Match, Path]]:
    """Usable tables for a package on a machine, best fit first, then in the order of ``folders``.

    Args:
        package, environment, layer: as for :func:`match`.
        folders: folders that hold ``*.table.json``, such as ``<root>/tables/v1`` and ``specs/tuned``.

    Raises:
        TableError: a table of this layer, by its file name, is damaged.
    """
    order, ours = list(Fit), (layer or package)[:16]
    found: list[tuple[Table, Match, Path]] = []
    for folder in folders:
        for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else ():
            try:
                table = load(path)
                found.append((table, match(table, package, environment, layer=layer), path))
            except TableError:
                if ours in path.name:
                    raise
    return sorted(found, key=lambda item: order.index(item[1].fit))


def _facts(environment: Environment) -> dict[str, str]:
    return {item.name: str(getattr(environment, item.name)) for item in fields(environment)}


def _check(table: Table, where: str) -> None:
    keys = [(point.tokens, point.routing) for point in table.points]
    if keys != sorted(set(keys)):
        raise TableError("points are not sorted, or one occurs twice", where, _REFREEZE)
    for point in table.points:
        names = [candidate.pipeline for candidate in point.candidates]
        place = f"{where}: T={point.tokens} {point.routing}"
        if point.winner not in names or len(set(names)) != len(names):
            raise TableError(f"winner {point.winner!r} is not exactly one of the candidates {names}", place, _REFREEZE)
        for candidate in point.candidates:
            if not (math.isfinite(candidate.median_us) and candidate.median_us > 0):
                raise TableError(f"{candidate.pipeline} has a median of {candidate.median_us} µs", place, _REFREEZE)


def _from_json(body: dict[str, Any]) -> Table:
    values = dict(body)
    values["environment"] = Environment(**values["environment"])
    values["numerics"] = numerics_from_json(values["numerics"])
    values["pipelines"] = {name: tuple(variants) for name, variants in values["pipelines"].items()}
    values["points"] = tuple(
        Point(**(point | {"candidates": tuple(Candidate(**candidate) for candidate in point["candidates"])}))
        for point in values["points"]
    )
    return Table(**values)
