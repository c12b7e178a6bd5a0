"""How good the choices are: regret, at tuned points and between them, flip rate between sessions, and replay, as pure
functions over trials and choices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from moegen.core.package import Pipeline
from moegen.runtime.decision import Decider, Decision, Evidence
from moegen.store.tables import Fit, Match, Point, Table
from moegen.tune.select import Choice

#: (tokens, routing label)
Key = tuple[int, str]


@dataclass(frozen=True, kw_only=True)
class Regret:
    """Time lost against the fastest candidate of each point, as a share of its time."""

    mean: float
    worst: float
    worst_at: Key


def regret(chosen: Mapping[Key, str], times_us: Mapping[Key, Mapping[str, float]]) -> Regret | None:
    """Regret of ``chosen`` under ``times_us`` (pipeline → microseconds at each point), for example of another session.

    Points at which the chosen pipeline has no time are left out; None when no point remains.
    """
    losses = {
        point: times_us[point][name] / min(times_us[point].values()) - 1
        for point, name in chosen.items()
        if name in times_us.get(point, {})
    }
    if not losses:
        return None
    worst = max(losses, key=lambda point: (losses[point], point))
    return Regret(mean=sum(losses.values()) / len(losses), worst=losses[worst], worst_at=worst)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """What a table decides at its own points while it does not have them. ``unknown``: points whose decision fell on a
    pipeline that was not timed there to the end, so that its regret is not known."""

    regret: Regret | None
    decided: Mapping[Key, str]
    unknown: tuple[Key, ...]


def leave_one_out(table: Table, pipelines: Mapping[str, Pipeline]) -> LeftOut:
    """Regret of decisions between tuned points: each point but the first and the last of its routing class is left out
    in turn, decided from the rest, and held against the fastest that was timed there.

    Args:
        pipelines: of the table's numerics class, by name.
    """
    decided = {
        (point.tokens, point.routing): _without(table, point, pipelines).pipeline
        for routing in sorted({point.routing for point in table.points})
        for point in [point for point in table.points if point.routing == routing][1:-1]
    }
    times_us = {(p.tokens, p.routing): {c.pipeline: c.median_us for c in p.candidates} for p in table.points}
    return LeftOut(
        regret=regret(decided, times_us),
        decided=decided,
        unknown=tuple(key for key, name in decided.items() if name not in times_us[key]),
    )


def _without(table: Table, left_out: Point, pipelines: Mapping[str, Pipeline]) -> Decision:
    rest = replace(table, points=tuple(point for point in table.points if point != left_out))
    decider = Decider(
        pipelines=pipelines,
        default=table.default,
        evidence=[Evidence(table=rest, match=Match(fit=Fit.EXACT))],
        routing=left_out.routing,
    )
    return decider.decide(left_out.tokens)


def flip_rate(first: Mapping[Key, str], second: Mapping[Key, str]) -> float:
    """Share of the points known to both whose winner differs; 0 when they share none."""
    common = first.keys() & second.keys()
    return sum(first[point] != second[point] for point in common) / len(common) if common else 0.0


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A point at which a replayed selection and a table disagree; None where one has no such point."""

    point: Key
    table: Point | None
    replayed: Point | None


def replay(table: Table, replayed: Table) -> list[Difference]:
    """Where a table differs from the one that its trials yield now; empty when selection is reproduced exactly."""
    ours = {(point.tokens, point.routing): point for point in table.points}
    theirs = {(point.tokens, point.routing): point for point in replayed.points}
    return [
        Difference(point=key, table=ours.get(key), replayed=theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def winners(choices: Iterable[Choice]) -> dict[Key, str]:
    """Winner by point."""
    return {(choice.tokens, choice.routing): choice.winner for choice in choices}


def times(choices: Sequence[Choice]) -> dict[Key, dict[str, float]]:
    """Candidates' medians by point, microseconds."""
    return {(c.tokens, c.routing): {entry.pipeline: entry.median_us for entry in c.candidates} for c in choices}
