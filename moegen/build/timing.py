"""How long a compile may take, learnt from the ones before it, so that a hanging compiler does not hold a build up."""

import threading

FIRST_LIMIT_S = 600.0
FLOOR_S = 60.0
_SAMPLES = 5


class TimeLimit:
    """Five times the 95th percentile of the compiles so far, at least :data:`FLOOR_S`; threads may share one."""

    def __init__(self, first_s: float = FIRST_LIMIT_S) -> None:
        self._first_s = first_s
        self._seconds: list[float] = []
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """The limit now."""
        with self._lock:
            ordered = sorted(self._seconds)
        if len(ordered) < _SAMPLES:
            return self._first_s
        return max(FLOOR_S, 5.0 * ordered[int(0.95 * (len(ordered) - 1))])

    def add(self, seconds: float) -> None:
        """Takes one compile into account."""
        with self._lock:
            self._seconds.append(seconds)
