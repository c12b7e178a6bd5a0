"""Workspaces of one device, and who may use them now.

Launches on one stream run one after another, so a stream needs one workspace. On a CPU a call is done when it returns,
so one workspace serves every thread, one call at a time (a kernel uses all cores anyway).
"""

import threading
from dataclasses import dataclass, field
from types import TracebackType

import torch

from moegen.runtime.workspace import ArenaPlan, Workspace


@dataclass
class Slot:
    """A workspace of one stream, with the lock that lets one host thread at a time bind and launch on it."""

    key: int
    workspace: Workspace
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> "Slot":
        self.lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()


class WorkspacePool:
    """Makes a workspace for each stream that asks, on one device.

    Args:
        plans: arena plans of every pipeline that may run, for the declared maximum of tokens.
        max_tokens: that maximum.
        device: where.
    """

    def __init__(self, plans: dict[str, ArenaPlan], max_tokens: int, device: torch.device) -> None:
        self.plans = plans
        self.max_tokens = max_tokens
        self.device = device
        self._has_streams = device.type == "cuda"
        self._slots: dict[int, Slot] = {}
        self._lock = threading.Lock()

    @property
    def workspace_bytes(self) -> int:
        """Bytes of one workspace."""
        return max((plan.arena for plan in self.plans.values()), default=0) + max(
            (plan.scratch for plan in self.plans.values()), default=0
        )

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all workspaces made so far."""
        return sum(slot.workspace.bytes for slot in self._slots.values())

    def slot(self) -> Slot:
        """The current stream's workspace, made on first use."""
        stream = torch.cuda.current_stream(self.device).cuda_stream if self._has_streams else 0
        found = self._slots.get(stream)
        if found is None:
            with self._lock:
                found = self._slots.get(stream)
                if found is None:
                    found = self._slots[stream] = Slot(stream, Workspace(self.plans, self.device))
        return found
