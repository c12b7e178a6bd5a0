"""A tuning session: explores every point, confirms its challengers, records all of it, and can be taken up again.

Each point's trials are written in one transaction when the point is done, and its duels follow at once, so an
interrupted session (Ctrl-C, a budget, a power cut) leaves points that can serve, and the next one goes on after them.
Ties between points are only seen when all of them are done: that may call for a few duels more at the end.
"""

import hashlib
import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from moegen.core.devices import PLANNING_DEVICE
from moegen.core.enums import Target
from moegen.core.errors import TuneError
from moegen.core.ops import Numerics
from moegen.core.package import Package, Pipeline
from moegen.store.database import Result, TrialDatabase
from moegen.store.trials import Environment, Record, Session, TrialStatus
from moegen.store.trials import Routing as RoutingRecord
from moegen.tune.explore import PointFindings, explore, shortlist
from moegen.tune.freeze import class_defaults, numerics_text
from moegen.tune.measure import Duel, duel
from moegen.tune.planning import Estimate, TunePoint, estimate, fastest_by_point
from moegen.tune.policy import MeasurePolicy, SelectPolicy, Stage
from moegen.tune.recording import Recorder, routing_record
from moegen.tune.select import Point, open_duels
from moegen.tune.subject import Bench, Checked, Description, describe
from moegen.tune.worker import Worker

_FATAL = (TrialStatus.CRASH, TrialStatus.TIMEOUT, TrialStatus.OOM)


class Ending(str, Enum):
    """Why a session ended."""

    DONE = "done"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Step:
    """Progress: ``done`` of ``total`` points (or duels) of a phase, ``explore`` or ``confirm``, and what is going
    on."""

    phase: str
    done: int
    total: int
    detail: str


@dataclass(kw_only=True)
class SessionReport:
    """What a session did. ``skipped`` points were explored before; ``excluded`` candidates failed, with the reason."""

    ending: Ending
    explored: int = 0
    skipped: int = 0
    duels: int = 0
    trials: int = 0
    seconds: float = 0.0
    worker_starts: int = 0
    excluded: dict[str, str] = field(default_factory=dict)


