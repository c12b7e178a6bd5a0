"""Subjects for the tuning worker: candidates that are well, slow, fast but wrong, deadly, or never come back."""

import os
import signal
import sys
import time
from typing import Any

HIDDEN = 80


class FakeSubject:
    """Plays a package whose pipelines behave as ``behaviours`` says.

    Args:
        times_us: pipeline → microseconds of a call, or of each step when asked for steps.
        behaviours: pipeline → ``nan``, ``wrong_row``, ``accuse`` (the default), ``die``, ``hang``, ``hoard``,
            ``refuse``, ``bad_timer``, with ``check:``, ``sample:`` or ``reference:`` before it for the request in which
            it shows.
        artifacts: variant → digest.
        real_gate: outputs are tensors that go through the real gate; else verdicts are canned, which spares each
            process the import of torch.
        slow_s: seconds that making the input, and computing a reference, take.
    """

    def __init__(
        self,
        times_us: dict[str, float],
        behaviours: dict[str, str] | None = None,
        artifacts: dict[str, str] | None = None,
        real_gate: bool = False,
        slow_s: float = 0.0,
    ) -> None:
        self._times_us = times_us
        self._behaviours = behaviours or {}
        self._artifacts = artifacts or {}
        self._real_gate = real_gate
        self._slow_s = slow_s
        if real_gate:
            import moegen.tune.gate  # noqa: F401

    def describe(self) -> dict[str, Any]:
        environment = {"device": "fake", "target": "cpu", "arch": "x86-64-v3", "cores": 2, "l2_bytes": 1 << 20}
        return {"environment": environment, "built": list(self._times_us), "artifacts": self._artifacts}

    def prepare(self, tokens: int, routing: str, seed: int) -> dict[str, Any]:
        time.sleep(self._slow_s)
        return {"active_experts": min(7, tokens), "effective_experts": 1.0}

    def reference(self, pipeline: str, tokens: int, routing: str, seed: int) -> None:
        self._act(pipeline, "reference")
        time.sleep(self._slow_s)

    def check(self, pipeline: str, tokens: int, routing: str, seed: int) -> dict[str, Any]:
        behaviour = self._act(pipeline, "check")
        if not self._real_gate:
            passed = behaviour not in ("nan", "wrong_row")
            withdrawn = {"default": "token 3 was wrong"} if behaviour == "accuse" else {}
            return {
                "passed": passed,
                "reason": "" if passed else behaviour,
                "err_max": 0.0,
                "err_rel": 0.0,
                "withdrawn": withdrawn,
            }
        import torch

        from moegen.tune.gate import gate_tolerance, judge

        reference = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))
        output = reference.clone()
        if behaviour == "nan":
            output[tokens // 2, 17] = float("nan")
        if behaviour == "wrong_row":
            output[tokens // 2] = output[0] + 1
        verdict = judge(output, reference, gate_tolerance(w4a4=True, intermediate=48), seed=seed)
        return {
            "passed": verdict.passed,
            "reason": verdict.reason,
            "err_max": verdict.row_error,
            "err_rel": verdict.layer_error,
        }

    def sample(self, pipeline: str, tokens: int, routing: str, seed: int, calls: int) -> dict[str, Any]:
        behaviour = self._act(pipeline, "sample")
        time_us = float("nan") if behaviour == "bad_timer" else self._times_us[pipeline]
        return {"us": [time_us] * calls, "clock_mhz": 1980.0}

    def sample_steps(
        self, pipeline: str, tokens: int, routing: str, seed: int, steps: list[int], calls: int
    ) -> dict[str, Any]:
        self._act(pipeline, "sample")
        return {"us": [[self._times_us[pipeline] / 2] * calls for _ in steps]}

    def _act(self, pipeline: str, request: str) -> str:
        when, _, behaviour = self._behaviours.get(pipeline, "").rpartition(":")
        if when not in ("", request):
            return ""
        if behaviour in ("die", "hang", "hoard", "refuse"):
            getattr(self, behaviour)()
        return behaviour

    def echo(self, value: Any) -> Any:
        return value

    def pid(self) -> int:
        return os.getpid()

    def noisy(self) -> str:
        """Writes where the protocol must not live."""
        print("to stdout", flush=True)
        os.write(1, b'{"result": "forged"}\n')
        sys.stderr.write("to stderr\n")
        return sys.stdin.read()

    def die(self) -> None:
        sys.stderr.write("about to trap\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self) -> None:
        os._exit(3)

    def hang(self) -> None:
        time.sleep(3600)

    def refuse(self) -> None:
        raise ValueError("no such schedule")

    def hoard(self) -> None:
        bytearray(1 << 60)

    def hoard_tensors(self) -> None:
        """Ten times the memory that is free, as torch would ask for it."""
        import torch

        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        torch.empty(max(10 * free, 1 << 46), dtype=torch.uint8)

    def multiply_on_gpu(self) -> float:
        """One element of a product of ones and twos, 1024 deep."""
        import torch

        ones = torch.ones(1024, 1024, device="cuda")
        return (ones @ (2 * ones))[0, 0].item()

    def break_gpu(self) -> None:
        """An access out of bounds, which the device reports with whatever comes next."""
        import torch

        torch.arange(8, device="cuda")[torch.tensor([1 << 40], device="cuda")]
        torch.cuda.synchronize()

    def hoard_gpu(self) -> None:
        """Ten times the device's memory."""
        import torch

        torch.empty(10 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")


def make_fake(**options: Any) -> FakeSubject:
    if options.pop("broken", False):
        raise RuntimeError("no device here")
    return FakeSubject(**{"times_us": {}, **options})
