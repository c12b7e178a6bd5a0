"""How candidates are measured and how a winner is chosen: part of every trial's identity."""

from dataclasses import dataclass, replace
from enum import Enum

from moegen.core.canonical import plain
from moegen.core.enums import Target
from moegen.store.trials import Policy


class Timer(str, Enum):
    """What a sample's microseconds are."""

    CPU_WALL = "cpu_wall"
    CUDA_EVENT = "cuda_event"
    CUDA_GRAPH = "cuda_graph"


class Cache(str, Enum):
    """State of the last-level cache before each call: ``cold`` (after a pass over three times its size) or ``hot``."""

    COLD = "cold"
    HOT = "hot"


class Stage(str, Enum):
    """Where in a session a trial was taken; timings of two stages are never compared.

    ``gate``: refused or failed before any timing; ``ops``: one op alone; ``screen``, ``halving``: left the race there;
    ``final``: ran all rounds; ``confirm``: the pairing of the default with its challenger.
    """

    GATE = "gate"
    OPS = "ops"
    SCREEN = "screen"
    HALVING = "halving"
    FINAL = "final"
    CONFIRM = "confirm"


class Effort(str, Enum):
    """Named budgets: ``quick`` for demos and smoke tests, ``full`` for tables that are kept."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class MeasurePolicy:
    """How a sample is taken and when to stop. Trials under different policies are never compared.

    Attributes:
        screen_calls: calls of the first look at a candidate.
        screen_ratio: candidates slower than this times the best leave after the first look.
        halving_rounds, halving_ratio: rounds and cut of the second look.
        min_rounds, max_rounds: rounds of the finalists; they end once every relative CI is at most ``ci_bound``.
        calls_per_round: calls of one candidate before its neighbour's turn, at most.
        turn_us: microseconds after which such a turn ends, once the candidate's time is known.
        slow_clock: rounds taken below this share of the race's median clock do not count.
        confirm_rounds: rounds of the final pairing of the default with its challenger.
        noisy_ci: relative CI beyond which a timing is recorded as noisy and can win nothing.
        finalists: pipelines of a numerics class that are measured whole at one point after the ops were timed (its
            default comes on top).
        model_ratio: pipelines modelled slower than this times the best of their class do not enter a point.
    """

    timer: Timer
    cache: Cache
    warmup_calls: int
    screen_calls: int
    screen_ratio: float
    halving_rounds: int
    halving_ratio: float
    min_rounds: int
    max_rounds: int
    calls_per_round: int
    turn_us: float
    slow_clock: float
    ci_bound: float
    confirm_rounds: int
    noisy_ci: float
    finalists: int
    model_ratio: float

    def record(self, stage: Stage) -> Policy:
        """The record that a trial taken at ``stage`` refers to."""
        parameters = plain({name: value for name, value in vars(self).items() if name not in ("timer", "cache")})
        assert isinstance(parameters, dict)
        return Policy(timer=self.timer.value, cache=self.cache.value, parameters={**parameters, "stage": stage.value})


@dataclass(frozen=True, kw_only=True)
class SelectPolicy:
    """How trials become winners; may be changed afterwards without a device.

    Attributes:
        tie_band: candidates within this share of the fastest (or within its CI, if wider) count as equal.
        switch_margin: the default is replaced only by a challenger faster by at least this share in the confirm rounds.
    """

    tie_band: float = 0.02
    switch_margin: float = 0.03


_FULL = MeasurePolicy(
    timer=Timer.CPU_WALL,
    cache=Cache.COLD,
    warmup_calls=3,
    screen_calls=3,
    screen_ratio=3.0,
    halving_rounds=3,
    halving_ratio=1.3,
    min_rounds=8,
    max_rounds=40,
    calls_per_round=3,
    turn_us=1e6,
    slow_clock=0.9,
    ci_bound=0.01,
    confirm_rounds=15,
    noisy_ci=0.2,
    finalists=8,
    model_ratio=3.0,
)
_FULL_GPU = replace(
    _FULL,
    warmup_calls=1,
    screen_calls=2,
    max_rounds=16,
    calls_per_round=5,
    turn_us=5_000.0,
    confirm_rounds=12,
    finalists=3,
    model_ratio=2.5,
)
"""A GPU's samples are steadier than a CPU's, and its time is dearer."""
_QUICK = replace(
    _FULL,
    warmup_calls=1,
    halving_rounds=2,
    halving_ratio=1.5,
    min_rounds=6,
    max_rounds=9,
    calls_per_round=1,
    ci_bound=0.05,
    confirm_rounds=7,
    finalists=3,
)


def measure_policy(target: Target, effort: Effort = Effort.FULL, cache: Cache = Cache.COLD) -> MeasurePolicy:
    """The standard policy of a target: wall clock on a CPU, events round a graph replay on a GPU."""
    on_cpu = target is Target.CPU
    full = _FULL if on_cpu else _FULL_GPU
    timer = Timer.CPU_WALL if on_cpu else Timer.CUDA_GRAPH
    return replace(_QUICK if effort is Effort.QUICK else full, timer=timer, cache=cache)
