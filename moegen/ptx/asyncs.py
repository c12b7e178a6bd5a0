"""Asynchronous work: copies and tensor-core operations that happen some time between issue and completion.

Operations with one key happen in issue order; different keys in any order that the policy picks.
"""

import random
from collections import deque
from collections.abc import Callable, Hashable

from moegen.ptx.options import Policy


class Operation:
    """One asynchronous operation.

    Attributes:
        run: does the work.
        ready: tells whether it may happen yet; None means at once.
        tensor: a tensor-core operation, which policies may treat apart.
    """

    __slots__ = ("ready", "run", "tensor")

    def __init__(self, run: Callable[[], None], ready: Callable[[], bool] | None = None, tensor: bool = False) -> None:
        self.run = run
        self.ready = ready
        self.tensor = tensor


class AsyncEngine:
    """Queues of pending operations.

    Attributes:
        done: operations executed so far.
        hasty: some operations run as soon as they are issued.
    """

    def __init__(self, policy: Policy, rng: random.Random) -> None:
        self.policy = policy
        self.hasty = policy in (Policy.EAGER, Policy.TENSOR_EARLY)
        self.rng = rng
        self.queues: dict[Hashable, deque[Operation]] = {}
        self.done = 0

    @property
    def pending(self) -> int:
        """Number of queued operations."""
        return sum(len(queue) for queue in self.queues.values())

    def submit(self, key: Hashable, operation: Operation) -> None:
        """Issues an operation; an eager policy runs it at once if nothing with its key is before it."""
        queue = self.queues.get(key)
        if not self.hasty:
            if queue is None:
                self.queues[key] = deque((operation,))
            else:
                queue.append(operation)
            return
        if queue is None:
            if self._eager(operation) and (operation.ready is None or operation.ready()):
                self.done += 1
                operation.run()
                return
            queue = self.queues[key] = deque()
        queue.append(operation)
        if self._eager(operation):
            self._drain(key)

    def _eager(self, operation: Operation) -> bool:
        if operation.tensor:
            return self.policy in (Policy.EAGER, Policy.TENSOR_EARLY)
        return self.policy is Policy.EAGER

    def _drain(self, key: Hashable) -> None:
        while key in self.queues and self._eager(self.queues[key][0]) and self._run_head(key):
            pass

    def _run_head(self, key: Hashable) -> bool:
        queue = self.queues[key]
        operation = queue[0]
        if operation.ready is not None and not operation.ready():
            return False
        queue.popleft()
        if not queue:
            del self.queues[key]
        self.done += 1
        operation.run()
        return True

    def maybe(self) -> None:
        """A chance for work to happen while warps run."""
        if not self.queues or self.policy is Policy.LAZY:
            return
        if self.rng.random() < 0.5:
            self.step(voluntary=True)

    def step(self, voluntary: bool = False) -> bool:
        """Runs one operation if one is ready.

        Args:
            voluntary: nothing waits for it yet, so a late policy may refuse.
        """
        keys, last = list(self.queues), []
        late = self.policy is Policy.TENSOR_LATE
        while keys:
            at = int(self.rng.random() * len(keys))
            key, keys[at] = keys[at], keys[-1]
            keys.pop()
            if late and self.queues[key][0].tensor:
                last.append(key)
            elif self._run_head(key):
                return True
        return not voluntary and any(self._run_head(key) for key in last)
