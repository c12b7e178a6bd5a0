"""The functional form that serving engines call: prepare once after loading weights, then call with tensors."""

from dataclasses import dataclass

import torch

from moegen.core.abi import BLOCK
from moegen.core.enums import GateUpOrder
from moegen.numerics.layouts import check_scales, checkpoint_rows
from moegen.numerics.tensors import as_bytes
from moegen.runtime.checkpoint.weights import ExpertWeights, Projection
from moegen.runtime.layer import MoELayer
from moegen.runtime.package import LoadedPackage


@dataclass(frozen=True, kw_only=True)
class FusedMatrix:
    """One matrix of all experts as an engine's weight loader holds it after reading an NVFP4 checkpoint.

    For w13 (gate and up) N is 2I and K is H; without a gate N is I. For w2 N is H and K is I.

    Attributes:
        codes: ``[E, N, K/2]``, uint8 or float4_e2m1fn_x2, element 2i in the low nibble.
        scales: E4M3 block scales ``[E, N, K/16]``, uint8 or float8_e4m3fn, linear: moegen swizzles them itself.
        second: fp32 multiply form (amax / 2688): ``[E]``, or ``[E, 2]`` for w13's (gate, up).
        input: fp32 amax / 2688 of the static input, shaped like ``second``; None with dynamic scales or W4A16.
        bias: ``[E, N]`` or None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    second: torch.Tensor
    input: torch.Tensor | None = None
    bias: torch.Tensor | None = None


def prepare_experts(
    package: LoadedPackage,
    w13: FusedMatrix,
    w2: FusedMatrix,
    *,
    order: GateUpOrder = GateUpOrder.GATE_UP,
    first_expert: int = 0,
) -> MoELayer:
    """Makes a layer of an engine's fused tensors, on their device.

    Args:
        package: the loaded package.
        w13, w2: the two matrices.
        order: row order of w13, its scales and its bias.
        first_expert: global id of expert 0 of these tensors.

    Raises:
        CheckpointError: a shape, dtype or scale does not fit the package.
        LayoutError: scales are transposed, of a swizzled shape, or hold NaN.
    """
    op = package.op
    gate, up = (
        _halves(w13, order, op.intermediate, op.hidden) if op.gated else (None, _whole(w13, op.intermediate, op.hidden))
    )
    weights = ExpertWeights(gate=gate, up=up, down=_whole(w2, op.hidden, op.intermediate), first_expert=first_expert)
    return package.from_tensors(weights, device=w13.codes.device)


def fused_experts(
    x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, experts: MoELayer
) -> torch.Tensor:
    """Runs prepared experts: ``[T, H]`` from ``x [T, H]``, ``topk_ids [T, k]`` and ``topk_weights [T, k]`` fp32.

    Raises:
        TensorError: as :meth:`moegen.runtime.layer.MoELayer.forward`.
    """
    return experts(x, topk_ids, topk_weights)


def _whole(matrix: FusedMatrix, rows: int, columns: int) -> Projection:
    return Projection(
        codes=as_bytes(matrix.codes, "codes"),
        scales=check_scales("scales", matrix.scales, rows, columns // BLOCK),
        second=matrix.second.float(),
        input=None if matrix.input is None else matrix.input.float(),
        bias=None if matrix.bias is None else matrix.bias.float(),
    )


def _halves(matrix: FusedMatrix, order: GateUpOrder, intermediate: int, columns: int) -> tuple[Projection, Projection]:
    """(gate, up) of a fused matrix; scales ``[E, 2]`` are (gate, up) too, ``[E]`` holds for both."""
    whole, split = _whole(matrix, 2 * intermediate, columns), checkpoint_rows(order).unpack
    codes, scales = split(whole.codes), split(whole.scales)
    biases = (None, None) if whole.bias is None else split(whole.bias, -1)
    gate, up = (
        Projection(
            codes=codes[half],
            scales=scales[half],
            second=_column(whole.second, half),
            input=None if whole.input is None else _column(whole.input, half),
            bias=biases[half],
        )
        for half in (0, 1)
    )
    return gate, up


def _column(scale: torch.Tensor, half: int) -> torch.Tensor:
    return scale if scale.dim() == 1 else scale[:, half].contiguous()
