"""Checks of a caller's tensors, in the order of what goes wrong most; each error says what to write instead."""

from typing import Protocol

import torch

from moegen.core.errors import TensorError

IDS = (torch.int64, torch.int32)


class LayerFacts(Protocol):
    """What a call is checked against."""

    hidden: int
    top_k: int
    dtype: torch.dtype
    device: torch.device

    @property
    def max_tokens(self) -> int:
        """Most tokens of one call."""
        ...


def check_call(layer: LayerFacts, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """Raises TensorError unless the three tensors are what the layer's kernels take."""
    if x.dtype is not layer.dtype or x.dim() != 2 or x.shape[1] != layer.hidden:
        raise _wrong("x", x, f"[T, {layer.hidden}] {layer.dtype}", f"x.reshape(-1, {layer.hidden}).to({layer.dtype})")
    shape = (x.shape[0], layer.top_k)
    if ids.dtype not in IDS or ids.shape != shape:
        raise _wrong("topk_ids", ids, f"[{shape[0]}, {shape[1]}] int64 or int32", "one row of k expert ids per token")
    if weights.dtype is not torch.float32 or weights.shape != shape:
        raise _wrong("topk_weights", weights, f"[{shape[0]}, {shape[1]}] float32", "topk_weights.float()")
    for name, tensor in (("x", x), ("topk_ids", ids), ("topk_weights", weights)):
        if tensor.device != layer.device:
            raise _wrong(name, tensor, f"on {layer.device}, where the weights are", f"{name}.to('{layer.device}')")
        if not tensor.is_contiguous():
            raise _wrong(name, tensor, f"contiguous, its strides are {tensor.stride()}", f"{name}.contiguous()")
    if x.shape[0] > layer.max_tokens:
        raise TensorError(
            f"{x.shape[0]} tokens, the workspace was declared for {layer.max_tokens}",
            "x",
            f"split the call, or load the package with max_tokens={x.shape[0]}",
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise TensorError(
            "x requires a gradient, and the kernels have no backward", "x", "call under torch.inference_mode()"
        )


def _wrong(name: str, tensor: torch.Tensor, expected: str, fix: str) -> TensorError:
    found = f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
    return TensorError(f"{name} is {found}, expected {expected}", name, fix)
