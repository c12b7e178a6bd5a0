"""Runs a pipeline's kernels in order over one namespace of buffers, as the runtime does."""

from collections.abc import Iterable
from dataclasses import fields

import torch
from kernels.cases import Case
from kernels.compare import Buffers, launch
from kernels.harness import Workshop, gemm_variant, stream_variant
from numerics.layers import Layer
from torch import Tensor

from moegen.codegen.variant import Variant
from moegen.core.abi import Dims
from moegen.core.enums import OpKind
from moegen.core.ops import OpSpec

GEMMS = (OpKind.GEMM1, OpKind.GEMM2)


def variant_for(op: OpSpec, **schedule: int) -> Variant:
    """Any op with a legal schedule."""
    return gemm_variant(op, **schedule) if op.kind in GEMMS else stream_variant(op)


def planned(layer: Layer) -> Case:
    """The layer as a case, whose ops are those that planning makes: equal kernels of two layers are one kernel."""
    names = {field.name for field in fields(Case)} & {field.name for field in fields(Layer)}
    scales = {"x_scale": layer.act_scale, "h_scale": layer.act_scale}
    return Case(**{name: getattr(layer, name) for name in names}, **scales)


def run_chain(
    workshop: Workshop,
    ops: Iterable[OpSpec],
    given: Buffers,
    dims: Dims,
    *,
    first_expert: int = 0,
    byte: int = 0xFF,
    threads: int = 1,
    **schedule: int,
) -> dict[str, Tensor]:
    """All buffers after the last op. Whatever an op writes holds stale ``byte``s before; ``y_acc`` starts at 0."""
    held = dict(given)
    variants = [variant_for(op, **schedule) for op in ops]
    workshop.prepare(variants)
    for variant in variants:
        op = variant.op
        if op.fused_combine:
            held["y_acc"] = torch.zeros(dims["T"], op.hidden)
        kernel = workshop.kernel(variant)
        held |= launch(kernel, op, held, dims, first_expert=first_expert, byte=byte, threads=threads)
    return held


def run_layer(
    workshop: Workshop,
    layer: Layer,
    changes: Buffers | None = None,
    *,
    byte: int = 0xFF,
    threads: int = 1,
    **schedule: int,
) -> dict[str, Tensor]:
    """A layer's whole pipeline on CPU kernels; ``changes`` replace some of its buffers."""
    return run_chain(
        workshop,
        planned(layer).pipeline(),
        layer.buffers() | dict(changes or {}),
        planned(layer).dims(),
        first_expert=layer.first_expert,
        byte=byte,
        threads=threads,
        **schedule,
    )
