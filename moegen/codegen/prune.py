"""Keeps a bounded, diverse set of pipelines. A ranking may order or drop candidates; it cannot invent one."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TypeVar

from moegen.codegen.judging import Judged, mean_log, spread
from moegen.codegen.pipelines import Shape
from moegen.codegen.schedule import Schedule, Value
from moegen.core.canonical import digest
from moegen.core.enums import OpKind
from moegen.core.ops import Numerics


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A pipeline before pruning: one legal variant per op, in launch order."""

    shape: Shape
    numerics: Numerics
    steps: tuple[Judged, ...]

    @cached_property
    def name(self) -> str:
        """Mode, combine, row tile, and a digest of the step variants' names: unique within a target."""
        tail = digest([step.name for step in self.steps], "moegen.pipeline")[:8]
        return f"{self.shape.epilogue.value}-{self.shape.combine.value}-rt{self.shape.row_tile}-{tail}"

    @cached_property
    def times_us(self) -> tuple[float, ...]:
        """Sum of the steps' modelled times at each point."""
        return tuple(sum(times) for times in zip(*(step.times_us for step in self.steps), strict=True))


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A candidate that stays, and why."""

    candidate: Candidate
    reason: str


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A candidate that the model ranked out: natural logarithm of how much slower than the best, over all points."""

    candidate: Candidate
    slower: float


_GEMMS = (OpKind.GEMM1, OpKind.GEMM2)
Key = TypeVar("Key", bound=Hashable)


