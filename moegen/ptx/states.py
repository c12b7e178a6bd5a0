"""Arrays of numbered states, for shadow memories: neighbouring granules mostly have one history, since copies and tiles
access many at a time, so a granule holds only the number of a state.
"""

from typing import Any, Generic, TypeVar

import numpy as np

#: States after which those that no granule holds any more are dropped, where the array is not too large to be searched.
_MANY, _SEARCHED = 1 << 14, 1 << 21
#: Granules whose numbers make one element of ``Numbered.chunks``.
PER_CHUNK = 4
_NUMBER, _CHUNK = np.dtype("i4"), np.dtype("c16")  # complex elements are moved, never added
#: One chunk, to be filled and copied.
_CELL = np.zeros(PER_CHUNK, _NUMBER)
_CELL_CHUNK = _CELL.view(_CHUNK)

S = TypeVar("S")


class Touched:
    """Granules of one access.

    Attributes:
        numbers: of their states, as they were before the access.
        distinct: every number that occurs, in ascending order.
    """

    __slots__ = ("_array", "_box", "_chunked", "_index", "distinct", "numbers")

    def __init__(self, array: Any, index: Any, box: tuple[int, tuple[int, ...]] | None = None) -> None:
        self._array, self._index, self._box = array, index, box
        self._chunked = array.dtype is _CHUNK
        found = array[index]
        raw = found.tobytes()
        self.numbers = found.view(_NUMBER) if self._chunked else found
        if raw == raw[:4] * (len(raw) >> 2):
            self.distinct = [int.from_bytes(raw[:4], "little")] if raw else []
        else:
            # Histories change from place to place far less often than there are granules.
            flat = np.frombuffer(raw, _NUMBER)
            changed = flat[1:][flat[1:] != flat[:-1]]
            self.distinct = sorted({int(flat[0]), *changed.tolist()})

    def place(self, number: int) -> int:
        """Index of the first granule that has a state; of one-dimensional arrays only."""
        position = int((self.numbers == number).argmax())
        if self._box is None:
            return int(self._index.reshape(-1)[position])
        first, strides = self._box
        return first + int(np.dot(np.unravel_index(position, self.numbers.shape), strides))

    def where(self, chosen: list[int]) -> Any:
        """Mask of the granules whose state is one of ``chosen``."""
        return np.isin(self.numbers, chosen)

    def fill(self, number: int) -> None:
        """Gives all granules one state."""
        if self._chunked:
            _CELL[:] = number
            self._array[self._index] = _CELL_CHUNK
        else:
            self._array[self._index] = number

    def replace(self, new: list[int]) -> None:
        """Gives the granules of each distinct state another one."""
        if len(new) == 1:
            self.fill(new[0])
        elif new:
            first = self.distinct[0]
            table = np.zeros(self.distinct[-1] - first + 1, _NUMBER)
            table[np.array(self.distinct) - first] = new
            numbers = table[self.numbers - first]
            self._array[self._index] = numbers.view(_CHUNK) if self._chunked else numbers


class Numbered(Generic[S]):
    """Granules, each with the number of its state.

    Attributes:
        numbers: one per granule; 0 is the state of untouched ones.
        states: by number.
        made: numbers of states that were made lately, by whatever keys their maker chooses.
    """

    def __init__(self, shape: Any, untouched: S) -> None:
        self.numbers = np.zeros(shape, _NUMBER)
        flat = self.numbers.reshape(-1)
        self._chunks = flat[: flat.size // PER_CHUNK * PER_CHUNK].view(_CHUNK)
        self.states: list[S] = [untouched]
        self.made: dict[Any, int] = {}
        self._room = _MANY if flat.size <= _SEARCHED else 1 << 62

    def at(self, index: Any) -> Touched:
        """Granules at an index of ``numbers``."""
        self._make_room()
        return Touched(self.numbers, index)

    def chunks(self, index: Any) -> Touched:
        """Granules of chunks: granule // ``PER_CHUNK``."""
        self._make_room()
        return Touched(self._chunks, index)

    def box(self, first: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> Touched:
        """Granules ``first + sum(index * stride)`` of all indices below ``counts``."""
        self._make_room()
        steps = tuple(stride * _NUMBER.itemsize for stride in strides)
        view = np.ndarray(counts, _NUMBER, self.numbers.data, first * _NUMBER.itemsize, steps)
        return Touched(view, ..., (first, strides))

    def add(self, state: S) -> int:
        """Number of a new state; it counts as used from the next access on."""
        self.states.append(state)
        return len(self.states) - 1

    def _make_room(self) -> None:
        """Now and then, drops the states that no granule holds any more."""
        if len(self.states) <= self._room:
            return
        used = np.union1d(self.numbers, [0])
        self.states = [self.states[k] for k in used.tolist()]
        self.numbers[...] = np.searchsorted(used, self.numbers)
        self.made.clear()
        self._room = _MANY + 2 * used.size
