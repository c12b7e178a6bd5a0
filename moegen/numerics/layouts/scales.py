"""Orders of block scales in memory, each a value with pack, unpack and a validator.

A logical scale matrix has ``rows`` rows (weight rows, or token rows) and ``columns`` = K/16 columns, one E4M3 byte
each. Leading dimensions (experts) are packed one by one, so that an expert's stride counts padded rows.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from moegen.core.abi import round_up
from moegen.core.enums import ScaleLayout
from moegen.core.errors import LayoutError
from moegen.numerics.tensors import as_bytes


@dataclass(frozen=True)
class Layout(ABC):
    """A tag and parameters: where scale (m, k) lies among an expert's bytes."""

    @property
    @abstractmethod
    def tag(self) -> str:
        """Name in specs, tensors and messages."""

    @abstractmethod
    def shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Shape of one expert's packed matrix, padding included."""

    @abstractmethod
    def offset(self, row: Tensor, column: Tensor, rows: int, columns: int) -> Tensor:
        """Byte offset of scale (row, column) within an expert, int64; indices broadcast."""

    @abstractmethod
    def arrange(self, padded: Tensor) -> Tensor:
        """Moves a padded matrix ``[..., rows, columns]`` into this order by views alone: ``[..., *shape]``."""

    @abstractmethod
    def restore(self, packed: Tensor) -> Tensor:
        """Inverse of :meth:`arrange`."""

    def padded(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns after padding."""
        return rows, columns

    def offsets(self, rows: int, columns: int) -> Tensor:
        """Offset of every scale: int64 ``[rows, columns]``."""
        return self.offset(torch.arange(rows)[:, None], torch.arange(columns)[None, :], rows, columns)

    def pack(self, scales: Tensor) -> Tensor:
        """Linear scales ``[..., rows, columns]``, of one byte each, to uint8 ``[..., *shape]``; padding is 0."""
        data = as_bytes(scales, f"{self.tag}.pack")
        rows, columns = data.shape[-2:]
        more_rows, more_columns = self.padded(rows, columns)
        padded = functional.pad(data, (0, more_columns - columns, 0, more_rows - rows))
        return self.arrange(padded).contiguous()

    def unpack(self, packed: Tensor, rows: int, columns: int) -> Tensor:
        """Inverse of :meth:`pack`: linear uint8 ``[..., rows, columns]``.

        Raises:
            LayoutError: the packed tensor has another shape than this layout gives to rows × columns.
        """
        data = as_bytes(packed, f"{self.tag}.unpack")
        self._check_shape(data, rows, columns)
        return self.restore(data)[..., :rows, :columns].contiguous()

    def validate(self, packed: Tensor, rows: int, columns: int, expected: Tensor | None = None) -> None:
        """Checks shape, dtype, zero padding and, when given, every scale against ``expected``, which is linear.

        Raises:
            LayoutError: ``where`` names the first wrong element: its expert, row, column and byte offset.
        """
        data = as_bytes(packed, f"{self.tag}.validate")
        if not data.is_contiguous():
            raise LayoutError(
                f"{self.tag} scales with strides {data.stride()}",
                "scales",
                "pass a contiguous tensor, not a transposed view",
            )
        self._check_shape(data, rows, columns)
        matrices = data.reshape(math.prod(data.shape[:-2]), math.prod(data.shape[-2:]))
        offsets = self.offsets(rows, columns).to(data.device)
        padding = torch.ones(matrices.shape[-1], dtype=torch.bool, device=data.device)
        padding[offsets.flatten()] = False
        stale = (padding & (matrices != 0)).nonzero()
        if len(stale):
            expert, byte = stale[0].tolist()
            raise LayoutError(
                f"padding byte is {matrices[expert, byte].item():#04x}, must be 0",
                f"expert {expert}, byte {byte}",
                "pack the scales again",
            )
        if expected is not None:
            self._check_values(
                matrices[:, offsets], as_bytes(expected, "expected").reshape(len(matrices), rows, columns), offsets
            )

    def _check_values(self, got: Tensor, expected: Tensor, offsets: Tensor) -> None:
        wrong = (got != expected).nonzero()
        if len(wrong):
            expert, row, column = wrong[0].tolist()
            raise LayoutError(
                f"scale is {got[tuple(wrong[0])].item():#04x}, expected {expected[tuple(wrong[0])].item():#04x}",
                f"expert {expert}, row {row}, column {column} (byte {offsets[row, column].item()} of {self.tag})",
                "check the layout that the scales were written in",
            )

    def _check_shape(self, data: Tensor, rows: int, columns: int) -> None:
        if tuple(data.shape[-2:]) != self.shape(rows, columns):
            raise LayoutError(
                f"shape {tuple(data.shape[-2:])} is not {self.tag} of {rows} rows and {columns} scale columns",
                f"expected {self.shape(rows, columns)}",
                "check the order of rows and columns, and the padding",
            )


@dataclass(frozen=True)
class Plain(Layout):
    """Row-major ``[rows, columns]``, or ``[columns, rows]`` as fused checkpoints with K first have it; not padded."""

    transposed: bool = False

    @property
    def tag(self) -> str:
        """``linear`` or ``transposed``."""
        return "transposed" if self.transposed else ScaleLayout.LINEAR.value

    def shape(self, rows: int, columns: int) -> tuple[int, int]:
        """As the tag says."""
        return (columns, rows) if self.transposed else (rows, columns)

    def offset(self, row: Tensor, column: Tensor, rows: int, columns: int) -> Tensor:
        """``row·columns + column``, or ``column·rows + row``."""
        return column * rows + row if self.transposed else row * columns + column

    def arrange(self, padded: Tensor) -> Tensor:
        """The matrix or its transpose."""
        return padded.transpose(-1, -2) if self.transposed else padded

    def restore(self, packed: Tensor) -> Tensor:
        """The matrix or its transpose: its own inverse."""
        return self.arrange(packed)


@dataclass(frozen=True)
class Tiled(Layout):
    """Tiles of ``row_tile`` rows × 4 scale columns, each contiguous; K tiles run fastest.

    Within a tile, rows r, r + ``lanes``, r + 2·``lanes`` … lie side by side, 4 bytes each. ``row_tile=128, lanes=32``
    is what the block-scaled tensor cores load (CUTLASS, cuBLAS); ``row_tile=8, lanes=8`` is the form for few rows
    (TensorRT-LLM R8c4).
    """

    row_tile: int
    lanes: int

    @property
    def groups(self) -> int:
        """Rows that lie side by side."""
        return self.row_tile // self.lanes

    @property
    def tag(self) -> str:
        """``swizzle_128x4``, ``swizzle_8x4``."""
        return f"swizzle_{self.row_tile}x4"

    def shape(self, rows: int, columns: int) -> tuple[int, int]:
        """The padded matrix's, whose bytes are in another order."""
        return self.padded(rows, columns)

    def padded(self, rows: int, columns: int) -> tuple[int, int]:
        """Whole tiles."""
        return round_up(rows, self.row_tile), round_up(columns, 4)

    def offset(self, row: Tensor, column: Tensor, rows: int, columns: int) -> Tensor:
        """Of the tile, then of the lane, the row group and the column within it."""
        tile = (row // self.row_tile) * (round_up(columns, 4) // 4) + column // 4
        within = (row % self.lanes) * (4 * self.groups) + (row % self.row_tile) // self.lanes * 4 + column % 4
        return tile * (self.row_tile * 4) + within

    def arrange(self, padded: Tensor) -> Tensor:
        """Tile rows, groups, lanes, tile columns, columns → tile rows, tile columns, lanes, groups, columns."""
        rows, columns = padded.shape[-2:]
        tiles = padded.reshape(*padded.shape[:-2], rows // self.row_tile, self.groups, self.lanes, columns // 4, 4)
        return tiles.movedim((-2, -3, -4), (-4, -3, -2)).reshape(*padded.shape[:-2], rows, columns)

    def restore(self, packed: Tensor) -> Tensor:
        """The same moves back."""
        rows, columns = packed.shape[-2:]
        tiles = packed.reshape(*packed.shape[:-2], rows // self.row_tile, columns // 4, self.lanes, self.groups, 4)
        return tiles.movedim((-4, -3, -2), (-2, -3, -4)).reshape(*packed.shape[:-2], rows, columns)


LINEAR = Plain()
TRANSPOSED = Plain(transposed=True)
SWIZZLE_128X4 = Tiled(row_tile=128, lanes=32)
SWIZZLE_8X4 = Tiled(row_tile=8, lanes=8)
LAYOUTS: dict[str, Layout] = {layout.tag: layout for layout in (LINEAR, TRANSPOSED, SWIZZLE_128X4, SWIZZLE_8X4)}


def scale_layout(choice: ScaleLayout) -> Layout:
    """The layout that a spec's choice names."""
    return LAYOUTS[choice.value]


@dataclass(frozen=True, kw_only=True)
class ScaleTensor:
    """Scales that know how they lie: bytes, layout, and the logical rows and columns.

    Raises:
        LayoutError: on construction, when the bytes are not contiguous or their shape is not the layout's; so a
            transposed view is refused also where the matrix is square.
    """

    data: Tensor
    layout: Layout
    rows: int
    columns: int

    def __post_init__(self) -> None:
        self.layout.validate(self.data, self.rows, self.columns)

    @classmethod
    def linear(cls, scales: Tensor) -> "ScaleTensor":
        """Tags linear scales ``[..., rows, columns]``."""
        return cls(data=scales, layout=LINEAR, rows=scales.shape[-2], columns=scales.shape[-1])

    def pack(self, layout: Layout) -> "ScaleTensor":
        """Linear scales in ``layout``.

        Raises:
            LayoutError: they are not linear: a second swizzle would scramble them.
        """
        self.require(LINEAR)
        return ScaleTensor(data=layout.pack(self.data), layout=layout, rows=self.rows, columns=self.columns)

    def unpack(self) -> "ScaleTensor":
        """The same scales, linear."""
        return ScaleTensor.linear(self.layout.unpack(self.data, self.rows, self.columns))

    def require(self, layout: Layout) -> Tensor:
        """The bytes, if they lie in ``layout``.

        Raises:
            LayoutError: they lie in another.
        """
        if self.layout != layout:
            raise LayoutError(
                f"scales lie in {self.layout.tag}, {layout.tag} is needed",
                f"{self.rows} rows × {self.columns} scale columns",
                f"unpack them, then pack them as {layout.tag}",
            )
        return self.data
