"""Findings of a run: what, how severe, and where in the kernel."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Severity(Enum):
    """How a finding is treated: an error fails the run, a warning is kept, ``off`` drops it."""

    ERROR = "error"
    WARNING = "warning"
    OFF = "off"


class Check(Enum):
    """Every kind of finding."""

    OUT_OF_BOUNDS = "out-of-bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED = "uninitialised"
    RACE = "race"
    RACE_GLOBAL = "race-global"
    RACE_LANES = "race-lanes"
    PROXY_FENCE = "proxy-fence"
    PROXY_FENCE_OPERAND = "proxy-fence-operand"
    TMEM_LOAD_WAIT = "tmem-load-wait"
    TENSORMAP = "tensormap"
    DEADLOCK = "deadlock"
    BARRIER = "barrier"
    MBARRIER = "mbarrier"
    TMEM_LEAK = "tmem-leak"
    TMEM_ACCESS = "tmem-access"
    ASYNC_EXIT = "async-exit"
    DESCRIPTOR = "descriptor"
    CONVERGENCE = "convergence"
    STEP_LIMIT = "step-limit"
    TRAP = "trap"
    APPROXIMATION = "approximation"


#: Checks after which the run cannot go on in a defined way; their severity cannot be lowered.
FATAL = frozenset(
    {
        Check.OUT_OF_BOUNDS,
        Check.MISALIGNED,
        Check.TENSORMAP,
        Check.DEADLOCK,
        Check.BARRIER,
        Check.MBARRIER,
        Check.TMEM_ACCESS,
        Check.DESCRIPTOR,
        Check.CONVERGENCE,
        Check.STEP_LIMIT,
        Check.TRAP,
    }
)

#: Severity of each check unless the options say otherwise. The two checks that well-known public kernels fail (operands
#: written by the generic proxy without a fence before tensor-core reads; accumulators released without a wait for their
#: loads) are separate so that they can be lowered alone.
DEFAULT_SEVERITY = dict.fromkeys(Check, Severity.ERROR) | {Check.APPROXIMATION: Severity.OFF}


@dataclass(frozen=True, slots=True)
class Report:
    """One finding.

    Attributes:
        check: kind.
        severity: as decided by the options of the run.
        message: what happened, with numbers.
        kernel: entry name.
        line: line of the PTX text, 0 if not tied to one.
        text: the instruction.
        cta: linear CTA index in the grid, -1 if unknown.
        warp: warp index in the CTA, -1 if unknown (an asynchronous unit).
        lane: lane, -1 if it concerns the whole warp.
        address: byte address or column, -1 if none.
        count: times that it was found at this place.
    """

    check: Check
    severity: Severity
    message: str
    kernel: str = ""
    line: int = 0
    text: str = ""
    cta: int = -1
    warp: int = -1
    lane: int = -1
    address: int = -1
    count: int = 1

    def __str__(self) -> str:
        place = f"{self.kernel}:{self.line}" if self.line else self.kernel
        actor = ", ".join(
            f"{name} {value}"
            for name, value in (("CTA", self.cta), ("warp", self.warp), ("lane", self.lane))
            if value >= 0
        )
        at = f", address {self.address:#x}" if self.address >= 0 else ""
        text = f"\n    {self.text}" if self.text else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.severity.value}: {self.check.value}: {self.message}{times} [{place}; {actor}{at}]{text}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"check": self.check.value, "severity": self.severity.value}
