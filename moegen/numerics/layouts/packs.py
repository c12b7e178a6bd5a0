"""Weight packs: how a bank of quantised expert weights lies in memory for the kernels that read it.

A bank comes in as its logical halves (gate and up, or one projection), codes and linear scales as a checkpoint has
them. ``rows8`` is the public pack. Private packs of a target register themselves with :func:`register_pack`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from moegen.core.abi import BLOCK, code_pitch
from moegen.core.enums import ScaleLayout
from moegen.core.errors import LayoutError, TensorError
from moegen.numerics.layouts.gate_up import ROWS8
from moegen.numerics.layouts.scales import LINEAR, scale_layout
from moegen.numerics.tensors import as_bytes

GATED_ROWS = ROWS8
"""Order of a gated W1's rows, scales and bias in every public pack."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One logical weight of all experts: ``codes [E, N, K/2]`` and linear ``scales [E, N, K/16]``, uint8 or a
    one-byte float.

    Raises:
        TensorError: on construction, when the two shapes do not belong together.
    """

    codes: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        experts, rows, half_depth = self.codes.shape
        if tuple(self.scales.shape) != (experts, rows, 2 * half_depth // BLOCK) or 2 * half_depth % BLOCK:
            raise TensorError(
                f"codes {tuple(self.codes.shape)} and scales {tuple(self.scales.shape)} do not belong together",
                "weights",
                "codes are [E, N, K/2], scales [E, N, K/16]; check for a transposed scale tensor",
            )

    @property
    def experts(self) -> int:
        """E."""
        return self.codes.shape[0]

    @property
    def rows(self) -> int:
        """N of this half."""
        return self.codes.shape[1]

    @property
    def depth(self) -> int:
        """K in elements."""
        return self.codes.shape[2] * 2


Halves = tuple[Projection, ...]
"""(gate, up) of a gated W1, or one projection."""


class Pack(Protocol):
    """A weight pack. ``name`` is what ``OpSpec.weight_pack`` says."""

    @property
    def name(self) -> str:
        """Unique name."""
        ...

    def pack(self, halves: Halves, layout: ScaleLayout) -> dict[str, Tensor]:
        """Tensors by ABI suffix: a public pack's ``codes`` and ``scales``, or a private one's ``packed [E, bytes]``."""
        ...

    def unpack(
        self, tensors: Mapping[str, Tensor], *, rows: int, depth: int, halves: int, layout: ScaleLayout
    ) -> Halves:
        """Inverse of :meth:`pack`; ``rows`` are those of one half, ``depth`` is K in elements."""
        ...


class Rows8:
    """The public pack: codes ``[E, N, pitch]``, 0 past K/2; gated rows interleaved by 8; scales in a given layout."""

    name = "rows8"

    def pack(self, halves: Halves, layout: ScaleLayout) -> dict[str, Tensor]:
        """``codes`` and ``scales``; raises LayoutError when two halves differ in shape or I is not a multiple of 8."""
        codes = fuse_rows(tuple(as_bytes(half.codes, "codes") for half in halves))
        scales = fuse_rows(tuple(as_bytes(half.scales, "scales") for half in halves))
        pitch = code_pitch(halves[0].depth)
        return {
            "codes": functional.pad(codes, (0, pitch - codes.shape[-1])).contiguous(),
            "scales": scale_layout(layout).pack(scales),
        }

    def unpack(
        self, tensors: Mapping[str, Tensor], *, rows: int, depth: int, halves: int, layout: ScaleLayout
    ) -> Halves:
        """The halves that were packed; raises LayoutError when a tensor's shape is not this pack's."""
        codes, packed = tensors["codes"], tensors["scales"]
        if tuple(codes.shape[1:]) != (rows * halves, code_pitch(depth)):
            raise LayoutError(
                f"codes of shape {tuple(codes.shape)}",
                self.name,
                f"expected [E, {rows * halves}, {code_pitch(depth)}]",
            )
        scales = scale_layout(layout).unpack(packed, rows * halves, depth // BLOCK)
        parts = zip(split_rows(codes[..., : depth // 2], halves), split_rows(scales, halves), strict=True)
        return tuple(Projection(codes=code, scales=scale) for code, scale in parts)


def fuse_rows(halves: tuple[Tensor, ...], dim: int = -2) -> Tensor:
    """One half as it is, or gate and up interleaved by 8 along ``dim`` (-1 for a bias ``[E, N]``)."""
    return halves[0] if len(halves) == 1 else GATED_ROWS.pack(halves[0], halves[1], dim)


def split_rows(fused: Tensor, halves: int, dim: int = -2) -> tuple[Tensor, ...]:
    """Inverse of :func:`fuse_rows`."""
    return (fused,) if halves == 1 else GATED_ROWS.unpack(fused, dim)


_PACKS: dict[str, Pack] = {}


def register_pack(pack: Pack) -> None:
    """Makes a pack known by its name.

    Raises:
        LayoutError: another pack has that name.
    """
    if pack.name in _PACKS and type(_PACKS[pack.name]) is not type(pack):
        raise LayoutError(f"two packs are named {pack.name}", type(pack).__name__, "choose another name")
    _PACKS[pack.name] = pack


def weight_pack(name: str) -> Pack:
    """The pack of that name.

    Raises:
        LayoutError: none is registered.
    """
    if name not in _PACKS:
        raise LayoutError(f"no weight pack {name!r}", "weights", f"one of {sorted(_PACKS)}")
    return _PACKS[name]


register_pack(Rows8())


def pack_rows8(halves: Halves, layout: ScaleLayout) -> tuple[Tensor, Tensor]:
    """(codes, scales) of the public pack ``rows8``."""
    packed = weight_pack("rows8").pack(halves, layout)
    return packed["codes"], packed["scales"]


def check_scales(name: str, scales: Tensor, rows: int, columns: int) -> Tensor:
    """Linear scales of a checkpoint, checked before anything is packed.

    Returns:
        uint8 ``[..., rows, columns]``.

    Raises:
        LayoutError: transposed, another shape, or a NaN byte; ``where`` names the tensor and the first wrong element.
    """
    data = as_bytes(scales, name)
    if tuple(data.shape[-2:]) != (rows, columns) or not data.is_contiguous():
        raise LayoutError(
            f"scales {tuple(data.shape)} with strides {data.stride()}",
            name,
            f"pass contiguous [..., {rows}, {columns}]; a transposed tensor is unpacked with layouts.TRANSPOSED first",
        )
    LINEAR.validate(data, rows, columns)
    wrong = torch.nonzero((data & 0x7F) == 0x7F)
    if len(wrong):
        raise LayoutError("scale is NaN (0x7F)", f"{name}{wrong[0].tolist()}", "export the checkpoint again")
    return data
