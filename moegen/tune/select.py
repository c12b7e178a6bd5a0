"""From trials to winners: a pure function, so that another margin or tie band needs no device.

Only trials that were taken side by side are compared: one session, one stage, one numerics class. The default
pipeline keeps its place unless a challenger beat it by the margin in rounds of their own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from moegen.store.database import Result
from moegen.store.tables import Candidate
from moegen.store.trials import Pin, Session, Subject, Trial, TrialStatus
from moegen.tune.policy import SelectPolicy, Stage

#: Stages with enough rounds for a table to interpolate from.
_TRUSTED = (Stage.HALVING, Stage.FINAL)
#: (tokens, routing label)
Point = tuple[int, str]


class Reason(str, Enum):
    """Why a point's winner won."""

    CONFIRMED = "confirmed"
    TIE = "tie"
    WITHIN_MARGIN = "within_margin"
    UNCONFIRMED = "unconfirmed"
    DEFAULT_NOISY = "default_noisy"
    DEFAULT_FAILED = "default_failed"
    PINNED = "pinned"


@dataclass(frozen=True, kw_only=True)
class Race:
    """What one session found at one point about the pipelines of one numerics class.

    ``finals``: trials that ran all rounds and are fit to win; ``timed``: every pipeline with a sound timing that a
    table may interpolate from; ``known``: every pipeline with any timing, noisy ones too, which a person may pin;
    ``default``: the default's final trial, None when it failed.
    """

    tokens: int
    routing: str
    session: Session
    finals: Mapping[str, Trial]
    timed: Mapping[str, Trial]
    known: Mapping[str, Trial]
    default: Trial | None

    @property
    def point(self) -> Point:
        """The point's key."""
        return self.tokens, self.routing


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A point's winner. ``gain`` is the share of the default's time saved in the confirming rounds, when there were
    any."""

    tokens: int
    routing: str
    winner: str
    reason: Reason
    gain: float | None
    candidates: tuple[Candidate, ...]
    trials: tuple[str, ...]


def races(results: Iterable[Result], default: str, numerics: str) -> list[Race]:
    """The newest complete look at each point, ordered by (tokens, routing).

    A session counts at a point when it recorded the default's final timing there, or its failure.

    Args:
        results: trials of one package, target, device and measurement policy.
        default: pipeline that others must beat.
        numerics: canonical JSON of the numerics class; trials of other classes are left out.
    """
    groups: dict[tuple[Point, str], list[Result]] = defaultdict(list)
    sessions: dict[str, Session] = {}
    for result in _of_class(results, numerics):
        if _stage(result) is not Stage.CONFIRM:
            groups[(_point(result), result.session.id)].append(result)
            sessions[result.session.id] = result.session
    newest: dict[Point, Race] = {}
    for (point, session), group in groups.items():
        found = _race(point, sessions[session], group, default)
        if found and (point not in newest or _age(newest[point].session) < _age(found.session)):
            newest[point] = found
    return [newest[point] for point in sorted(newest)]


def fastest(finals: Mapping[str, Trial]) -> set[str]:
    """The pipeline with the least median of a race's finals; empty when there are none."""
    return {min(finals, key=lambda name: (_median(finals[name]), name))} if finals else set()


def challengers(found: Iterable[Race], default: str, policy: SelectPolicy) -> dict[Point, str]:
    """The pipeline that should meet the default in a duel, for each point where one could win.

    Among those within the tie band of the fastest, the order is: the one that serves most points, then the name; so a
    table holds few variants and equal trials give equal tables.
    """
    ties: dict[Point, set[str]] = {}
    for race in found:
        tied = _tied(race.finals, policy.tie_band)
        if tied and default not in tied:
            ties[race.point] = tied
    chosen: dict[Point, str] = {}
    while ties:
        votes = Counter(name for tied in ties.values() for name in tied)
        best = min(votes, key=lambda name: (-votes[name], name))
        for point in [point for point, tied in ties.items() if best in tied]:
            chosen[point] = best
            del ties[point]
    return chosen


def choose(
    results: Iterable[Result], default: str, numerics: str, policy: SelectPolicy, pins: Iterable[Pin] = ()
) -> list[Choice]:
    """Winners of one numerics class, ordered by (tokens, routing). A point without any valid candidate has no entry.

    A challenger that has not met the default yet is stood in for by one that has and ties with it. Arguments as for
    :func:`races`; ``pins`` override the winner where the pinned pipeline was timed at all.
    """
    results = list(results)
    found = races(results, default, numerics)
    rivals = challengers(found, default, policy)
    duels = _duels(results, numerics)
    pinned = list(pins)
    choices = (
        _choose(race, default, _stand_in(race, default, rivals.get(race.point), duels, policy), duels, policy, pinned)
        for race in found
    )
    return [choice for choice in choices if choice is not None]


def open_duels(results: Iterable[Result], default: str, numerics: str, policy: SelectPolicy) -> dict[Point, str]:
    """Challengers that have not met the default yet; arguments as for :func:`races`."""
    results = list(results)
    found = races(results, default, numerics)
    sound = {race.point for race in found if race.default and race.default.status is TrialStatus.OK}
    duels = _duels(results, numerics)
    return {
        point: rival
        for point, rival in challengers(found, default, policy).items()
        if point in sound and not _latest_duel(point, default, rival, duels)
    }


