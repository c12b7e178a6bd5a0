"""The weights of one layer as kernels read them: packed codes, scales in the spec's layout, alphas, biases.

Packing moves bytes and never changes one. What the checkpoint says about gate and up stays apart: ``w1_alpha [E, 2]``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from moegen.core.abi import Argument, arguments, weight_pack_of
from moegen.core.errors import CheckpointError
from moegen.core.ops import OpSpec
from moegen.core.package import Pipeline
from moegen.numerics import layouts
from moegen.numerics.contracts import pair_from_decode
from moegen.numerics.layouts import fuse_rows, weight_pack
from moegen.runtime.checkpoint.weights import ExpertWeights, Projection

_EXPERTS_AT_ONCE = 8
Key = tuple[str, str, str]
"""Weight pack, scale layout, argument name: what decides a weight tensor's bytes."""


@dataclass(frozen=True, kw_only=True)
class ScaleReport:
    """What the checkpoint's scales look like, for people.

    Attributes:
        gemm1_input: the one input scale of gemm1 (largest of the layer); None without static scales.
        input_spread: that scale over the smallest expert's: how coarse the others are quantised.
        unequal_pairs: experts whose gate and up have different second-level scales.
        largest_ratio: the largest such ratio; 1 when all are equal.
    """

    gemm1_input: float | None
    input_spread: float | None
    unequal_pairs: int
    largest_ratio: float


class Bank:
    """Weight tensors by what decides their bytes.

    Args:
        tensors: on one device.
        report: of the checkpoint's scales.
    """

    def __init__(self, tensors: dict[Key, torch.Tensor], report: ScaleReport) -> None:
        self._tensors = tensors
        self.report = report

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self._tensors.values())).device

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def get(self, op: OpSpec, argument: Argument) -> torch.Tensor | None:
        """The tensor behind a weight argument or a static scale; None for anything else."""
        return self._tensors.get(_key(op, argument.name))

    def reload(self, other: "Bank") -> None:
        """Takes over another checkpoint's values in place: addresses stay, so a captured graph replays with them.

        Raises:
            CheckpointError: the other bank has other tensors.
        """
        ours = {key: tuple(tensor.shape) for key, tensor in self._tensors.items()}
        theirs = {key: tuple(tensor.shape) for key, tensor in other._tensors.items()}
        if ours != theirs:
            raise CheckpointError("weights of another layer shape", "reload", "make a new layer from them")
        for key, tensor in self._tensors.items():
            tensor.copy_(other._tensors[key])
        self.report = other.report


def pack_bank(weights: ExpertWeights, pipelines: Iterable[Pipeline], device: torch.device) -> Bank:
    """Packs a layer's weights in every form that the pipelines read.

    A rank with fewer experts than the kernels were generated for gets empty ones (codes and scales 0) at the end.

    Args:
        weights: canonical weights, checked.
        pipelines: every pipeline that may run.
        device: where the kernels run.

    Raises:
        CheckpointError: static activation scales or biases that a kernel needs are missing.
        LayoutError: the weights do not fit a kernel's pack.
    """
    tensors: dict[Key, torch.Tensor] = {}
    for pipeline in pipelines:
        computed = computed_scales(pipeline)
        for step in pipeline.steps:
            for argument in arguments(step.op):
                static = argument.role == "scale" and argument.name not in computed
                if (argument.role == "weight" or static) and _key(step.op, argument.name) not in tensors:
                    made = _make(step.op, argument.name, weights, device)
                    tensors |= {_key(step.op, name): tensor.to(device) for name, tensor in made.items()}
    return Bank(tensors, scale_report(weights))


def computed_scales(pipeline: Pipeline) -> frozenset[str]:
    """Second-level activation scales that a step of the pipeline computes: dynamic ones."""
    parameters = [argument for step in pipeline.steps for argument in arguments(step.op)]
    return frozenset(item.name for item in parameters if item.role == "scale" and item.access == "write")


def static_sides(pipelines: Iterable[Pipeline]) -> frozenset[str]:
    """Which of gate, up and down need a static input scale in these pipelines."""
    sides: set[str] = set()
    for pipeline in pipelines:
        read = {item.name for step in pipeline.steps for item in arguments(step.op) if item.role == "scale"}
        static = read - computed_scales(pipeline)
        sides |= {"gate", "up"} if "x_scale" in static else set()
        sides |= {"down"} if "h_scale" in static else set()
    return frozenset(sides)


