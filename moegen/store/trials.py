"""Records of the tuning database: what was measured, where, how, and what came out.

Trials are the truth, winners are a view of them.

Every record is a frozen value whose id is the digest of its content. So two databases merge by set union, nothing is
ever updated, and a mistake is taken back by another record (:class:`Retraction`), not by a deletion.
"""

import math
from dataclasses import asdict, dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar

from moegen.core.canonical import Json, digest
from moegen.core.errors import StoreError


class TrialStatus(str, Enum):
    """What became of a candidate. A failure is knowledge too, and is recorded like a success."""

    OK = "ok"
    WRONG = "wrong"
    ILLEGAL = "illegal"
    COMPILE_ERROR = "compile_error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    OOM = "oom"
    NOISY = "noisy"

    @property
    def selectable(self) -> bool:
        """True when a trial of this status may decide a winner."""
        return self is TrialStatus.OK


class Subject(str, Enum):
    """What a trial timed: one op's variant, or a whole pipeline."""

    OP = "op"
    PIPELINE = "pipeline"


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of all records; ``kind`` names the type in packs and the table in SQLite."""

    kind: ClassVar[str]

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) of the canonical content; every trial asks for the ids of what it refers to."""
        return digest(self, f"moegen.{self.kind}")

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise StoreError(
                    f"{item.name} is {value}; records hold finite numbers only", self.kind, "record a status instead"
                )


@dataclass(frozen=True, kw_only=True)
class Problem(Record):
    """One point of one package: what every candidate had to compute.

    ``package`` is the digest of the package's offer on ``target``, ``name`` its readable name; ``op`` is the op kind of
    an op trial, empty for pipelines; ``numerics`` is the canonical JSON of the numerics class. ``experts`` counts those
    of this rank.
    """

    kind: ClassVar[str] = "problem"
    package: str
    name: str
    target: str
    subject: Subject
    op: str = ""
    tokens: int
    top_k: int
    experts: int
    hidden: int
    intermediate: int
    numerics: str


@dataclass(frozen=True, kw_only=True)
class Routing(Record):
    """How slots were spread over experts: the profile, and what it came to for this input.

    ``label`` is the routing class that tables use; ``parameters`` are the profile's own (effective share, exponent, …);
    ``active_experts`` had at least one row.
    """

    kind: ClassVar[str] = "routing"
    label: str
    parameters: dict[str, Json]
    seed: int
    active_experts: int


@dataclass(frozen=True, kw_only=True)
class Environment(Record):
    """The machine and software of a measurement.

    ``target`` and ``arch`` are hard: other values never match. ``device`` is the family: another name with the same
    ``arch`` serves as a flagged prior. The rest is soft: reported when different.
    """

    kind: ClassVar[str] = "environment"
    device: str
    target: str
    arch: str
    cores: int
    l2_bytes: int
    power_limit_w: float | None = None
    driver: str = ""
    cuda: str = ""
    os: str = ""
    tvm_ffi: str = ""
    torch: str = ""
    moegen: str = ""


@dataclass(frozen=True, kw_only=True)
class Policy(Record):
    """How samples were taken. Trials under different policies are never compared.

    ``timer`` and ``cache`` keep CPU, simulated and GPU timings apart; ``parameters`` hold the rest (warm-up, rounds,
    bounds).
    """

    kind: ClassVar[str] = "policy"
    timer: str
    cache: str
    parameters: dict[str, Json]


@dataclass(frozen=True, kw_only=True)
class Session(Record):
    """One tuning run.

    ``started`` is seconds since the epoch, ``host`` a digest of the host's name; ``dirty`` says that the working tree
    differed from ``revision``.
    """

    kind: ClassVar[str] = "session"
    started: float
    host: str
    command: str
    effort: str = ""
    budget_s: float | None = None
    seed: int = 0
    revision: str = ""
    dirty: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial(Record):
    """One candidate at one problem under one routing, in one session.

    The first six fields are ids of their records, save ``variant``: the canonical name of an op's variant or of a
    pipeline. Times are microseconds per call; ``ci_us`` is the half width of the median's confidence interval; ``n``
    counts samples. ``err_max``, ``err_rel``: distance to the reference. Timed statuses are ``ok`` and ``noisy``.

    Raises:
        StoreError: status and timing contradict each other.
    """

    kind: ClassVar[str] = "trial"
    problem: str
    routing: str
    environment: str
    policy: str
    session: str
    variant: str
    artifacts: tuple[str, ...] = ()
    status: TrialStatus
    median_us: float | None = None
    p20_us: float | None = None
    p80_us: float | None = None
    ci_us: float | None = None
    n: int = 0
    rounds: int = 0
    clock_mhz: float | None = None
    clock_ratio: float | None = None
    err_max: float | None = None
    err_rel: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        timed = self.status in (TrialStatus.OK, TrialStatus.NOISY)
        if timed != (self.median_us is not None):
            raise StoreError(f"status {self.status.value} with median {self.median_us}", f"trial of {self.variant}")
        if self.median_us is not None and self.median_us <= 0:
            raise StoreError(f"median of {self.median_us} µs", f"trial of {self.variant}")


@dataclass(frozen=True, kw_only=True)
class Retraction(Record):
    """Takes a trial back: it stays stored, but no view shows it."""

    kind: ClassVar[str] = "retraction"
    trial: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Pin(Record):
    """A person's choice of pipeline over the tuner's; ``tokens`` 0 and ``routing`` empty mean every point."""

    kind: ClassVar[str] = "pin"
    package: str
    target: str
    tokens: int = 0
    routing: str = ""
    pipeline: str
    reason: str
    author: str = ""


KINDS: dict[str, type[Record]] = {
    cls.kind: cls for cls in (Problem, Routing, Environment, Policy, Session, Trial, Retraction, Pin)
}
REFERENCES: dict[str, str] = {
    "problem": "problem",
    "routing": "routing",
    "environment": "environment",
    "policy": "policy",
    "session": "session",
}
"""Fields of a trial that hold the id of another record, and that record's kind."""


def record_to_json(record: Record) -> dict[str, Any]:
    """Plain form with ``kind`` and ``id``: one line of a pack."""
    body = {name: value.value if isinstance(value, Enum) else value for name, value in asdict(record).items()}
    return {"kind": record.kind, "id": record.id, **body}


def record_from_json(data: dict[str, Any]) -> Record:
    """Inverse of :func:`record_to_json`.

    Raises:
        StoreError: unknown kind or fields, values of the wrong kind, or an id that is not the content's digest.
    """
    values = dict(data)
    kind, claimed = values.pop("kind", None), values.pop("id", None)
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise StoreError(f"unknown record kind {kind!r}", "", f"known kinds: {', '.join(KINDS)}")
    try:
        if cls is Trial:
            values["status"] = TrialStatus(values["status"])
            values["artifacts"] = tuple(values["artifacts"])
        if cls is Problem:
            values["subject"] = Subject(values["subject"])
        record = cls(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"not a {kind} record ({error})") from error
    if claimed != record.id:
        raise StoreError(
            f"{kind} record's id {str(claimed)[:16]}… is not the digest of its content ({record.id[:16]}…)"
        )
    return record
