"""What the tuner asks of the process in which candidates run.

``moegen.tune.layer_subject`` serves real packages; tests inject subjects that crash, hang or lie. Everything that
crosses is JSON, so a subject may live in any process.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moegen.core.errors import TuneError
from moegen.store.trials import Environment, TrialStatus
from moegen.tune.measure import CandidateFailed
from moegen.tune.routing import Routing
from moegen.tune.worker import Worker, WorkerFailed

_STATUS = {
    "crash": TrialStatus.CRASH,
    "timeout": TrialStatus.TIMEOUT,
    "oom": TrialStatus.OOM,
    "error": TrialStatus.CRASH,
}
_OWN_TIMEOUT_S = 1800.0
"""Seconds for a reference on a CPU: thousands of tokens of a large layer take minutes."""


class Subject(Protocol):
    """Methods that a worker's subject answers; arguments and results are JSON values.

    ``tokens``, ``routing`` (label) and ``seed`` name the input; ``pipeline`` names a candidate.
    """

    def describe(self) -> dict[str, Any]:
        """``environment``: fields of :class:`~moegen.store.trials.Environment`; ``built``: names of pipelines that can
        run; ``artifacts``: variant → artifact digest."""
        ...

    def prepare(self, tokens: int, routing: str, seed: int) -> dict[str, Any]:
        """Makes weights and input, with no candidate involved: ``active_experts`` and ``effective_experts`` of it."""
        ...

    def reference(self, pipeline: str, tokens: int, routing: str, seed: int) -> None:
        """Computes what :meth:`check` compares this pipeline with, with no candidate involved."""
        ...

    def check(self, pipeline: str, tokens: int, routing: str, seed: int) -> dict[str, Any]:
        """Runs once and compares with the reference: ``passed``, ``reason``, ``err_max``, ``err_rel``, and optionally
        ``withdrawn``: pipelines that had passed and are now known to be wrong, with the reason."""
        ...

    def sample(self, pipeline: str, tokens: int, routing: str, seed: int, calls: int) -> dict[str, Any]:
        """``us``: microseconds of each of ``calls`` calls; ``clock_mhz``: of the device meanwhile, or null."""
        ...

    def sample_steps(
        self, pipeline: str, tokens: int, routing: str, seed: int, steps: list[int], calls: int
    ) -> dict[str, Any]:
        """``us``: for each of the pipeline's ``steps`` (by index), the microseconds of each of ``calls`` launches."""
        ...


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Outcome of the numerics gate for one candidate at one point. Errors are relative; None when not finite."""

    status: TrialStatus
    note: str = ""
    err_max: float | None = None
    err_rel: float | None = None


class Bench:
    """The worker seen from the tuner: typed requests at one point, with failures as statuses.

    What no candidate has a part in (weights, input, reference) is asked for in requests of its own, with much more
    time: a slow reference must not look like a hanging candidate.
    """

    def __init__(self, worker: Worker, tokens: int, routing: Routing, seed: int) -> None:
        self._worker = worker
        self._point = {"tokens": tokens, "routing": routing.label, "seed": seed}
        self._prepared_for = 0
        self.active_experts = 0
        self.clocks_mhz: dict[str, list[float]] = {}
        self.withdrawn: dict[str, Checked] = {}
        self._prepare()

    def check(self, pipeline: str) -> Checked:
        """Puts a candidate through the numerics gate; a candidate that dies there has failed it."""
        self._prepare()
        self._own("reference", pipeline=pipeline)
        try:
            found = self._call("check", pipeline=pipeline)
        except CandidateFailed as failure:
            return Checked(status=failure.status, note=failure.note)
        for name, reason in found.get("withdrawn", {}).items():
            self.withdrawn[name] = Checked(status=TrialStatus.WRONG, note=reason)
        status = TrialStatus.OK if found["passed"] else TrialStatus.WRONG
        errors = {
            name: value if _is_finite(value) else None for name, value in found.items() if name.startswith("err_")
        }
        return Checked(status=status, note=found["reason"], **errors)

    def sample(self, candidate: str, calls: int) -> list[float]:
        """Samples of whole calls, microseconds; raises :class:`CandidateFailed`."""
        found = self._call("sample", pipeline=candidate, calls=calls)
        if found.get("clock_mhz") is not None:
            self.clocks_mhz.setdefault(candidate, []).append(float(found["clock_mhz"]))
        return _sound(found["us"])

    def clock_mhz(self, candidate: str) -> float | None:
        """The device's clock during a candidate's latest samples; None where it is not known."""
        return (self.clocks_mhz.get(candidate) or [None])[-1]

    def sample_steps(self, pipeline: str, steps: Sequence[int], calls: int) -> list[list[float]]:
        """Samples of single steps, microseconds; raises :class:`CandidateFailed`."""
        found = self._call("sample_steps", pipeline=pipeline, steps=list(steps), calls=calls)
        return [_sound(samples) for samples in found["us"]]

    def _prepare(self) -> None:
        """Makes weights and input in a worker that does not have them: a new one knows nothing."""
        if self._worker.pid is None or self._prepared_for != self._worker.starts:
            self.active_experts = int(self._own("prepare")["active_experts"])
            self._prepared_for = self._worker.starts

    def _own(self, method: str, **parameters: Any) -> Any:
        """A request without a candidate; its failure ends the session.

        Raises:
            TuneError: it failed.
        """
        try:
            return self._worker.call(method, timeout_s=_OWN_TIMEOUT_S, **self._point, **parameters)
        except WorkerFailed as failure:
            point = f"T={self._point['tokens']} {self._point['routing']}"
            raise TuneError(
                f"{method}: {failure.status}: {failure.note}", point, "tune fewer tokens at once"
            ) from failure

    def _call(self, method: str, **parameters: Any) -> Any:
        self._prepare()
        try:
            return self._worker.call(method, **self._point, **parameters)
        except WorkerFailed as failure:
            raise CandidateFailed(_STATUS[failure.status], failure.note) from failure


@dataclass(frozen=True, kw_only=True)
class Description:
    """A subject's own account: the machine, the candidates that can run, and their artifacts."""

    environment: Environment
    built: tuple[str, ...]
    artifacts: Mapping[str, str]


def describe(worker: Worker) -> Description:
    """Asks a subject what it is.

    Raises:
        TuneError: it died before it could say.
    """
    try:
        found = worker.call("describe")
    except WorkerFailed as failure:
        raise TuneError(f"the tuning worker failed: {failure.note}", "describe", "run moegen doctor") from failure
    return Description(
        environment=Environment(**found["environment"]), built=tuple(found["built"]), artifacts=found["artifacts"]
    )


def _sound(samples: Sequence[Any]) -> list[float]:
    """Times as numbers; a time that is no time says that the candidate's timing cannot be trusted at all."""
    for sample in samples:
        if not _is_finite(sample) or sample <= 0:
            raise CandidateFailed(TrialStatus.CRASH, f"the timer returned {sample}")
    return [float(sample) for sample in samples]


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
