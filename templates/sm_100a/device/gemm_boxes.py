"""Rows on their way through shared memory: each epilogue warp fills boxes of 32 rows, which bulk tensor copies store.

A warp has two boxes and waits for no other warp: while one box is being stored, the next is filled, across tiles too.
Boxes advance with each box that is sent, not with each chunk of accumulators: a gate subtile fills nothing, and a warp
whose rows are not all real stores them directly. Rows of a tile belong to one expert, padding included, and tensor maps
end at the last column, so a box never reaches another expert's rows.
"""

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.utils import LayoutEnum, blackwell_helpers

ROWS = 32
WARPS = 4
BUFFERS = 2
"""Boxes of a warp."""
UNIT = 8
"""Elements of 16 bytes, which swizzling moves as a whole."""
LINE_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Boxes of ``columns`` elements of a 16-bit ``dtype``, each filled by ``chunks`` chunks of accumulators."""

    dtype: Any
    columns: int
    chunks: int

    @property
    def elements(self):
        """Of one box."""
        return ROWS * self.columns

    def layout(self, count):
        """``count`` boxes in shared memory, swizzled."""
        return blackwell_helpers.make_smem_layout_epi(self.dtype, LayoutEnum.ROW_MAJOR, (ROWS, self.columns), count)

    def make_copy(self, out):
        """The bulk copy of one box to the rows ``out`` as (atom, tensor): a tensor map of its own."""
        layout = cute.slice_(self.layout(1), (None, None, 0))
        operation = cpasync.CopyBulkTensorTileS2GOp()
        return cpasync.make_tiled_tma_atom(operation, out, layout, (ROWS, self.columns))


@dataclass(frozen=True)
class Sender:
    """One warp's boxes: ``storage`` holds all warps', ``source`` and ``target`` are partitioned for ``atom``."""

    boxes: Any
    atom: Any
    storage: Any
    warp: Any
    source: Any
    target: Any

    def place(self, sent):
        """Number of the box to fill after ``sent`` boxes."""
        return self.warp * BUFFERS + sent % BUFFERS

    def open(self):
        """Waits until the box to fill next has been read."""
        cute.arch.cp_async_bulk_wait_group(BUFFERS - 1, read=True)
        cute.arch.sync_warp()

    def put(self, sent, values, column):
        """Rounds 16 fp32 values of this lane's row once and lays them into the box to fill."""
        rounded = cute.make_rmem_tensor(2 * UNIT, self.boxes.dtype)
        rounded.store(values.load().to(self.boxes.dtype))
        lane = cute.arch.lane_idx()
        units = self.boxes.columns // UNIT
        line = lane * (self.boxes.columns * 2) // LINE_BYTES
        for half in range(2):
            unit = (column // UNIT + half) ^ (line % units)
            offset = self.place(sent) * self.boxes.elements + lane * self.boxes.columns + unit * UNIT
            target = cute.make_tensor(self.storage + cute.assume(offset, divby=UNIT), cute.make_layout(UNIT))
            part = cute.make_tensor(rounded.iterator + half * UNIT, cute.make_layout(UNIT))
            target.store(part.load())

    def send(self, sent, row, column):
        """Stores the filled box to where ``row`` and ``column`` lie."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        box = (None, row // ROWS, column // self.boxes.columns)
        cute.copy(self.atom, self.source[(None, self.place(sent))], self.target[box])
        cute.arch.cp_async_bulk_commit_group()

    def close(self):
        """Waits for all boxes of this warp: shared memory must outlive the copies."""
        cute.arch.cp_async_bulk_wait_group(0)


def make_sender(boxes, atom, tensor, storage, warp):
    """A warp's sender; ``atom``, ``tensor`` are :meth:`Boxes.make_copy`'s, ``storage`` points to all warps' boxes."""
    layout = boxes.layout(BUFFERS * WARPS)
    shared = cute.make_tensor(cute.recast_ptr(storage, layout.inner, dtype=boxes.dtype), layout.outer)
    tiles = cute.local_tile(tensor, (ROWS, boxes.columns), (None, None))
    source, target = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    return Sender(boxes, atom, cute.recast_ptr(storage, dtype=boxes.dtype), warp, source, target)
