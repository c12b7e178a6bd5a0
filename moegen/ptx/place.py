"""Address operands."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from moegen.ptx.dtypes import Mask
from moegen.ptx.masks import common_value

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

_NARROW, _WIDEST = (1 << 32) - 1, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """An address operand: register or constant slot plus a byte offset.

    Attributes:
        slot: slot that holds the base (u32 or u64 lanes), or None for a static address.
        offset: bytes to add; the whole address if ``slot`` is None.
        wide: the base is 64 bits wide.
        param: the offset counts from the start of the parameter block.
    """

    slot: int | None
    offset: int
    wide: bool
    param: bool = False

    def lanes(self, w: "Warp") -> Any:
        """Address of every lane, wrapped to the width of the base."""
        if self.slot is None:
            return np.full(32, self.offset, np.int64).astype(np.uint64)
        base = w.R[self.slot]
        if not self.offset:
            return base
        return base + self.delta(base.dtype)

    def common(self, w: "Warp", mask: Mask) -> int | None:
        """Address that all active lanes share; None if they differ."""
        if self.slot is None:
            return self.offset
        base = common_value(w.R[self.slot], mask)
        return None if base is None else base + self.offset & (_WIDEST if self.wide else _NARROW)

    def delta(self, dtype: DTypeLike) -> Any:
        """The offset in the base's type (two's complement)."""
        bits = np.dtype(dtype).itemsize * 8
        return np.dtype(dtype).type(self.offset & ((1 << bits) - 1))

    def lane(self, w: "Warp", lane: int) -> int:
        """Address in one lane."""
        if self.slot is None:
            return self.offset
        return w.R[self.slot].item(lane) + self.offset & (_WIDEST if self.wide else _NARROW)
