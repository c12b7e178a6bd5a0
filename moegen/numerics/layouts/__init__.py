"""Layouts as values: each knows how to pack, unpack and validate, and names the first element that is wrong."""

from moegen.numerics.layouts.expert_rows import ExpertRows
from moegen.numerics.layouts.gate_up import INTERLEAVES, ROWS8, GateUpRows, checkpoint_rows
from moegen.numerics.layouts.packs import (
    GATED_ROWS,
    Halves,
    Pack,
    Projection,
    Rows8,
    check_scales,
    fuse_rows,
    pack_rows8,
    register_pack,
    split_rows,
    weight_pack,
)
from moegen.numerics.layouts.scales import (
    LAYOUTS,
    LINEAR,
    SWIZZLE_8X4,
    SWIZZLE_128X4,
    TRANSPOSED,
    Layout,
    Plain,
    ScaleTensor,
    Tiled,
    scale_layout,
)
from moegen.numerics.layouts.sm90 import PACK as SM90_PACK
from moegen.numerics.layouts.sm90 import PIECES as SM90_PIECES_PACK

__all__ = [
    "GATED_ROWS",
    "INTERLEAVES",
    "LAYOUTS",
    "LINEAR",
    "ROWS8",
    "SM90_PACK",
    "SM90_PIECES_PACK",
    "SWIZZLE_8X4",
    "SWIZZLE_128X4",
    "TRANSPOSED",
    "ExpertRows",
    "GateUpRows",
    "Halves",
    "Layout",
    "Pack",
    "Plain",
    "Projection",
    "Rows8",
    "ScaleTensor",
    "Tiled",
    "check_scales",
    "checkpoint_rows",
    "fuse_rows",
    "pack_rows8",
    "register_pack",
    "scale_layout",
    "split_rows",
    "weight_pack",
]
