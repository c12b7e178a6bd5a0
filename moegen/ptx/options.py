"""How a kernel is run: schedule, checks, numerics, limits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from moegen.ptx.report import DEFAULT_SEVERITY, FATAL, Check, Severity


class Policy(Enum):
    """When asynchronous work (copies, tensor cores) really happens, between issue and the wait that needs it."""

    RANDOM = "random"
    LAZY = "lazy"
    EAGER = "eager"
    TENSOR_LATE = "tensor-late"
    TENSOR_EARLY = "tensor-early"


class Numerics(Enum):
    """How tensor cores accumulate.

    EXACT: each instruction's products are summed exactly (f64) and rounded once to the accumulator's format.
    MMA_SIM: block-scaled tcgen05 kinds follow MMA-Sim's published model (aligned, truncated sums); other kinds as
    EXACT.
    """

    EXACT = "exact"
    MMA_SIM = "mma-sim"


@dataclass(frozen=True)
class Step:
    """One executed instruction, for tracing."""

    cta: int
    warp: int
    line: int
    active: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run; equal options give an equal run.

    Attributes:
        seed: of every random choice.
        policy: of asynchronous work.
        races: run the happens-before race detector, proxy-fence rule and uninitialised-read check.
        numerics: of tensor cores.
        severity: overrides per check; fatal checks stay errors.
        stop_at_error: raise at the first error instead of collecting (fatal ones always raise).
        slice_steps: longest run of one warp before another one may be chosen.
        timeout_probability: chance that a waiting instruction returns false although it might have waited.
        resident_clusters: clusters of a grid that run at a time, interleaved; 0 means all (grid-wide waits need it).
        early_dependents: start programmatic dependent launches as early as the primary allows.
        max_steps: scheduler steps after which a run counts as endless.
        trace: called with every instruction as it is executed (slow); not part of what makes runs equal.
    """

    seed: int = 0
    policy: Policy = Policy.RANDOM
    races: bool = False
    numerics: Numerics = Numerics.EXACT
    severity: dict[Check, Severity] = field(default_factory=dict)
    stop_at_error: bool = True
    slice_steps: int = 200
    timeout_probability: float = 0.05
    resident_clusters: int = 1
    early_dependents: bool = True
    max_steps: int = 2_000_000_000
    trace: "Callable[[Step], None] | None" = None

    def severity_of(self, check: Check) -> Severity:
        """Severity of a check in this run."""
        if check in FATAL:
            return Severity.ERROR
        return self.severity.get(check, DEFAULT_SEVERITY[check])


#: Schedules that a test of a kernel should run: each finds mistakes that the others hide.
ADVERSARIES = (
    Options(seed=1, policy=Policy.RANDOM, races=True),
    Options(seed=2, policy=Policy.LAZY),
    Options(seed=3, policy=Policy.EAGER, slice_steps=2000),
    Options(seed=4, policy=Policy.TENSOR_LATE, timeout_probability=0.5, slice_steps=50),
    Options(seed=5, policy=Policy.TENSOR_EARLY, slice_steps=1000),
)
