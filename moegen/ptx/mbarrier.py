"""mbarrier objects: counting arrivals and transaction bytes, phase by phase."""

from typing import Any

#: Largest arrival count.
MAX_COUNT = (1 << 20) - 1


class Mbarrier:
    """One barrier object in shared memory.

    Attributes:
        expected: arrivals per phase.
        pending: arrivals that the current phase still waits for.
        tx: bytes that are expected and not yet delivered (below zero while deliveries lead).
        phase: completed phases.
        clock: race detector's state.
    """

    __slots__ = ("clock", "expected", "pending", "phase", "tx")

    def __init__(self, count: int) -> None:
        self.expected = count
        self.pending = count
        self.tx = 0
        self.phase = 0
        self.clock: Any = None

    def expect(self, amount: int) -> None:
        """Adds to the bytes that the current phase waits for."""
        self.tx += amount

    def complete_tx(self, amount: int) -> None:
        """Counts delivered bytes."""
        self.tx -= amount
        self._try_complete()

    def arrive(self, count: int = 1) -> bool:
        """Counts arrivals; False if more arrive than the phase expects."""
        if count > self.pending:
            return False
        self.pending -= count
        self._try_complete()
        return True

    def drop(self, count: int = 1) -> bool:
        """Arrives and lowers the expected count of later phases."""
        if count > self.pending:
            return False
        self.expected -= count
        return self.arrive(count)

    def _try_complete(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected

    def passed(self, parity: int) -> bool:
        """Whether the phase of this parity has completed (the one before the current)."""
        return (self.phase & 1) != (parity & 1)

    def state(self) -> int:
        """Opaque state token: the current phase."""
        return self.phase
