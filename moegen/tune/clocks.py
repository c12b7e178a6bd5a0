"""Clocks: how many microseconds one call takes, by wall clock, by CUDA events, or by events round a graph replay."""

import math
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import torch

from moegen.tune.policy import Cache, Timer

Call = Callable[[], None]
_CLOCK_EVERY_S = 0.05
_FLUSH_FACTOR = 3
"""A buffer of this many times the last-level cache leaves nothing else in it, whatever the replacement policy."""


class Clock(Protocol):
    """Times calls on one device."""

    def time(self, key: str, call: Call, calls: int, before: Call) -> list[float]:
        """Microseconds of each of ``calls`` calls; ``before`` runs untimed ahead of each.

        Args:
            key: equal keys mean the same work, so that a captured graph can be replayed.
        """
        ...

    def forget(self) -> None:
        """Drops what was captured; called when inputs or buffers change."""
        ...


class WallClock:
    """For kernels that are done when they return."""

    def time(self, key: str, call: Call, calls: int, before: Call) -> list[float]:
        """As :meth:`Clock.time`."""
        samples = []
        for _ in range(calls):
            before()
            began = time.perf_counter_ns()
            call()
            samples.append((time.perf_counter_ns() - began) / 1e3)
        return samples

    def forget(self) -> None:
        """Nothing is kept."""


class EventClock:
    """CUDA events round eager launches: host cost hides behind ``before``, unless the launches outlast it."""

    def time(self, key: str, call: Call, calls: int, before: Call) -> list[float]:
        """As :meth:`Clock.time`."""
        pairs = []
        for _ in range(calls):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before()
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in pairs]

    def forget(self) -> None:
        """Nothing is kept."""


class GraphClock:
    """CUDA events round the replay of a graph: no host cost at all, as in serving."""

    def __init__(self) -> None:
        self._events = EventClock()
        self._graphs: dict[str, tuple[torch.cuda.CUDAGraph, Call]] = {}

    def time(self, key: str, call: Call, calls: int, before: Call) -> list[float]:
        """As :meth:`Clock.time`; the first request for a key runs the call once and captures it."""
        if key not in self._graphs:
            call()
            torch.cuda.synchronize()
            # A graph holds addresses, not tensors: the call keeps alive what it writes to.
            self._graphs[key] = _captured(call), call
        return self._events.time(key, self._graphs[key][0].replay, calls, before)

    def forget(self) -> None:
        """Frees the captured graphs, which hold on to their buffers."""
        self._graphs.clear()


def _captured(call: Call) -> torch.cuda.CUDAGraph:
    """Captures a call that allocates nothing. ``torch.cuda.graph`` would first give the allocator's memory back to the
    driver, which costs more, for each step of each candidate, than timing it."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            call()
        finally:
            graph.capture_end()
    return graph


def make_clock(timer: Timer) -> Clock:
    """The clock of a policy."""
    return {Timer.CPU_WALL: WallClock, Timer.CUDA_EVENT: EventClock, Timer.CUDA_GRAPH: GraphClock}[timer]()


def make_flush(cache: Cache, l2_bytes: int, device: torch.device) -> Call:
    """Work that puts the last-level cache into the state that a policy asks for.

    ``cold`` goes through a buffer of three times ``l2_bytes``: it writes it on a CPU and reads it on a GPU, where the
    lines of a write would be written back during the timed call. ``hot`` does nothing.
    """
    if cache is Cache.HOT:
        return lambda: None
    buffer = torch.zeros(_FLUSH_FACTOR * l2_bytes // 8, dtype=torch.int64, device=device)
    largest = torch.empty((), dtype=torch.int64, device=device)

    def write() -> None:
        buffer.zero_()

    def read() -> None:
        torch.amax(buffer, dim=0, out=largest)

    return read if device.type == "cuda" else write


def clock_mhz(device: torch.device) -> float | None:
    """The GPU's SM clock, a few rounds old at most; None on a CPU, or without the driver's library for it."""
    if device.type != "cuda":
        return None
    gauge = _gauge(device)
    return None if gauge is None else gauge()


@cache
def _gauge(device: torch.device) -> Callable[[], float] | None:
    """Reads the clock at most every :data:`_CLOCK_EVERY_S`: asking the driver takes longer than most timed calls."""
    try:
        nvml: Any = import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except nvml.NVMLError:
        return None
    last: tuple[float, float] = (-math.inf, 0.0)

    def read() -> float:
        nonlocal last
        now = time.monotonic()
        if now - last[0] > _CLOCK_EVERY_S:
            last = now, float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        return last[1]

    return read
