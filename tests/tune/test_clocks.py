"""Clocks time the call and not what precedes it; flushes do what the policy says."""

import time

import pytest
import torch

from moegen.tune.clocks import WallClock, clock_mhz, make_clock, make_flush
from moegen.tune.policy import Cache, Timer

CPU = torch.device("cpu")


def test_what_runs_before_a_call_is_not_timed() -> None:
    order: list[str] = []

    def before() -> None:
        order.append("before")
        time.sleep(0.1)

    samples = WallClock().time("key", lambda: order.append("call"), 3, before)
    assert order == ["before", "call"] * 3
    assert 0 < min(samples) < 100_000


def test_a_call_is_timed_in_microseconds() -> None:
    (sample,) = WallClock().time("key", lambda: time.sleep(0.01), 1, lambda: None)
    assert 10_000 <= sample < 60_000_000


def test_cold_flush_writes_three_times_the_cache_and_hot_nothing() -> None:
    flush = make_flush(Cache.COLD, 1 << 10, CPU)
    (buffer,) = [cell.cell_contents for cell in flush.__closure__ or ()]  # pyright: ignore[reportFunctionMemberAccess]
    buffer.fill_(7)
    flush()
    assert buffer.numel() * buffer.element_size() >= (3 << 10) - 8
    assert not buffer.any()
    assert make_flush(Cache.HOT, 1 << 40, CPU)() is None


def test_a_cpu_has_no_clock_to_read() -> None:
    assert clock_mhz(CPU) is None


@pytest.mark.gpu
@pytest.mark.parametrize("timer", [Timer.CUDA_EVENT, Timer.CUDA_GRAPH])
def test_cuda_clocks_see_work_grow(timer: Timer) -> None:
    device = torch.device("cuda")
    clock, flush = make_clock(timer), make_flush(Cache.COLD, 1 << 20, device)
    small, large = torch.randn(256, 256, device=device), torch.randn(8192, 8192, device=device)
    out_small, out_large = torch.empty_like(small), torch.empty_like(large)

    def multiply_small() -> None:
        torch.mm(small, small, out=out_small)

    def multiply_large() -> None:
        torch.mm(large, large, out=out_large)

    fast = clock.time("small", multiply_small, 5, flush)
    slow = clock.time("large", multiply_large, 5, flush)
    assert sorted(slow)[2] > 10 * sorted(fast)[2] > 0
    clock.forget()
