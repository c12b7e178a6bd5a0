"""Which pipeline serves T tokens: a pure function of a frozen table, the manifest and what is built.

Nothing here compiles, measures, touches a device or waits for one. The order of sources: exact point, interpolation
between points, the same from a table of a sister device, clamp at the nearest end (within a factor of two always,
farther while the time model does not hold another pipeline much faster), time model, reference.
"""

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from moegen.core.errors import MoegenError
from moegen.core.package import Pipeline
from moegen.store.tables import Fit, Match, Point, Table

_log = logging.getLogger("moegen.runtime")
UNIFORM = "uniform"
_NEAR = 2.0
"""Up to this factor outside the tuned points the nearest winner serves, whatever the time model holds."""
_TRUSTED_CLAMP = 1.1
"""Farther outside it serves unless the time model holds another this much faster."""
_NOTHING_KNOWN = "no usable trials and no time model: the package's default"


class Source(str, Enum):
    """Where a decision came from, best first."""

    PINNED = "pinned"
    EXACT = "exact"
    INTERPOLATED = "interpolated"
    CLAMPED = "clamped"
    FAMILY = "family"
    MODEL = "model"
    REFERENCE = "reference"

    @property
    def degraded(self) -> bool:
        """True when the choice rests on less than measurements of this device around this T."""
        return self in (Source.CLAMPED, Source.FAMILY, Source.MODEL, Source.REFERENCE)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One choice, with its grounds.

    Attributes:
        tokens: T that was asked for.
        routing: routing class whose trials were used.
        pipeline: name of the chosen pipeline.
        source: which rule chose it.
        predicted_us: expected time of the whole pipeline; None when nothing was measured or modelled.
        reason: the rule with its numbers, in words.
        table: digest of the frozen table; None when no table took part.
        rivals: (pipeline, expected µs) of those compared, fastest first.
    """

    tokens: int
    routing: str
    pipeline: str
    source: Source
    predicted_us: float | None
    reason: str
    table: str | None = None
    rivals: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """The two tuned points round T (equal when T is one), and whether T lies outside all of them."""

    low: int
    high: int
    outside: bool = False


def bracket(tokens: int, points: Sequence[int]) -> Bracket:
    """Finds ``tokens`` among rising tuned token counts.

    The tuner asks it which points a measurement belongs to and dispatch which points to read: one function, so that the
    two can never disagree. ``points`` must not be empty.
    """
    index = bisect_left(points, tokens)
    if index == len(points):
        return Bracket(low=points[-1], high=points[-1], outside=True)
    if points[index] == tokens:
        return Bracket(low=tokens, high=tokens)
    if index == 0:
        return Bracket(low=points[0], high=points[0], outside=True)
    return Bracket(low=points[index - 1], high=points[index])


def interpolate_us(tokens: int, low: tuple[int, float], high: tuple[int, float]) -> float:
    """Time at ``tokens`` on the straight line through two (tokens, µs) points in log-log coordinates."""
    (a, time_a), (b, time_b) = low, high
    share = (math.log(tokens) - math.log(a)) / (math.log(b) - math.log(a))
    return math.exp((1 - share) * math.log(time_a) + share * math.log(time_b))


def model_time_us(pipeline: Pipeline, tokens: int) -> float | None:
    """The time model's prediction at ``tokens``; beyond its last point it grows with T; None without a model."""
    curve = pipeline.model_us
    if not curve:
        return None
    place = bracket(tokens, [point for point, _ in curve])
    times = dict(curve)
    if place.outside:
        return times[place.low] * max(1.0, tokens / place.low)
    if place.low == place.high:
        return times[place.low]
    return interpolate_us(tokens, (place.low, times[place.low]), (place.high, times[place.high]))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A frozen table, how well its machine fits this one, and the file it came from."""

    table: Table
    match: Match
    path: Path | None = None


@dataclass(kw_only=True)
class Decider:
    """Decides once for each T and remembers.

    Args:
        pipelines: the legal and built pipelines of one numerics class, by name; not empty.
        default: the pipeline of last resort; the first of ``pipelines`` when it is not among them.
        evidence: tables of that class, best fit first.
        routing: routing class to serve.
        pinned: the caller named the one pipeline there is.

    ``counts`` holds calls per source; ``notify`` gets each degraded source once.
    """

    pipelines: Mapping[str, Pipeline]
    default: str
    evidence: Sequence[Evidence] = ()
    routing: str = UNIFORM
    pinned: bool = False
    notify: Callable[[Decision], None] = field(default=lambda decision: _warn(decision))
    counts: dict[Source, int] = field(default_factory=lambda: dict.fromkeys(Source, 0))
    _known: dict[int, Decision] = field(default_factory=dict)
    _told: set[Source] = field(default_factory=set)

    def __post_init__(self) -> None:
        made = (_trials_of(evidence, self.routing) for evidence in self.evidence)
        self._trials = [trials for trials in made if trials is not None]

    def decide(self, tokens: int) -> Decision:
        """The pipeline for ``tokens`` >= 1 tokens, always one of ``pipelines`` that serves so many.

        Raises:
            MoegenError: none of them does; :meth:`reachable` finds that out for all calls at once.
        """
        decision = self._known.get(tokens)
        if decision is None:
            decision = self._known[tokens] = self._resolve(tokens)
            if decision.source.degraded and decision.source not in self._told:
                self._told.add(decision.source)
                self.notify(decision)
        return decision

    def reachable(self, most_tokens: int) -> frozenset[str]:
        """Every pipeline that some T up to ``most_tokens`` may be given; raises as :meth:`decide`."""
        return frozenset(self._resolve(tokens).pipeline for tokens in range(1, most_tokens + 1))

    def _resolve(self, tokens: int) -> Decision:
        if self.pinned:
            return self._reference(tokens, Source.PINNED, "the caller named this pipeline")
        beyond: list[tuple[float, Decision]] = []
        for trials in self._trials:
            decision, place = self._from_table(tokens, trials), bracket(tokens, trials.rising)
            if decision is not None and not place.outside:
                return decision
            if decision is not None:
                beyond.append((abs(math.log(tokens / place.low)), decision))
        if not beyond:
            return self._from_model(tokens) or self._reference(tokens, Source.REFERENCE, _NOTHING_KNOWN)
        distance, nearest = min(beyond, key=lambda item: item[0])
        if distance <= math.log(_NEAR) or self._is_near_the_model(nearest):
            return nearest
        return self._from_model(tokens) or nearest

    def _is_near_the_model(self, clamped: Decision) -> bool:
        """False when the time model holds another pipeline much faster at a token count that nobody measured."""
        modelled = self._from_model(clamped.tokens)
        time_us = model_time_us(self.pipelines[clamped.pipeline], clamped.tokens)
        if modelled is None or modelled.predicted_us is None or time_us is None:
            return True
        return time_us <= _TRUSTED_CLAMP * modelled.predicted_us

    def _from_table(self, tokens: int, trials: "_Trials") -> Decision | None:
        place = bracket(tokens, trials.rising)
        if place.low != place.high:
            choice = self._between(tokens, trials.points[place.low], trials.points[place.high])
        else:
            choice = self._at(tokens, trials.points[place.low], place.outside)
        if choice is None:
            return None
        pipeline, source, reason, rivals = choice
        return Decision(
            tokens=tokens,
            routing=trials.routing,
            pipeline=pipeline,
            source=Source.FAMILY if trials.family else source,
            predicted_us=dict(rivals)[pipeline],
            reason=reason + trials.note,
            table=trials.digest,
            rivals=rivals,
        )

    def _at(self, tokens: int, point: Point, outside: bool) -> "_Choice | None":
        times = self._usable(point, tokens)
        if not times:
            return None
        winner, why = point.winner, f"winner at T={point.tokens}"
        if winner not in times:
            winner = min(times, key=lambda name: (times[name], name))
            why = f"fastest built candidate at T={point.tokens} (the winner {point.winner} is not available)"
        source = Source.PINNED if point.pinned and winner == point.winner else Source.EXACT
        if outside:
            source, why = Source.CLAMPED, f"T={tokens} lies outside the tuned points: {why}"
        return winner, source, why, _ranked(times)

    def _between(self, tokens: int, low: Point, high: Point) -> "_Choice | None":
        """Least interpolated time among those timed at both points. A pipeline timed at one side only wins when there
        is no other, at the side that is nearer."""
        below, above = self._usable(low, tokens), self._usable(high, tokens)
        times = {
            name: interpolate_us(tokens, (low.tokens, below[name]), (high.tokens, above[name]))
            for name in below.keys() & above.keys()
        }
        if not times:
            return self._nearest(tokens, low, high)
        place = f"between T={low.tokens} and T={high.tokens}"
        if low.winner == high.winner and low.winner in times:
            return low.winner, Source.INTERPOLATED, f"winner on both sides {place}", _ranked(times)
        rivals = _ranked(times)
        return rivals[0][0], Source.INTERPOLATED, f"least of {len(times)} interpolated times {place}", rivals

    def _nearest(self, tokens: int, low: Point, high: Point) -> "_Choice | None":
        for point in sorted((low, high), key=lambda point: abs(math.log(tokens / point.tokens))):
            choice = self._at(tokens, point, outside=False)
            if choice is not None:
                winner, _, why, rivals = choice
                return winner, Source.CLAMPED, f"no pipeline was timed on both sides of T={tokens}: {why}", rivals
        return None

    def _usable(self, point: Point, tokens: int) -> dict[str, float]:
        return {item.pipeline: item.median_us for item in point.candidates if self._serves(item.pipeline, tokens)}

    def _serves(self, name: str, tokens: int) -> bool:
        return name in self.pipelines and self.pipelines[name].serves(tokens)

    def _from_model(self, tokens: int) -> Decision | None:
        serving = {name: pipeline for name, pipeline in self.pipelines.items() if pipeline.serves(tokens)}
        modelled = {name: model_time_us(pipeline, tokens) for name, pipeline in serving.items()}
        times = {name: time_us for name, time_us in modelled.items() if time_us is not None}
        if not times:
            return None
        rivals = _ranked(times)
        return Decision(
            tokens=tokens,
            routing=self.routing,
            pipeline=rivals[0][0],
            source=Source.MODEL,
            predicted_us=rivals[0][1],
            reason=f"no usable trials there: least modelled time of {len(times)} built pipelines",
            rivals=rivals,
        )

    def _reference(self, tokens: int, source: Source, reason: str) -> Decision:
        names = [name for name in (self.default, *self.pipelines) if self._serves(name, tokens)]
        if not names:
            most = max(pipeline.most_tokens or 0 for pipeline in self.pipelines.values())
            what = f"{tokens} tokens, but {', '.join(self.pipelines)} serves at most {most}"
            raise MoegenError(what, "decision", f"load with max_tokens={most}, or without naming the pipeline")
        name = names[0]
        return Decision(
            tokens=tokens,
            routing=self.routing,
            pipeline=name,
            source=source,
            predicted_us=model_time_us(self.pipelines[name], tokens),
            reason=reason,
        )


@dataclass(frozen=True, kw_only=True)
class _Trials:
    """What of a table serves one routing class; ``note`` is added to every reason."""

    points: dict[int, Point]
    rising: list[int]
    routing: str
    digest: str
    family: bool
    note: str


def _trials_of(evidence: Evidence, wanted: str) -> _Trials | None:
    """Points of the wanted routing class, or of ``uniform`` with a note; None when the table has neither."""
    table, family = evidence.table, evidence.match.fit is Fit.FAMILY
    for routing in dict.fromkeys((wanted, UNIFORM)):
        points = {point.tokens: point for point in table.points if point.routing == routing}
        if points:
            notes = [f"; no trials under {wanted}, {routing} used"] if routing != wanted else []
            notes += [f"; measured on {table.environment.device}"] if family else []
            notes += ["; kernels were rendered anew since"] if evidence.match.differs("kernels") else []
            return _Trials(
                points=points,
                rising=sorted(points),
                routing=routing,
                digest=table.digest,
                family=family,
                note="".join(notes),
            )
    return None


_Choice = tuple[str, Source, str, tuple[tuple[str, float], ...]]


def _ranked(times: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Fastest first; equal times in the order of names, so that every rank decides alike."""
    return tuple(sorted(times.items(), key=lambda item: (item[1], item[0])))


def _warn(decision: Decision) -> None:
    _log.warning(
        "T=%d is served by %s from source %s: %s",
        decision.tokens,
        decision.pipeline,
        decision.source.value,
        decision.reason,
    )
