"""One allocation for everything a pipeline writes between its first launch and its last.

Buffers come from the kernel ABI, with the sizes of the declared maximum of tokens. Two buffers share bytes when no
launch needs both. Smaller calls use the front of each buffer, so addresses never move.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from moegen.core.abi import Argument, Dims, arguments, round_up
from moegen.core.enums import Epilogue, OpKind
from moegen.core.errors import StoreError
from moegen.core.ops import OpSpec
from moegen.core.package import Pipeline

ALIGN = 256
"""Bytes; bulk copies and TMA need 128, allocators give 256."""
DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}
SCRATCH = "scratch"
ACCUMULATOR = "y_acc"


@dataclass(frozen=True, kw_only=True)
class Region:
    """A buffer's place: bytes ``offset … offset + size`` of the arena, needed by launches ``first … last``."""

    argument: Argument
    size: int
    first: int
    last: int
    offset: int = 0

    def overlaps(self, other: "Region") -> bool:
        """True when some launch needs both."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, kw_only=True)
class ArenaPlan:
    """Where a pipeline's buffers lie, and how many bytes it needs: ``arena`` shared buffers, ``scratch`` on top."""

    pipeline: str
    regions: dict[str, Region]
    arena: int
    scratch: int

    @property
    def total(self) -> int:
        """Bytes of one workspace."""
        return self.arena + self.scratch


def main_op(pipeline: Pipeline) -> OpSpec:
    """The op of a pipeline that knows every fact of the layer: gemm1, or the block that computes all of it.

    Raises:
        StoreError: the manifest gives the pipeline neither.
    """
    for step in pipeline.steps:
        if step.op.kind in (OpKind.GEMM1, OpKind.BLOCK):
            return step.op
    raise StoreError("pipeline without gemm1", pipeline.name, "moegen generate")


def pipeline_dims(pipeline: Pipeline, tokens: int) -> Dims:
    """Sizes of one call, from gemm1: other ops leave the sizes that they do not use at 0."""
    op = main_op(pipeline)
    return Dims(
        tokens=tokens,
        top_k=op.top_k,
        experts=op.experts,
        hidden=op.hidden,
        intermediate=op.intermediate,
        row_tile=pipeline.row_tile,
    )


def plan_arena(pipeline: Pipeline, tokens: int, *, reuse: bool = True) -> ArenaPlan:
    """Places a pipeline's buffers for at most ``tokens`` tokens, or for the most that it serves.

    Without ``reuse`` no two buffers share bytes: after a whole call any launch can be repeated alone.

    Raises:
        StoreError: the manifest's steps read a buffer that none wrote, disagree on one, or let a fused pipeline have a
            token-dtype buffer of activated values.
    """
    dims = pipeline_dims(pipeline, tokens if pipeline.most_tokens is None else min(tokens, pipeline.most_tokens))
    wanted = _lifetimes(pipeline, dims)
    if pipeline.epilogue is Epilogue.FUSED_FP4 and wanted.keys() & {"h_rows", "h_pair"}:
        raise StoreError("a fused_fp4 pipeline declares a buffer of activated rows", pipeline.name, "moegen generate")
    if not reuse:
        wanted = {name: replace(region, first=0, last=len(pipeline.steps)) for name, region in wanted.items()}
    regions = _place(wanted.values())
    scratch = max((step.scratch_fixed + step.scratch_per_row * dims["R"] for step in pipeline.steps), default=0)
    arena = max((region.offset + region.size for region in regions.values()), default=0)
    return ArenaPlan(
        pipeline=pipeline.name, regions=regions, arena=round_up(arena, ALIGN), scratch=round_up(scratch, ALIGN)
    )


class Workspace:
    """Memory for any of the planned pipelines on one device, one call at a time.

    Args:
        plans: arena plans by pipeline name.
        device: where the kernels run.
    """

    def __init__(self, plans: dict[str, ArenaPlan], device: torch.device) -> None:
        self.plans = plans
        self.arena_bytes = max((plan.arena for plan in plans.values()), default=0)
        scratch = max((plan.scratch for plan in plans.values()), default=0)
        self._arena = torch.empty(self.arena_bytes + scratch, dtype=torch.uint8, device=device)
        self._arena[self.arena_bytes :].zero_()

    @property
    def bytes(self) -> int:
        """Bytes allocated."""
        return self._arena.numel()

    def view(self, pipeline: str, argument: Argument, shape: tuple[int, ...]) -> torch.Tensor:
        """The buffer of an argument at the size of one call."""
        region = self.plans[pipeline].regions[argument.name]
        dtype = DTYPES[argument.dtype]
        size = dtype.itemsize * _product(shape)
        return self._arena[region.offset : region.offset + size].view(dtype).view(shape)

    def poison(self, byte: int) -> None:
        """Fills every buffer (not scratch) with a byte, to show that no kernel reads what none wrote."""
        self._arena[: self.arena_bytes].fill_(byte)

    def scratch(self, size: int) -> torch.Tensor:
        """The first ``size`` bytes of scratch: zero before each launch, because every kernel leaves it zeroed."""
        return self._arena[self.arena_bytes : self.arena_bytes + size]


def _lifetimes(pipeline: Pipeline, dims: Dims) -> dict[str, Region]:
    found: dict[str, Region] = {}
    for index, step in enumerate(pipeline.steps):
        for argument in arguments(step.op):
            if not _is_buffer(argument, found):
                continue
            size = round_up(DTYPES[argument.dtype].itemsize * _product(dims.shape(argument)), ALIGN)
            known = found.get(argument.name)
            if known is None and argument.access == "read":
                raise StoreError(
                    f"{step.op.kind.value} reads {argument.name}, which no step wrote", pipeline.name, "moegen generate"
                )
            if known is not None and (known.size, known.argument.dtype) != (size, argument.dtype):
                raise StoreError(f"steps disagree on the size of {argument.name}", pipeline.name, "moegen generate")
            first = index if known is None else known.first
            found[argument.name] = Region(argument=argument, size=size, first=first, last=index)
    return found


def _is_buffer(argument: Argument, found: dict[str, Region]) -> bool:
    """Workspace buffers, and second-level scales that a step computes (a static one belongs to the weights)."""
    dynamic_scale = argument.role == "scale" and (argument.access == "write" or argument.name in found)
    return argument.role == "workspace" or dynamic_scale


def _place(wanted: Iterable[Region]) -> dict[str, Region]:
    """Largest first, each at the lowest offset that is free over its lifetime."""
    placed: list[Region] = []
    for region in sorted(wanted, key=lambda item: (-item.size, item.argument.name)):
        offset = 0
        for other in sorted((item for item in placed if item.overlaps(region)), key=lambda item: item.offset):
            if offset + region.size <= other.offset:
                break
            offset = max(offset, other.offset + other.size)
        placed.append(
            Region(argument=region.argument, size=region.size, first=region.first, last=region.last, offset=offset)
        )
    return {region.argument.name: region for region in placed}


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
