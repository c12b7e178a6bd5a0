"""Checks of tensors that callers hand in."""

from torch import Tensor, uint8

from moegen.core.errors import TensorError


def as_bytes(tensor: Tensor, where: str) -> Tensor:
    """The tensor's bytes as uint8: itself, or a view of a one-byte dtype (float8_e4m3fn, float4_e2m1fn_x2).

    Raises:
        TensorError: its elements are not one byte wide.
    """
    if tensor.dtype is uint8:
        return tensor
    if tensor.dtype.itemsize != 1:
        raise TensorError(
            f"{tensor.dtype} tensor where bytes are expected", where, "pass uint8, or a one-byte float dtype"
        )
    return tensor.view(uint8)
