"""Private orders of token rows between two ops (``OpSpec.rows_layout``), with their inverses."""

from typing import Protocol

from torch import Tensor

from moegen.core.errors import LayoutError


class RowLayout(Protocol):
    """How ``x_rows`` and ``h_rows`` lie. ``name`` is what ``OpSpec.rows_layout`` says."""

    @property
    def name(self) -> str:
        """Unique name."""
        ...

    def pack(self, rows: Tensor) -> Tensor:
        """Row-major ``[R, K]`` to the buffer that the ABI declares, padding 0."""
        ...

    def unpack(self, buffer: Tensor, columns: int) -> Tensor:
        """Inverse of :meth:`pack`: row-major ``[R, columns]``."""
        ...

    def arrange(self, tokens: Tensor) -> Tensor:
        """Single tokens ``[T, K]`` with their columns in this order, padding 0 (``x_pieces``)."""
        ...

    def restore(self, buffer: Tensor, columns: int) -> Tensor:
        """Inverse of :meth:`arrange`."""
        ...


class RowMajor:
    """The public order: ``[R, K]`` as it is."""

    name = ""

    def pack(self, rows: Tensor) -> Tensor:
        """The same rows."""
        return rows

    def unpack(self, buffer: Tensor, columns: int) -> Tensor:
        """The same rows; raises LayoutError when they have another width."""
        if buffer.shape[-1] != columns:
            raise LayoutError(f"rows of {buffer.shape[-1]} columns", "token rows", f"expected {columns}")
        return buffer

    def arrange(self, tokens: Tensor) -> Tensor:
        """The same tokens."""
        return tokens

    def restore(self, buffer: Tensor, columns: int) -> Tensor:
        """The same tokens; raises as :meth:`unpack`."""
        return self.unpack(buffer, columns)


_LAYOUTS: dict[str, RowLayout] = {}


def register_row_layout(layout: RowLayout) -> None:
    """Makes a row order known by its name."""
    _LAYOUTS[layout.name] = layout


def row_layout(name: str) -> RowLayout:
    """The row order of that name.

    Raises:
        LayoutError: none is registered.
    """
    if name not in _LAYOUTS:
        raise LayoutError(f"no row layout {name!r}", "token rows", f"one of {sorted(_LAYOUTS)}")
    return _LAYOUTS[name]


register_row_layout(RowMajor())