def scale_report(weights: ExpertWeights) -> ScaleReport:
    """Sums up a checkpoint's scales."""
    gemm1, inputs = weights.gemm1_input(), weights.gate_input()
    ratio = torch.ones(weights.experts) if weights.gate is None else weights.gate.second / weights.up.second
    ratio = torch.maximum(ratio, ratio.reciprocal())
    return ScaleReport(
        gemm1_input=None if gemm1 is None else gemm1.item(),
        input_spread=None if gemm1 is None or inputs is None else (gemm1 / inputs.min()).item(),
        unequal_pairs=int((ratio != 1).sum()),
        largest_ratio=ratio.max().item(),
    )


def _key(op: OpSpec, name: str) -> Key:
    """Alphas, biases and activation scales are the same for every pack."""
    if name.endswith(("_codes", "_scales", "_packed")):
        return (weight_pack_of(op, name), op.weight_scale_layout.value, name)
    return ("", "", name)


def _make(op: OpSpec, name: str, weights: ExpertWeights, device: torch.device) -> dict[str, torch.Tensor]:
    """The tensor behind an argument, with those that are made together with it."""
    if name == "x_scale":
        return {name: _pairs(weights.gemm1_input(), name).reshape(1, 2)}
    if name == "h_scale":
        return {name: _fill(_pairs(weights.down.input, name), op.experts, 1.0)}
    layer = name.split("_", 1)[0]
    sides = [weights.down] if layer == "w2" else [side for side in (weights.gate, weights.up) if side is not None]
    if name.endswith("_alpha"):
        return {name: _fill(_alphas(sides), op.experts, 1.0)}
    if name.endswith("_bias"):
        biases = tuple(side.bias for side in sides if side.bias is not None)
        if len(biases) != len(sides):
            raise CheckpointError(
                "kernels add biases, the weights have none", name, "set weights.bias: false in the spec"
            )
        return {name: _fill(fuse_rows(biases, dim=-1), op.experts, 0.0)}
    packed = _pack(op, weight_pack_of(op, name), sides, device)
    return {f"{layer}_{suffix}": tensor for suffix, tensor in packed.items()}


def _pack(op: OpSpec, pack: str, sides: Sequence[Projection], device: torch.device) -> dict[str, torch.Tensor]:
    """Packs on the kernels' device, a few experts at a time: packing takes little more memory than its result."""
    whole: dict[str, torch.Tensor] = {}
    for first in range(0, op.experts, _EXPERTS_AT_ONCE):
        count = min(_EXPERTS_AT_ONCE, op.experts - first)
        halves = tuple(
            layouts.Projection(
                codes=_experts(side.codes, first, count, device), scales=_experts(side.scales, first, count, device)
            )
            for side in sides
        )
        for suffix, tensor in weight_pack(pack).pack(halves, op.weight_scale_layout).items():
            if suffix not in whole:
                whole[suffix] = tensor.new_empty(op.experts, *tensor.shape[1:])
            whole[suffix][first : first + count] = tensor
    return whole


def _experts(tensor: torch.Tensor, first: int, count: int, device: torch.device) -> torch.Tensor:
    """``count`` experts from ``first`` on a device; zeros for those that the rank does not hold."""
    held = tensor[first : first + count].to(device)
    return _fill(held, count, 0)


def _alphas(sides: Sequence[Projection]) -> torch.Tensor:
    """Second-level scales ``[E, halves]``: each half keeps its own."""
    return torch.stack([side.second for side in sides], dim=1)


def _pairs(scale: torch.Tensor | None, name: str) -> torch.Tensor:
    """(encode, decode) pairs of static activation scales."""
    if scale is None:
        raise CheckpointError(
            "kernels need a static activation scale, the weights have none",
            name,
            "calibrate, or set activation_scale: dynamic_tensor in the spec",
        )
    return pair_from_decode(scale)


def _fill(tensor: torch.Tensor, experts: int, value: float) -> torch.Tensor:
    """Adds empty experts' entries along the first dimension."""
    missing = experts - tensor.shape[0]
    return tensor if missing == 0 else torch.cat((tensor, tensor.new_full((missing, *tensor.shape[1:]), value)))
