"""Runs a layer: decides, binds buffers to kernel arguments, launches.

The host work of a call depends on T alone; nothing reads device data, so a call can be captured in a CUDA graph.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from moegen.core.abi import arguments
from moegen.core.enums import TokenDtype
from moegen.core.package import Pipeline, Step
from moegen.core.runner import Kernel
from moegen.runtime.bank import Bank
from moegen.runtime.checks import check_call
from moegen.runtime.decision import Decider, Decision
from moegen.runtime.kernels import KernelBook
from moegen.runtime.pool import Slot, WorkspacePool
from moegen.runtime.workspace import ACCUMULATOR, Workspace, main_op, pipeline_dims

CALLER = ("x", "topk_ids", "topk_weights", "y", "first_expert")
"""Arguments that change from call to call, in the order in which :meth:`BoundPipeline.launch` takes them."""
_MOST_BOUND = 1024
_NO_GUARD: AbstractContextManager[object] = nullcontext()
TOKEN_DTYPES = {TokenDtype.BF16: torch.bfloat16, TokenDtype.FP16: torch.float16}


@dataclass(frozen=True)
class Launch:
    """One kernel with its fixed arguments; ``slots`` are (position, index into :data:`CALLER`) of the others."""

    step: Step
    kernel: Kernel
    fixed: tuple[Any, ...]
    slots: tuple[tuple[int, int], ...]
    clear: torch.Tensor | None

    def __call__(self, caller: Sequence[Any]) -> None:
        """Launches on the current stream."""
        if self.clear is not None:
            self.clear.zero_()
        values = list(self.fixed)
        for position, index in self.slots:
            values[position] = caller[index]
        self.kernel(*values)


@dataclass(frozen=True)
class BoundPipeline:
    """A pipeline with its buffers for one T and one workspace."""

    pipeline: Pipeline
    tokens: int
    launches: tuple[Launch, ...]
    buffers: Mapping[str, torch.Tensor]
    ids_dtype: torch.dtype

    def launch(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, y: torch.Tensor, first_expert: int
    ) -> None:
        """Launches every step in order. ``ids`` are converted to the dtype that the route kernel takes."""
        caller = (x, ids if ids.dtype is self.ids_dtype else ids.to(self.ids_dtype), weights, y, first_expert)
        for launch in self.launches:
            launch(caller)


def bind(
    pipeline: Pipeline, tokens: int, workspace: Workspace, bank: Bank, kernel: Callable[[str], Kernel]
) -> BoundPipeline:
    """Binds weights and workspace views to every kernel argument of a pipeline.

    Args:
        pipeline: which one; ``workspace`` must hold its plan and ``bank`` its packs.
        tokens: T, at most the workspace's maximum.
        workspace: where its buffers lie.
        bank: the layer's weights.
        kernel: variant → loaded kernel.
    """
    dims = pipeline_dims(pipeline, tokens)
    buffers: dict[str, torch.Tensor] = {}
    launches = []
    ids_dtype = torch.int64
    for step in pipeline.steps:
        fixed: list[Any] = []
        slots: list[tuple[int, int]] = []
        for argument in arguments(step.op):
            if argument.name in CALLER:
                slots.append((len(fixed), CALLER.index(argument.name)))
                fixed.append(None)
                if argument.name == "topk_ids" and argument.dtype == "i32":
                    ids_dtype = torch.int32
            elif (weight := bank.get(step.op, argument)) is not None:
                fixed.append(weight)
            else:
                if argument.name not in buffers:
                    buffers[argument.name] = workspace.view(pipeline.name, argument, dims.shape(argument))
                fixed.append(buffers[argument.name])
        scratch = step.scratch_fixed + step.scratch_per_row * dims["R"]
        if step.scratch_fixed or step.scratch_per_row:
            fixed.append(workspace.scratch(scratch))
        launches.append(
            Launch(
                step=step,
                kernel=kernel(step.variant),
                fixed=tuple(fixed),
                slots=tuple(slots),
                clear=buffers[ACCUMULATOR] if _updates(step, ACCUMULATOR) else None,
            )
        )
    return BoundPipeline(
        pipeline=pipeline, tokens=tokens, launches=tuple(launches), buffers=buffers, ids_dtype=ids_dtype
    )


def _updates(step: Step, name: str) -> bool:
    return any(argument.name == name and argument.access == "update" for argument in arguments(step.op))


@dataclass(kw_only=True)
class Engine:
    """One layer, ready to run.

    Args:
        book: loads kernels.
        pipelines: candidates by name.
        decider: picks one of them for T.
        bank: the weights.
        pool: workspaces, shared by the layers of a package.
        first_expert: global id of the first local expert.
        held: local experts with weights; at most as many as the kernels were generated for.
    """

    book: KernelBook
    pipelines: Mapping[str, Pipeline]
    decider: Decider
    bank: Bank
    pool: WorkspacePool
    first_expert: int = 0
    held: int
    _bound: dict[tuple[str, int, int], BoundPipeline] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        op = main_op(next(iter(self.pipelines.values())))
        self.hidden, self.top_k = op.hidden, op.top_k
        self.dtype = TOKEN_DTYPES[op.dtype]
        self.device = self.bank.device

    @property
    def max_tokens(self) -> int:
        """Most tokens of one call: what the workspace was declared for."""
        return self.pool.max_tokens

    def run(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """Computes the layer for ``x [T, H]``, ``topk_ids [T, k]`` (int32 or int64), ``topk_weights [T, k]`` fp32.

        Returns:
            ``[T, H]`` in x's dtype, a new tensor. Ids outside this rank's experts contribute exactly 0.

        Raises:
            TensorError: a tensor has the wrong dtype, shape, device or strides, or T exceeds the declared maximum.
        """
        check_call(self, x, topk_ids, topk_weights)
        y = torch.empty_like(x)
        tokens = x.shape[0]
        if tokens:
            decision = self.decider.decide(tokens)
            with self._on_device(), self.pool.slot() as slot:
                self.decider.counts[decision.source] += 1
                self.bound(decision.pipeline, tokens, slot).launch(x, topk_ids, topk_weights, y, self.first_expert)
        return y

    def bound(self, name: str, tokens: int, slot: Slot) -> BoundPipeline:
        """The pipeline bound to a workspace that the caller holds."""
        key = (name, tokens, slot.key)
        found = self._bound.get(key)
        if found is None:
            found = bind(self.pipelines[name], tokens, slot.workspace, self.bank, self.book.kernel)
            with self._lock:
                while len(self._bound) >= _MOST_BOUND:
                    self._bound.pop(next(iter(self._bound)))
                self._bound[key] = found
        return found

    def _on_device(self) -> AbstractContextManager[object]:
        """Makes the weights' GPU the current one: kernels launch into the current context."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else _NO_GUARD

    def decide(self, tokens: int) -> Decision:
        """The decision for T tokens, without running anything."""
        return self.decider.decide(tokens)
