"""Boxes of tensor copies: from global memory to rows of 16-byte chunks and back, and their place in shared memory."""

from functools import lru_cache
from typing import Any

import numpy as np

from moegen.ptx import tensormap
from moegen.ptx.memory import Block, element
from moegen.ptx.swizzle import swizzle
from moegen.ptx.tensormap import Rows, TensorMap


@lru_cache(maxsize=512)
def chunk_index(offset: int, count: int, span: int) -> Any:
    """Indices of 16-byte chunks of shared memory that hold ``count`` chunks of a box placed at ``offset``."""
    addresses = offset + 16 * np.arange(count, dtype=np.int64)
    index = swizzle(addresses, span) >> 4
    index.flags.writeable = False
    return index


def gather_box(memory: Any, m: TensorMap, coords: tuple[int, ...], ticket: Any) -> Any:
    """Box contents in global memory as c16 chunks, zero outside the tensor.

    Args:
        ticket: the race detector's, or None.

    Raises:
        MemoryFault: the box leaves registered memory.
    """
    source, target, length = tensormap.inner_range(m, coords[0])
    rows = tensormap.rows(m, coords[1:])
    if not length or 0 in rows.counts:
        return np.zeros(m.box_bytes // 16, np.complex128)
    block, start = _place(memory, m, rows, source, length)
    if ticket is not None:
        ticket.global_box(block, start, rows, length, write=False)
    if rows.whole and length == m.inner_bytes and start & 15 == 0:
        return _box_view(block, start, rows, length, 16).reshape(-1)
    image = np.zeros((*m.box[:0:-1], m.inner_bytes), np.uint8)
    image[(*rows.place, slice(target, target + length))] = _box_view(block, start, rows, length, 1)
    return image.reshape(-1).view(np.complex128)


def _place(memory: Any, m: TensorMap, rows: Rows, source: int, length: int) -> tuple[Block, int]:
    """Allocation that holds all rows from byte ``source`` on, and the index of the first of these bytes in it."""
    first = m.address + rows.first + source
    block = memory.find(first, max(length, 1))
    block.bytes(first, rows.last - rows.first + length)
    return block, first - block.origin


def _box_view(block: Block, start: int, rows: Rows, length: int, unit: int) -> Any:
    """``length`` bytes of each row in elements of ``unit`` bytes, as they lie in an allocation."""
    return np.ndarray((*rows.counts, length // unit), element(unit), block.data, start, (*rows.strides, unit))


def scatter_box(
    memory: Any, m: TensorMap, coords: tuple[int, ...], image: Any, op: Any, kind: Any, ticket: Any
) -> None:
    """Writes (or reduces) a box to global memory, skipping what lies outside the tensor.

    Args:
        ticket: the race detector's, or None.

    Raises:
        MemoryFault: the box leaves registered memory.
    """
    source, target, length = tensormap.inner_range(m, coords[0])
    rows = tensormap.rows(m, coords[1:])
    if not length or 0 in rows.counts:
        return
    if m.rank == 1 and op is None:
        # Seen on an H200: the last 16 bytes of a 1d tensor are stored whole, beyond an end inside them.
        length = min(length + -(source + length) % 16, m.inner_bytes - target)
    block, start = _place(memory, m, rows, source, length)
    if ticket is not None:
        ticket.global_box(block, start, rows, length, write=True, reduce=op is not None)
    box = image.view(np.uint8).reshape(*m.box[:0:-1], m.inner_bytes)
    stored = np.ascontiguousarray(box[(*rows.place, slice(target, target + length))])
    width = 1 if kind is None else kind.nbytes
    unit = 16 if kind is None and length % 16 == 0 and start % 16 == 0 else width
    view = _box_view(block, start, rows, length, unit)
    data = stored.view(view.dtype)
    view[...] = data if op is None else op(view, data)
