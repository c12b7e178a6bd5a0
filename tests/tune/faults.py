"""Faults of tuners, each as it has been shipped somewhere; see ``tests/faults.py`` for how guards use them."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock


def gate_by_norm_alone() -> AbstractContextManager[Any]:
    """The gate looks at the whole output's norm and at no row or element."""
    from moegen.tune import gate

    judged = gate.judge

    def judge(output: Any, reference: Any, tolerance: gate.Tolerance, *, seed: int) -> gate.GateVerdict:
        return judged(output, reference, replace(tolerance, row=1e30, element=1e30), seed=seed)

    return mock.patch("moegen.tune.gate.judge", judge)


def gate_forgotten() -> AbstractContextManager[Any]:
    """Candidates are timed without having been checked."""
    from moegen.store.trials import TrialStatus
    from moegen.tune.subject import Bench, Checked

    return mock.patch.object(Bench, "check", return_value=Checked(status=TrialStatus.OK))


def fastest_final_wins() -> AbstractContextManager[Any]:
    """The least median of the finals wins, with no margin and no duel."""
    from moegen.tune import select

    def choose(results: Any, default: str, numerics: str, policy: Any, pins: Any = ()) -> list[select.Choice]:
        found = []
        for race in select.races(list(results), default, numerics):
            name = min(race.finals, key=lambda item: race.finals[item].median_us or 0.0)
            found.append(
                select.Choice(
                    tokens=race.tokens,
                    routing=race.routing,
                    winner=name,
                    reason=select.Reason.CONFIRMED,
                    gain=None,
                    candidates=(),
                    trials=(),
                )
            )
        return found

    return mock.patch("moegen.tune.select.choose", choose)


def classes_mixed() -> AbstractContextManager[Any]:
    """Timings of all numerics classes compete."""
    from moegen.store.trials import Subject

    def of_class(results: Any, numerics: str) -> list[Any]:
        return [result for result in results if result.problem.subject is Subject.PIPELINE]

    return mock.patch("moegen.tune.select._of_class", of_class)


def bad_candidates_come_back() -> AbstractContextManager[Any]:
    """A candidate that took its process down is tried again at the next point."""
    from moegen.tune.session import TuneSession

    return mock.patch.object(TuneSession, "_ban", return_value=None)


def points_written_piecemeal() -> AbstractContextManager[Any]:
    """What a session has seen of a point counts as the whole point."""
    from moegen.tune import select

    raced = select._race

    def race(point: Any, session: Any, group: Any, default: str) -> Any:
        found = raced(point, session, group, default)
        if found is not None:
            return found
        finals = {result.trial.variant: result.trial for result in group if result.trial.median_us is not None}
        return select.Race(
            tokens=point[0], routing=point[1], session=session, finals=finals, timed=finals, known=finals, default=None
        )

    return mock.patch("moegen.tune.select._race", race)