def _stand_in(
    race: Race,
    default: str,
    rival: str | None,
    duels: Mapping[tuple[Point, str], list[tuple[Session, Trial]]],
    policy: SelectPolicy,
) -> str | None:
    """``rival``, or while it has not met the default the first by name that ties with it and has."""
    if rival is None or _latest_duel(race.point, default, rival, duels):
        return rival
    tied = sorted(_tied(race.finals, policy.tie_band) - {default})
    return next((name for name in tied if _latest_duel(race.point, default, name, duels)), rival)


def _choose(
    race: Race,
    default: str,
    rival: str | None,
    duels: Mapping[tuple[Point, str], list[tuple[Session, Trial]]],
    policy: SelectPolicy,
    pins: list[Pin],
) -> Choice | None:
    winner, reason, gain = default, Reason.TIE, None
    witnesses: list[Trial] = []
    if race.default is None:
        if rival is None:
            return None
        winner, reason = rival, Reason.DEFAULT_FAILED
    elif race.default.status is not TrialStatus.OK:
        reason = Reason.DEFAULT_NOISY
    elif rival is not None:
        witnesses = _latest_duel(race.point, default, rival, duels)
        if not witnesses:
            reason = Reason.UNCONFIRMED
        else:
            gain = 1 - _median(witnesses[1]) / _median(witnesses[0])
            confirmed = gain >= policy.switch_margin
            winner, reason = (rival, Reason.CONFIRMED) if confirmed else (default, Reason.WITHIN_MARGIN)
    timed = dict(race.timed)
    for pin in pins:
        if pin.tokens in (0, race.tokens) and pin.routing in ("", race.routing) and pin.pipeline in race.known:
            timed.setdefault(pin.pipeline, race.known[pin.pipeline])
            winner, reason = pin.pipeline, Reason.PINNED
    if winner not in timed:
        return None
    return Choice(
        tokens=race.tokens,
        routing=race.routing,
        winner=winner,
        reason=reason,
        gain=gain,
        candidates=tuple(_candidate(name, timed[name]) for name in sorted(timed)),
        trials=tuple(sorted(trial.id for trial in [*timed.values(), *witnesses])),
    )


def _race(point: Point, session: Session, group: list[Result], default: str) -> Race | None:
    finals: dict[str, Trial] = {}
    timed: dict[str, Trial] = {}
    known: dict[str, Trial] = {}
    default_trial, default_seen = None, False
    for result in sorted(group, key=lambda result: result.trial.id):
        trial, stage = result.trial, _stage(result)
        final = stage is Stage.FINAL
        if trial.variant == default:
            failed = trial.median_us is None
            default_seen |= final or failed
            default_trial = None if failed else trial if final else default_trial
        if trial.median_us is not None:
            known[trial.variant] = trial
        if trial.status is TrialStatus.OK and stage in _TRUSTED:
            timed[trial.variant] = trial if final or trial.variant not in timed else timed[trial.variant]
            if final:
                finals[trial.variant] = trial
    if default_trial is not None:
        timed.setdefault(default, default_trial)
    if not default_seen:
        return None
    return Race(
        tokens=point[0],
        routing=point[1],
        session=session,
        finals=finals,
        timed=timed,
        known=known,
        default=default_trial,
    )


def _tied(finals: Mapping[str, Trial], band: float) -> set[str]:
    """Candidates within the band of the fastest, or within its confidence interval where that is wider."""
    if not finals:
        return set()
    fastest = min(finals.values(), key=lambda trial: (_median(trial), trial.variant))
    limit = _median(fastest) + max(band * _median(fastest), fastest.ci_us or 0.0)
    return {name for name, trial in finals.items() if _median(trial) <= limit}


def _duels(results: Iterable[Result], numerics: str) -> dict[tuple[Point, str], list[tuple[Session, Trial]]]:
    """Confirming trials by (point, session)."""
    found: dict[tuple[Point, str], list[tuple[Session, Trial]]] = defaultdict(list)
    for result in _of_class(results, numerics):
        if _stage(result) is Stage.CONFIRM and result.trial.status is TrialStatus.OK:
            found[(_point(result), result.session.id)].append((result.session, result.trial))
    return found


def _latest_duel(
    point: Point, default: str, rival: str, duels: Mapping[tuple[Point, str], list[tuple[Session, Trial]]]
) -> list[Trial]:
    """(default's trial, rival's trial) of the newest session in which the two met at this point; empty when they
    never did."""
    best: tuple[tuple[float, str], list[Trial]] | None = None
    for (where, _), trials in duels.items():
        by_name = {trial.variant: trial for _, trial in sorted(trials, key=lambda item: item[1].id)}
        if where == point and default in by_name and rival in by_name:
            age = _age(trials[0][0])
            if best is None or best[0] < age:
                best = (age, [by_name[default], by_name[rival]])
    return best[1] if best else []


def _candidate(name: str, trial: Trial) -> Candidate:
    return Candidate(pipeline=name, median_us=_median(trial), ci_us=trial.ci_us or 0.0)


def _median(trial: Trial) -> float:
    assert trial.median_us is not None, trial
    return trial.median_us


def _of_class(results: Iterable[Result], numerics: str) -> list[Result]:
    return [r for r in results if r.problem.subject is Subject.PIPELINE and r.problem.numerics == numerics]


def _stage(result: Result) -> Stage:
    return Stage(str(result.policy.parameters["stage"]))


def _point(result: Result) -> Point:
    return result.problem.tokens, result.routing.label


def _age(session: Session) -> tuple[float, str]:
    return session.started, session.id
