"""What an entry is compiled for: tensors without data."""

from cutlass.cute.runtime import make_fake_compact_tensor

ALIGNMENT = 16
"""Bytes; every buffer starts at a multiple of this."""


def tensor(dtype, *shape):
    """A contiguous row-major tensor in global memory; a size is a number, or a symbol that is bound at each call."""
    order = tuple(reversed(range(len(shape))))
    return make_fake_compact_tensor(dtype, shape, stride_order=order, assumed_align=ALIGNMENT)
