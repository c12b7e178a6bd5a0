"""Pipelines side by side at one point, with the tuner's gate, rounds and clocks; nothing is recorded, nobody wins."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from moegen.core.errors import TuneError
from moegen.store.trials import TrialStatus
from moegen.tune.measure import Measured, race
from moegen.tune.policy import MeasurePolicy
from moegen.tune.routing import Routing
from moegen.tune.subject import Bench
from moegen.tune.worker import Worker


class Verdict(str, Enum):
    """A pipeline against the first one named: beyond both confidence intervals, or not."""

    BASE = "base"
    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One pipeline's timing, and what it is to the first. ``gain`` is the share of the first one's time saved."""

    pipeline: str
    measured: Measured
    clock_mhz: float | None
    gain: float
    verdict: Verdict


def compare(
    worker: Worker, pipelines: Sequence[str], tokens: int, routing: Routing, policy: MeasurePolicy, *, seed: int = 0
) -> list[Compared]:
    """Gates and times pipelines of one package, in the given order; slow ones stay to the end.

    Raises:
        TuneError: one of them fails the gate, or cannot be timed: a time of something wrong is no time.
    """
    bench = Bench(worker, tokens, routing, seed)
    place = f"T={tokens} {routing.label}"
    for name in pipelines:
        checked = bench.check(name)
        if checked.status is not TrialStatus.OK:
            raise TuneError(f"{name}: {checked.status.value}: {checked.note}", place, "moegen verify says more")
    for name, checked in bench.withdrawn.items():
        raise TuneError(f"{name}: {checked.status.value}: {checked.note}", place, "moegen verify says more")
    patient = replace(policy, screen_ratio=float("inf"), halving_ratio=float("inf"))
    found = race(pipelines, bench.sample, patient, pinned=pipelines, clock=bench.clock_mhz)
    for measured in found:
        if measured.timing is None:
            what = f"{measured.candidate}: {measured.status.value}: {measured.note}"
            raise TuneError(what, place, "moegen verify says more")
    return [_against(found[0], measured, bench.clock_mhz(measured.candidate)) for measured in found]


def _against(base: Measured, other: Measured, clock_mhz: float | None) -> Compared:
    assert base.timing is not None
    assert other.timing is not None
    gain = 1 - other.timing.median_us / base.timing.median_us
    apart = abs(other.timing.median_us - base.timing.median_us) > other.timing.ci_us + base.timing.ci_us
    verdict = Verdict.TIE if not apart else Verdict.FASTER if gain > 0 else Verdict.SLOWER
    return Compared(
        pipeline=other.candidate,
        measured=other,
        clock_mhz=clock_mhz,
        gain=gain,
        verdict=Verdict.BASE if other is base else verdict,
    )