def rank(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Best geometric mean first; ties in the order of names."""
    return sorted(candidates, key=lambda candidate: (mean_log(candidate.times_us), candidate.name))


def default_of(ranked: Sequence[Candidate], declared: Numerics) -> Candidate:
    """The best candidate whose numerics are exactly the spec's; the best of all when no mode does that rounding.

    One kernel for a whole layer serves few tokens: it is no default.
    """
    chains = [candidate for candidate in ranked if not candidate.shape.block]
    return next((candidate for candidate in chains if candidate.numerics == declared), chains[0])


def prune(
    ranked: Sequence[Candidate], default: Candidate, limit: int, points: Sequence[str], *, listed: bool = False
) -> tuple[list[Kept], list[Dropped]]:
    """Keeps the default, the best of every mode, row tile and point, then fills up to ``limit``, groups in turn.

    Kernels for the whole layer come after the points: they are few, and serve no large batch by which they would rank.
    ``listed``: after the points come, for each numerics class, every schedule of the gemms with its like, or with the
    partner beside which it stands best where there is no such pair: measurements meet all that a spec lists.
    ``points`` names the batches that ``Candidate.times_us`` is about. Row tiles and points are looked for in the
    default's numerics class, since tuning compares pipelines of one class.
    Modes and row tiles are kept even beyond ``limit``: a measurement must be able to prove the model wrong about them.
    """
    kept: dict[str, Kept] = {}
    rivals = [candidate for candidate in ranked if candidate.numerics == default.numerics]

    def keep(candidate: Candidate, reason: str) -> None:
        kept.setdefault(candidate.name, Kept(candidate=candidate, reason=reason))

    keep(default, "default")
    for (epilogue, combine), candidate in _best_of(ranked, lambda c: (c.shape.epilogue, c.shape.combine)).items():
        keep(candidate, f"best of {epilogue.value}, {combine.value}")
    for row_tile, candidate in _best_of(rivals, lambda c: c.shape.row_tile).items():
        keep(candidate, f"best of row tile {row_tile}")
    forms = _best_of(rivals, lambda c: c.shape.decoded)
    for decoded, candidate in forms.items() if len(forms) > 1 else ():
        keep(candidate, f"best of rows as {'products' if decoded else 'codes'}")
    for point in spread(len(points)):
        if len(kept) < limit:
            keep(min(rivals, key=lambda c: c.times_us[point]), f"best at {points[point]}")
    for candidate in rivals:
        if len(kept) < limit and candidate.shape.block:
            keep(candidate, "one kernel for the whole layer")
    classes = _pairs_by_class(ranked, default.numerics) if listed else []
    for candidate in [pair for pairs in classes for pair in _of_every_schedule(pairs)] + _alternately(classes):
        if len(kept) < limit:
            keep(candidate, "its gemms' schedules")
    for candidate in _in_turn(rivals) + _in_turn(ranked):
        if len(kept) < limit:
            keep(candidate, "next best of its mode and row tile")
    best = mean_log(ranked[0].times_us)
    dropped = [
        Dropped(candidate=candidate, slower=mean_log(candidate.times_us) - best)
        for candidate in ranked
        if candidate.name not in kept
    ]
    return list(kept.values()), dropped


def _pairs_by_class(ranked: Sequence[Candidate], first: Numerics) -> list[list[Candidate]]:
    """A candidate for each pair of gemm schedules, by numerics class; of each class the pair that stands best first.

    It stands as near to the best as it comes at any batch. So the candidate of a pair has the routing and the form of
    rows that suit those batches for which one takes such schedules.
    """
    classes: dict[Numerics, list[Candidate]] = {first: []}
    for candidate in ranked:
        if not candidate.shape.block:
            classes.setdefault(candidate.numerics, []).append(candidate)
    return [_pairs(candidates) for candidates in classes.values()]


def _pairs(candidates: Sequence[Candidate]) -> list[Candidate]:
    """See :func:`_pairs_by_class`. Rows of codes cannot have every family of a schedule: a pair that reads them is left
    out beside one with the same fields that reads products and stands better, and the other way round."""
    best = [min(times) for times in zip(*(candidate.times_us for candidate in candidates), strict=True)]
    behind = {c.name: min(t / b for t, b in zip(c.times_us, best, strict=True)) for c in candidates}
    ordered = sorted(candidates, key=lambda candidate: (behind[candidate.name], candidate.name))
    nearest = _best_of(ordered, lambda candidate: _fields(_schedules(candidate)))
    pairs = _best_of(ordered, _schedules)
    return [pair for key, pair in pairs.items() if _reads_codes(pair) == _reads_codes(nearest[_fields(key)])]


def _reads_codes(candidate: Candidate) -> tuple[bool, ...]:
    return tuple(step.variant.op.reads_codes for step in candidate.steps if step.variant.op.kind in _GEMMS)


def _alternately(groups: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    return [candidate for row in zip_longest(*groups) for candidate in row if candidate is not None]


def _of_every_schedule(pairs: Sequence[Candidate]) -> list[Candidate]:
    """Pairs that together have every schedule of both gemms: with its like, or with its best partner without one."""
    like = [pair for pair in pairs if len(set(_fields(_schedules(pair)))) == 1]
    same = {_fields(_schedules(pair)) for pair in like if len(set(_schedules(pair))) == 1}
    chosen = {
        _schedules(pair): pair
        for pair in like
        if len(set(_schedules(pair))) == 1 or _fields(_schedules(pair)) not in same
    }
    for place in (0, 1):
        alike = {schedules[place] for schedules in chosen}
        nearest = _best_of(pairs, lambda pair, place=place: _schedules(pair)[place])
        chosen |= {_schedules(pair): pair for schedule, pair in nearest.items() if schedule not in alike}
    return list(chosen.values())


def _schedules(candidate: Candidate) -> tuple[Schedule, ...]:
    """Schedules of gemm1 and of gemm2."""
    return tuple(step.variant.schedule for step in candidate.steps if step.variant.op.kind in _GEMMS)


def _fields(schedules: tuple[Schedule, ...]) -> tuple[tuple[tuple[str, Value], ...], ...]:
    return tuple(schedule.values for schedule in schedules)


def _in_turn(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best of each (mode, row tile) in order of rank, then the second best of each, and so on."""
    seen: Counter[tuple[str, int]] = Counter()
    turns: list[tuple[int, int, Candidate]] = []
    for place, candidate in enumerate(ranked):
        group = (candidate.shape.epilogue.value, candidate.shape.row_tile)
        turns.append((seen[group], place, candidate))
        seen[group] += 1
    return [candidate for _, _, candidate in sorted(turns, key=lambda turn: turn[:2])]


def _best_of(ranked: Sequence[Candidate], key: Callable[[Candidate], Key]) -> dict[Key, Candidate]:
    best: dict[Key, Candidate] = {}
    for candidate in ranked:
        best.setdefault(key(candidate), candidate)
    return best
