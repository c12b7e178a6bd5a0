"""Memories: registered host allocations as global memory, shared memory of a CTA, gathers and scatters of 32 lanes.

Generic addresses: global addresses are host addresses; shared, local and parameter memory lie in windows that no host
address falls into (the top byte names the window).
"""

import bisect
import ctypes
from typing import Any

import numpy as np

from moegen.ptx.dtypes import ALL, LANES, Mask
from moegen.ptx.errors import ParameterError

SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 2 << 56
PARAM_WINDOW = 3 << 56
_WINDOW_SHIFT = 56
LOW_MASK = (1 << 56) - 1
#: Shared memory below this offset belongs to the system.
SHARED_RESERVED = 0x400
#: Bits of a shared::cluster address that hold the offset; the CTA's rank lies above.
RANK_SHIFT = 24

_ELEMENT = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
    16: np.dtype("c16"),
    32: np.dtype("V32"),
}
_LOW_32 = {width: np.uint32(width - 1) for width in _ELEMENT}
_LOW_64 = {width: np.uint64(width - 1) for width in _ELEMENT}
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4, 32: 5}


class MemoryFault(Exception):
    """An access outside an allocation or not aligned; the caller adds place and kernel."""

    def __init__(self, kind: str, what: str, address: int, lane: int | None = None) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.address = address
        self.lane = lane


