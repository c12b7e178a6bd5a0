"""The worker's subject for real packages: runs built pipelines on this machine's device."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from moegen.core.enums import Target
from moegen.runtime.engine import BoundPipeline
from moegen.runtime.environment import current_environment
from moegen.runtime.workspace import main_op
from moegen.tune.clocks import clock_mhz, make_clock, make_flush
from moegen.tune.gate import gate_tolerance
from moegen.tune.inputs import TokenInputs, make_tokens, make_weights, package_shape
from moegen.tune.judging import Jury, depends_on_all_tokens
from moegen.tune.policy import Cache, Timer
from moegen.tune.rig import Rig, built_pipelines, make_rig, open_book
from moegen.tune.routing import effective_experts, parse_routing

FACTORY = "moegen.tune.layer_subject:open_layer"
_POISON = 0x7F
"""NaN in every float format of the layer, and a code far from any index."""
_Point = tuple[int, str, int]


@dataclass(frozen=True)
class _Call:
    """A bound pipeline and its caller's arguments, in the order of :data:`moegen.runtime.engine.CALLER`."""

    bound: BoundPipeline
    caller: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]

    def whole(self) -> None:
        """Launches every step."""
        self.bound.launch(*self.caller)

    def step(self, index: int) -> Callable[[], None]:
        """Launches one step."""
        return lambda: self.bound.launches[index](self.caller)


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
        self._juries: dict[str, Jury] = {}
        self._calls: dict[tuple[str, bool], _Call] = {}

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
        """Computes, once, what pipelines of this one's numerics class must have as output at a point."""
        inputs, rig = self._point(tokens, routing, seed), self._rig_for(seed)
        candidate = rig.pipelines[pipeline]
        op, key = main_op(candidate), str(candidate.numerics)
        if key not in self._juries:
            self._juries[key] = Jury(
                inputs=inputs,
                reference=lambda some: rig.reference(pipeline, some)["y"],
                tolerance=gate_tolerance(op.w4a4, op.intermediate),
                whole=depends_on_all_tokens(candidate),
            )

    def check(self, pipeline: str, tokens: int, routing: str, seed: int) -> dict[str, Any]:
        """One poisoned call against the reference of the pipeline's numerics class, and against its fellows."""
        self.reference(pipeline, tokens, routing, seed)
        inputs, rig = self._point(tokens, routing, seed), self._rig_for(seed)
        output = rig.run(pipeline, inputs, poison=_POISON)
        ruling = self._juries[str(rig.pipelines[pipeline].numerics)].rule(pipeline, output)
        return {
            "passed": ruling.verdict.passed,
            "reason": ruling.verdict.reason,
            "err_max": ruling.verdict.row_error,
            "err_rel": ruling.verdict.layer_error,
            "withdrawn": ruling.withdrawn,
        }

    def sample(self, pipeline: str, tokens: int, routing: str, seed: int, calls: int) -> dict[str, Any]:
        """Times whole calls."""
        call = self._call(pipeline, tokens, routing, seed, reuse=True)
        samples = self._clock.time(pipeline, call.whole, calls, self._flusher())
        return {"us": samples, "clock_mhz": clock_mhz(self._device)}

    def sample_steps(
        self, pipeline: str, tokens: int, routing: str, seed: int, steps: list[int], calls: int
    ) -> dict[str, Any]:
        """Times single steps, after one whole call that fills their inputs, which later steps must leave alone."""
        call = self._call(pipeline, tokens, routing, seed, reuse=False)
        call.whole()
        times = [self._clock.time(f"{pipeline}#{step}", call.step(step), calls, self._flusher()) for step in steps]
        return {"us": times, "clock_mhz": clock_mhz(self._device)}

    def _call(self, pipeline: str, tokens: int, routing: str, seed: int, *, reuse: bool) -> "_Call":
        """A pipeline bound to the point's input and an output of its own, which a captured graph goes on using."""
        inputs, rig = self._point(tokens, routing, seed), self._rig_for(seed)
        if (pipeline, reuse) not in self._calls:
            bound = rig.bound(pipeline, tokens, reuse=reuse)
            caller = (inputs.x, inputs.topk_ids.to(bound.ids_dtype), inputs.topk_weights, torch.empty_like(inputs.x), 0)
            self._calls[pipeline, reuse] = _Call(bound, caller)
        return self._calls[pipeline, reuse]

    def _rig_for(self, seed: int) -> Rig:
        if self._rig is None or self._rig[0] != seed:
            weights = make_weights(package_shape(self._book), seed, self._device)
            self._rig = seed, make_rig(self._book, weights)
        return self._rig[1]

    def _point(self, tokens: int, routing: str, seed: int) -> TokenInputs:
        """Inputs of a point, made once; a new point drops what was captured or computed for the last one."""
        point = (tokens, routing, seed)
        if self._inputs is None or self._inputs[0] != point:
            self._clock.forget()
            self._calls.clear()
            self._juries.clear()
            made = make_tokens(package_shape(self._book), tokens, parse_routing(routing), seed, self._device)
            self._inputs = point, made
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
