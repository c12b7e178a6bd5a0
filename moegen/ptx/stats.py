"""What a run executed: instructions per opcode and per role, bytes per memory space."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moegen.ptx.report import Check, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moegen.ptx.kernel import Kernel
    from moegen.ptx.program import Instruction
    from moegen.ptx.state import Grid, Machine

#: Patterns of opcodes that tell what a warp is for, the most telling first.
_ROLES = (
    ("mma", re.compile(r"tcgen05\.mma|wgmma\.mma_async|mma\.sync")),
    ("load", re.compile(r"cp\.async\.(ca|cg)|cp\.async\.bulk\..*shared(::\w+)?\.global")),
    ("epilogue", re.compile(r"tcgen05\.ld|st\.global|red\.global|cp\.(reduce\.)?async\.bulk\..*global\.shared")),
)

#: Opcodes whose hardware results differ from the correctly rounded ones.
_APPROXIMATE = re.compile(r"\.approx\b|^div\.full\b")


@dataclass
class Stats:
    """Counts of one run.

    Attributes:
        opcodes: warp-instructions executed per opcode.
        roles: per kernel and role (``load``, ``mma``, ``epilogue``, ``other``), warps of that role and instructions
            per opcode.
        bytes_moved: bytes per memory space and direction, such as ``global read``.
        steps: scheduler steps (a run of register-only instructions is one).
        asynchronous: asynchronous operations executed.
    """

    opcodes: Counter[str] = field(default_factory=Counter)
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    bytes_moved: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    asynchronous: int = 0

    @property
    def instructions(self) -> int:
        """Warp-instructions executed."""
        return sum(self.opcodes.values())

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "instructions": self.instructions,
            "opcodes": dict(self.opcodes.most_common()),
            "roles": self.roles,
            "bytes": self.bytes_moved,
            "steps": self.steps,
            "asynchronous": self.asynchronous,
        }


def role_of(opcodes: Counter[str]) -> str:
    """What a warp did, from the opcodes it executed."""
    for role, pattern in _ROLES:
        if any(pattern.match(op) for op in opcodes):
            return role
    return "other"


def _executed(kernel: "Kernel", counts: Any) -> "Iterator[tuple[Instruction, int]]":
    """Instructions that ran, with how often."""
    for index in counts.nonzero()[0].tolist():
        for item in kernel.items[index : index + kernel.lengths[index]]:
            yield item, int(counts[index])


def _per_opcode(kernel: "Kernel", counts: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for item, count in _executed(kernel, counts):
        total[item.opcode] += count
    return total


def flag_approximations(machine: "Machine", grids: "list[Grid]") -> None:
    """Reports every executed instruction whose result the hardware approximates."""
    if machine.options.severity_of(Check.APPROXIMATION) is Severity.OFF:
        return
    for grid in grids:
        found: dict[int, Instruction] = {}
        for counts in grid.counts.values():
            found |= {item.line: item for item, _ in _executed(grid.kernel, counts) if _APPROXIMATE.search(item.opcode)}
        for item in found.values():
            message = f"{item.opcode} gives the correctly rounded value here, within a bound of it on hardware"
            machine.report(Check.APPROXIMATION, message, kernel=grid.kernel.entry.name, item=item)


def collect(machine: "Machine", grids: "list[Grid]") -> Stats:
    """Gathers the counts of finished grids."""
    stats = Stats(steps=machine.steps, asynchronous=machine.engine.done, bytes_moved=dict(machine.bytes_moved))
    for grid in grids:
        for warp, counts in sorted(grid.counts.items()):
            opcodes = _per_opcode(grid.kernel, counts)
            stats.opcodes.update(opcodes)
            role = f"{grid.kernel.entry.name}/{role_of(opcodes)}"
            entry = stats.roles.setdefault(role, {"warps": [], "opcodes": Counter()})
            entry["warps"].append(warp)
            entry["opcodes"].update(opcodes)
    return stats