class Block:
    """A piece of memory with views of every access width.

    Attributes:
        base: address of byte 0.
        data: u8 array; may start up to 31 bytes before ``base`` to be aligned.
    """

    __slots__ = ("base", "data", "keep", "name", "origin", "readonly", "size", "views")

    def __init__(self, base: int, size: int, name: str, data: Any = None, keep: Any = None) -> None:
        self.base = base
        self.size = size
        self.name = name
        self.keep = keep
        self.origin = base & ~31
        self.readonly = False
        if data is None:
            span = base - self.origin + size
            data = np.frombuffer(memoryview((ctypes.c_uint8 * span).from_address(self.origin)), np.uint8)
        self.data = data
        self.views: dict[int, Any] = {}
        for width, dtype in _ELEMENT.items():
            self.views[width] = data[: data.size // width * width].view(dtype)

    def bytes(self, address: int, count: int) -> Any:
        """View of ``count`` bytes at an address.

        Raises:
            MemoryFault: outside the block.
        """
        if not self.base <= address or address + count > self.base + self.size:
            raise MemoryFault("out-of-bounds", f"{count} bytes at {address:#x} leave {self.name}", address)
        start = address - self.origin
        return self.data[start : start + count]


class GlobalMemory:
    """The registered allocations."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.bases: list[int] = []
        self.last: Block | None = None

    def register(self, base: int, size: int, name: str, keep: Any = None) -> Block:
        """Makes ``size`` bytes of host memory at ``base`` accessible; overlapping registrations are merged.

        Raises:
            ParameterError: a null base with a non-zero size.
        """
        if size and not base:
            raise ParameterError(f"{name}: null pointer with {size} bytes")
        end = base + size
        keeps = [keep]
        for block in [b for b in self.blocks if b.base <= end and base <= b.base + b.size and b.size and size]:
            if block.base <= base and end <= block.base + block.size:
                return block
            # Distinct neighbours may touch; only real overlap is merged.
            if block.base < end and base < block.base + block.size:
                base, end = min(base, block.base), max(end, block.base + block.size)
                keeps.append(block.keep)
                self.remove(block)
        block = Block(base, end - base, name, keep=keeps)
        at = bisect.bisect_left(self.bases, base)
        self.bases.insert(at, base)
        self.blocks.insert(at, block)
        return block

    def remove(self, block: Block) -> None:
        """Forgets an allocation."""
        at = self.blocks.index(block)
        del self.blocks[at], self.bases[at]
        self.last = None

    def find(self, address: int, count: int = 1) -> Block:
        """The allocation that holds ``count`` bytes at an address.

        Raises:
            MemoryFault: none does.
        """
        block = self.last
        if block is not None and block.base <= address and address + count <= block.base + block.size:
            return block
        at = bisect.bisect_right(self.bases, address) - 1
        # Zero-sized neighbours may sort behind the block that matters.
        while at >= 0:
            block = self.blocks[at]
            if address + count <= block.base + block.size:
                self.last = block
                return block
            if block.size:
                break
            at -= 1
        near = ""
        if at >= 0:
            below = self.blocks[at]
            near = f"; the nearest allocation below is {below.name} [{below.base:#x}, +{below.size}]"
        raise MemoryFault("out-of-bounds", f"global address {address:#x} (+{count}) is in no allocation{near}", address)

    def bytes(self, address: int, count: int) -> Any:
        """View of global bytes.

        Raises:
            MemoryFault: outside every allocation.
        """
        return self.find(address, max(count, 1)).bytes(address, count)


def check_aligned(addresses: Any, width: int, mask: Mask) -> None:
    """Raises MemoryFault if an active lane's address is not a multiple of ``width``."""
    if width == 1:
        return
    low = addresses & (_LOW_32 if addresses.itemsize == 4 else _LOW_64)[width]
    if low.tobytes() == bytes(low.nbytes):
        return
    wrong = (low != 0) & mask
    if wrong.any():
        lane = int(wrong.argmax())
        address = int(addresses[lane])
        raise MemoryFault("misaligned", f"address {address:#x} is not a multiple of {width}", address, lane)


def _fill_inactive(addresses: Any, mask: Mask) -> Any:
    return np.where(mask, addresses, addresses[mask.argmax()])


def _inside(block: Block, addresses: Any, width: int) -> bool:
    """Whether accesses lie in a block whose views are not cut to its bounds."""
    return int(addresses.min()) >= block.base and int(addresses.max()) + width <= block.base + block.size


def gather_block(block: Block, addresses: Any, width: int, mask: Mask) -> Any:
    """Elements of ``width`` bytes at u64 addresses inside one block; inactive lanes read an active lane's.

    Raises:
        IndexError: an address outside the block.
    """
    if mask is not ALL:
        addresses = _fill_inactive(addresses, mask)
    offset = addresses - np.uint64(block.origin)
    if (width == 1 or block.base != block.origin) and not _inside(block, addresses, width):
        raise IndexError
    return block.views[width].take((offset >> np.uint64(_SHIFT[width])).view(np.int64))


def scatter_block(block: Block, addresses: Any, width: int, mask: Mask, values: Any) -> None:
    """Stores elements of ``width`` bytes; the highest active lane wins where addresses are equal.

    Raises:
        IndexError: an address outside the block.
    """
    if mask is not ALL:
        addresses, values = addresses[mask], values[mask]
    offset = addresses - np.uint64(block.origin)
    if (width == 1 or block.base != block.origin) and not _inside(block, addresses, width):
        raise IndexError
    block.views[width][(offset >> np.uint64(_SHIFT[width])).view(np.int64)] = values


def _block_of_first(memory: GlobalMemory, addresses: Any, width: int, mask: Mask) -> Block:
    lane = 0 if mask is ALL else int(mask.argmax())
    try:
        return memory.find(int(addresses[lane]), width)
    except MemoryFault as fault:
        fault.lane = lane
        raise


def gather_global(memory: GlobalMemory, addresses: Any, width: int, mask: Mask) -> Any:
    """Elements of ``width`` bytes at global u64 addresses.

    Raises:
        MemoryFault: outside every allocation, or misaligned.
    """
    check_aligned(addresses, width, mask)
    block = _block_of_first(memory, addresses, width, mask)
    try:
        return gather_block(block, addresses, width, mask)
    except IndexError:
        out = np.zeros(LANES, _ELEMENT[width])
        for lane in np.flatnonzero(mask).tolist():
            out[lane] = _lane_view(memory, int(addresses[lane]), width, lane)[0]
        return out


def scatter_global(memory: GlobalMemory, addresses: Any, width: int, mask: Mask, values: Any) -> None:
    """Stores elements of ``width`` bytes at global addresses.

    Raises:
        MemoryFault: outside every allocation, or misaligned.
    """
    check_aligned(addresses, width, mask)
    block = _block_of_first(memory, addresses, width, mask)
    try:
        scatter_block(block, addresses, width, mask, values)
    except IndexError:
        for lane in np.flatnonzero(mask).tolist():
            _lane_view(memory, int(addresses[lane]), width, lane)[0] = values[lane]


def _lane_view(memory: GlobalMemory, address: int, width: int, lane: int) -> Any:
    try:
        return memory.bytes(address, width).view(_ELEMENT[width])
    except MemoryFault as fault:
        fault.lane = lane
        raise


def window(address: int) -> str:
    """State space that a generic address falls into."""
    return ("global", "shared", "local", "param")[min(address >> _WINDOW_SHIFT, 3)]


def low_part(addresses: Any) -> Any:
    """Offset within a window, as u64 lanes."""
    return addresses & np.uint64(LOW_MASK)


def element(width: int) -> np.dtype[Any]:
    """NumPy type that moves ``width`` bytes."""
    return _ELEMENT[width]
