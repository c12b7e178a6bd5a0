"""The worker's subject for real packages: runs built pipelines on this machine's device."""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from moegen.core.enums import Target
from moegen.runtime.environment import current_environment
from moegen.runtime.workspace import main_op
from moegen.tune.clocks import clock_mhz, make_clock, make_flush
from moegen.tune.gate import gate_tolerance, judge
from moegen.tune.inputs import TokenInputs, make_tokens, make_weights, package_shape
from moegen.tune.policy import Cache, Timer
from moegen.tune.rig import Rig, built_pipelines, make_rig, open_book
from moegen.tune.routing import effective_experts, parse_routing

FACTORY = "moegen.tune.layer_subject:open_layer"
_POISON = 0x7F
"""NaN in every float format of the layer, and a code far from any index."""
_Point = tuple[int, str, int]


class LayerSubject:
    """See :class:`moegen.tune.subject.Subject` for what each method answers.

    Args:
        package_dir: a generated and built package.
        target: whose kernels; this machine must have the device.
        timer, cache: how to time (:class:`~moegen.tune.policy.MeasurePolicy`).
    """

    def __init__(self, package_dir: Path, target: Target, timer: Timer, cache: Cache) -> None:
        self._book = open_book(package_dir, target)
        self._device = torch.device(self._book.runner.device_type)
        self._clock = make_clock(timer)
        self._cache = cache
        self._flush: Callable[[], None] | None = None
        self._rig: tuple[int, Rig] | None = None
        self._inputs: tuple[_Point, TokenInputs] | None = None
        self._references: dict[str, torch.Tensor] = {}

    def describe(self) -> dict[str, Any]:
        """The machine, the built pipelines and their artifacts."""
        return {
            "environment": asdict(current_environment(self._book.runner.facts)),
            "built": list(built_pipelines(self._book)),
            "artifacts": dict(self._book.bundle.artifacts) if self._book.bundle else {},
        }

    def prepare(self, tokens: int, routing: str, seed: int) -> dict[str, Any]:
        """Makes weights and input, and says how its slots lie."""
        self._rig_for(seed)
        inputs = self._point(tokens, routing, seed)
        experts = package_shape(self._book).experts
        spread = effective_experts(inputs.topk_ids.cpu(), experts)
        return {"active_experts": inputs.active_experts(experts), "effective_experts": spread}

    def reference(self, pipeline: str, tokens: int, routing: str, seed: int) -> None:
        """Computes the output that pipelines of this one's numerics class must have at a point, once."""
        inputs, rig = self._point(tokens, routing, seed), self._rig_for(seed)
        numerics = str(rig.pipelines[pipeline].numerics)
        if numerics not in self._references:
            self._references[numerics] = rig.reference(pipeline, inputs)["y"]

    def check(self, pipeline: str, tokens: int, routing: str, seed: int) -> dict[str, Any]:
        """One poisoned call against the reference of the pipeline's numerics class."""
        self.reference(pipeline, tokens, routing, seed)
        inputs, rig = self._point(tokens, routing, seed), self._rig_for(seed)
        output = rig.run(pipeline, inputs, poison=_POISON)
        candidate = rig.pipelines[pipeline]
        op = main_op(candidate)
        wanted = self._references[str(candidate.numerics)]
        verdict = judge(output, wanted, gate_tolerance(op.w4a4, op.intermediate), seed=seed)
        return {
            "passed": verdict.passed,
            "reason": verdict.reason,
            "err_max": verdict.row_error,
            "err_rel": verdict.layer_error,
        }

    def sample(self, pipeline: str, tokens: int, routing: str, seed: int, calls: int) -> dict[str, Any]:
        """Times whole calls."""
        inputs, rig = self._point(tokens, routing, seed), self._rig_for(seed)
        bound, y = rig.bound(pipeline, tokens), torch.empty_like(inputs.x)

        def call() -> None:
            bound.launch(inputs.x, inputs.topk_ids, inputs.topk_weights, y, 0)

        samples = self._clock.time(pipeline, call, calls, self._flusher())
        return {"us": samples, "clock_mhz": clock_mhz(self._device)}

    def sample_steps(
        self, pipeline: str, tokens: int, routing: str, seed: int, steps: list[int], calls: int
    ) -> dict[str, Any]:
        """Times single steps, after one whole call that fills their inputs."""
        inputs, rig = self._point(tokens, routing, seed), self._rig_for(seed)
        bound, y = rig.bound(pipeline, tokens), torch.empty_like(inputs.x)
        caller = (inputs.x, inputs.topk_ids.to(bound.ids_dtype), inputs.topk_weights, y, 0)
        bound.launch(*caller)
        samples = []
        for index in steps:
            launch = bound.launches[index]
            key = f"{pipeline}#{index}"
            samples.append(self._clock.time(key, lambda launch=launch: launch(caller), calls, self._flusher()))
        return {"us": samples}

    def _rig_for(self, seed: int) -> Rig:
        if self._rig is None or self._rig[0] != seed:
            self._rig = seed, make_rig(self._book, make_weights(package_shape(self._book), seed))
        return self._rig[1]

    def _point(self, tokens: int, routing: str, seed: int) -> TokenInputs:
        """Inputs of a point, made once; a new point drops what was captured or computed for the last one."""
        point = (tokens, routing, seed)
        if self._inputs is None or self._inputs[0] != point:
            made = make_tokens(package_shape(self._book), tokens, parse_routing(routing), seed).to(str(self._device))
            self._inputs = point, made
            self._references.clear()
            self._clock.forget()
        return self._inputs[1]

    def _flusher(self) -> Callable[[], None]:
        if self._flush is None:
            self._flush = make_flush(self._cache, self._book.runner.facts.l2_bytes, self._device)
        return self._flush


def open_layer(package_dir: str, target: str, timer: str, cache: str, threads: int = 0) -> LayerSubject:
    """The factory that a worker calls; ``threads`` > 0 sets the threads of CPU kernels and of torch alike."""
    if threads > 0:
        os.environ["MOEGEN_THREADS"] = str(threads)
        torch.set_num_threads(threads)
    return LayerSubject(Path(package_dir), Target(target), Timer(timer), Cache(cache))