class TuneSession:
    """Tunes one package on one target.

    Args:
        package: the manifest; its pipelines are the candidates.
        target: whose pipelines.
        worker: where candidates run (see :class:`moegen.tune.subject.Subject`).
        database: where trials go.
        policy, selection: how to measure and how to choose.
        seed: of the inputs.
        budget_s: seconds after which neither a point nor a late duel is begun. None: no limit.
        command: recorded with the session.
        effort: name of the policy, recorded with the session.
        again: explore points anew that an earlier session finished.
        progress: called at each step.

    Raises:
        TuneError: the worker does not start, or no pipeline of the target is built.
    """

    def __init__(
        self,
        package: Package,
        target: Target,
        worker: Worker,
        database: TrialDatabase,
        policy: MeasurePolicy,
        *,
        selection: SelectPolicy | None = None,
        seed: int = 0,
        budget_s: float | None = None,
        command: str = "moegen tune",
        effort: str = "",
        again: bool = False,
        progress: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self._package, self._target, self._worker, self._database = package, target, worker, database
        self._policy, self._selection, self._seed = policy, selection or SelectPolicy(), seed
        self._budget_s, self._again, self._progress = budget_s, again, progress
        self._began = time.monotonic()
        self._subject: Description = describe(worker)
        self._defaults = class_defaults(package.targets[target])
        self._candidates = [p for p in package.targets[target].pipelines if p.name in self._subject.built]
        if not self._candidates:
            raise TuneError(
                f"no pipeline of {package.name} is built for {target.value}",
                f"{len(package.targets[target].pipelines)} offered",
                f"moegen build {package.name} --target {target.value}",
            )
        self._recorder = Recorder(
            package=package,
            target=target,
            environment=self._subject.environment,
            policy=policy,
            session=Session(
                started=time.time(),
                host=hashlib.sha256(platform.node().encode()).hexdigest()[:16],
                command=command,
                effort=effort,
                budget_s=budget_s,
                seed=seed,
            ),
            artifacts=self._subject.artifacts,
        )
        self._report = SessionReport(ending=Ending.DONE)
        self._banned: dict[str, Checked] = {}
        self._counts: list[int] = []
        self._fastest: dict[Point, set[str]] = {}

    @property
    def environment(self) -> Environment:
        """The machine that candidates run on."""
        return self._subject.environment

    def estimate(self, points: Sequence[TunePoint]) -> Estimate:
        """Expected cost of what is left of ``points``."""
        done = {} if self._again else self._known()
        todo = [point for point in points if point.key not in done]
        return estimate(todo, self._candidates, self._defaults, self._policy, PLANNING_DEVICE[self._target])

    def run(self, points: Sequence[TunePoint]) -> SessionReport:
        """Explores what is left of ``points`` and confirms challengers, those that an interrupted session left open
        first. Ctrl-C ends it in order, with what is done."""
        try:
            complete = self._confirm_all(points) and self._explore_all(points) and self._confirm_all(points)
            self._report.ending = Ending.DONE if complete else Ending.BUDGET
        except KeyboardInterrupt:
            self._report.ending = Ending.INTERRUPTED
        self._report.seconds = time.monotonic() - self._began
        self._report.worker_starts = self._worker.starts
        return self._report

    def _explore_all(self, points: Sequence[TunePoint]) -> bool:
        """False when the budget ended before the points did."""
        self._fastest = {} if self._again else self._known()
        todo = [point for point in points if point.key not in self._fastest]
        self._counts = sorted({point.tokens for point in points})
        self._report.skipped = len(points) - len(todo)
        for number, point in enumerate(todo):
            if self._out_of_time():
                return False
            self._explore(point, number, len(todo))
        return True

    def _explore(self, point: TunePoint, number: int, total: int) -> None:
        def say(detail: str) -> None:
            self._progress(Step(phase="explore", done=number, total=total, detail=f"{_name(point)} {detail}"))

        say("")
        bench = Bench(self._worker, point.tokens, point.routing, self._seed)
        candidates = self._shortlist(point)
        found = explore(bench, candidates, self._defaults, self._policy, say, seeded=self._leaders(point))
        self._fastest[point.key] = _fastest(found, candidates)
        found.checked.update(self._banned)
        self._ban(found, point)
        routing = self._routing(bench, point)
        self._add(self._recorder.point(point.tokens, routing, found, bench.clocks_mhz))
        self._report.explored += 1
        say("duel")
        for _, default, rival in self._open_duels({point.key}, point.tokens):
            self._duel(point, bench, default, rival)
        self._progress(Step(phase="explore", done=number + 1, total=total, detail=_name(point)))

    def _shortlist(self, point: TunePoint) -> list[Pipeline]:
        """Candidates of a point: those that the time model picks, and the fastest of its neighbours."""
        where = self._counts.index(point.tokens)
        neighbours = self._counts[max(where - 1, 0) : where] + self._counts[where + 1 : where + 2]
        serving = [pipeline for pipeline in self._candidates if pipeline.serves(point.tokens)]
        allowed = [pipeline for pipeline in serving if pipeline.name not in self._banned]
        picked = shortlist(allowed, point.tokens, neighbours, self._defaults, self._policy.model_ratio)
        wanted = {pipeline.name for pipeline in picked} | self._leaders(point)
        return [pipeline for pipeline in allowed if pipeline.name in wanted]

    def _leaders(self, point: TunePoint) -> set[str]:
        """The fastest at the nearest explored token counts to both sides, so that neighbours have pipelines in common,
        and here under other routings, so that trials say what a wrong routing class costs."""
        label = point.routing.label
        explored = sorted(tokens for tokens, routing in self._fastest if routing == label)
        place = bisect_left(explored, point.tokens)
        near = {(tokens, label) for tokens in explored[max(place - 1, 0) : place + 1]}
        here = {key for key in self._fastest if key[0] == point.tokens}
        return set().union(*(self._fastest[key] for key in near | here))

    def _confirm_all(self, points: Sequence[TunePoint]) -> bool:
        """Runs every duel that selection is still waiting for; False when the budget ended first."""
        todo = self._open_duels({point.key for point in points})
        by_key = {point.key: point for point in points}
        for number, (key, default, rival) in enumerate(todo):
            if self._out_of_time():
                return False
            point = by_key[key]
            detail = f"{_name(point)} {rival}"
            self._progress(Step(phase="confirm", done=number, total=len(todo), detail=detail))
            self._duel(point, Bench(self._worker, point.tokens, point.routing, self._seed), default, rival)
            self._progress(Step(phase="confirm", done=number + 1, total=len(todo), detail=detail))
        return True

    def _duel(self, point: TunePoint, bench: Bench, default: str, rival: str) -> None:
        """Pairs a challenger with the default, unless one of them may not run any more."""
        if self._banned.keys() & {default, rival}:
            return
        result = duel(default, rival, bench.sample, self._policy, clock=bench.clock_mhz)
        sides = [result.default, result.challenger] if isinstance(result, Duel) else [result]
        self._ban(PointFindings(measured={side.candidate: side for side in sides}), point)
        self._add(self._recorder.duel(point.tokens, self._routing(bench, point), sides, bench.clocks_mhz))
        self._report.duels += 1

    def _open_duels(self, wanted: set[Point], tokens: int | None = None) -> list[tuple[Point, str, str]]:
        """(point, default, challenger) where selection has a challenger that never met the default; ``tokens``: look
        at points of that count alone, which takes less time."""
        results = self._results(tokens)
        todo = []
        for numerics, default in self._defaults.items():
            rivals = open_duels(results, default, numerics_text(numerics), self._selection)
            todo += [(point, default, rivals[point]) for point in sorted(rivals.keys() & wanted)]
        return todo

    def _ban(self, found: PointFindings, point: TunePoint) -> None:
        """A candidate that took its process down once is not let near the device again in this session; its trials at
        later points say so."""
        ends = {**found.checked, **found.measured}
        for name, end in ends.items():
            if end.status in _FATAL and name not in self._banned:
                self._report.excluded[name] = f"{end.status.value} at {_name(point)}: {end.note}"
                note = f"not run again after {self._report.excluded[name]}"
                self._banned[name] = Checked(status=end.status, note=note)

    def _routing(self, bench: Bench, point: TunePoint) -> RoutingRecord:
        return routing_record(point.routing, self._seed, bench.active_experts)

    def _add(self, records: Sequence[Record]) -> None:
        self._report.trials += sum(record.kind == "trial" for record in records)
        self._database.add(records)

    def _known(self) -> dict[Point, set[str]]:
        """The fastest at each point that an earlier session finished."""
        results = self._results()
        return fastest_by_point(results, self._package, self._target, self._subject.environment, self._policy)

    def _results(self, tokens: int | None = None) -> list[Result]:
        return self._database.results(package=self._recorder.offer, target=self._target.value, tokens=tokens)

    def _out_of_time(self) -> bool:
        """True once the budget is spent."""
        return self._budget_s is not None and time.monotonic() - self._began >= self._budget_s


def _fastest(found: PointFindings, pipelines: Sequence[Pipeline]) -> set[str]:
    """The fastest finalist of each numerics class."""
    best: dict[Numerics, tuple[float, str]] = {}
    for pipeline in pipelines:
        end = found.measured.get(pipeline.name)
        if end and end.timing and end.stage is Stage.FINAL:
            here = end.timing.median_us, pipeline.name
            best[pipeline.numerics] = min(best.get(pipeline.numerics, here), here)
    return {name for _, name in best.values()}


def _name(point: TunePoint) -> str:
    return f"T={point.tokens} {point.routing.label}"
