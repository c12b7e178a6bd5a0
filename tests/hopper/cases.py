"""The CPU suite's layers and batches, as sm_90a ops: private weight packs, private row order, groups of 8 rows."""

from dataclasses import dataclass, replace

import torch
from kernels import axes
from kernels.cases import PACK as PUBLIC_PACK
from kernels.cases import Case
from torch import Tensor

from moegen.codegen.catalogs.sm90 import CATALOG, ROW_TILE, ROWS_LAYOUT
from moegen.codegen.pipelines import Shape, pipeline_ops
from moegen.core.abi import BLOCK
from moegen.core.enums import OpKind, ScaleLayout
from moegen.core.ops import OpSpec
from moegen.numerics.layouts import scale_layout, weight_pack
from moegen.numerics.quantize import Quantized, unscaled_values
from moegen.numerics.reference import row_layout
from moegen.numerics.rounding import to_bf16

#: ``wide`` fills tiles of every width, ``long`` has more K units than any ring has stages; so have ``wide``'s widest.
GEOMETRIES = axes.GEOMETRIES | {
    "wide": {"hidden": 720, "intermediate": 592, "experts": 3, "top_k": 2, "tokens": 301},
    "long": {"hidden": 2064, "intermediate": 1616, "experts": 2, "top_k": 2, "tokens": 29},
}


@dataclass(frozen=True, kw_only=True)
class HopperCase(Case):
    """A case whose ops are those that planning makes for sm_90a."""

    row_tile: int = ROW_TILE
    decoded: bool = False
    arranged: bool = False

    def _shape(self) -> Shape:
        return Shape(
            epilogue=self.epilogue,
            combine=self.combine,
            row_tile=self.row_tile,
            rows_layout=ROWS_LAYOUT,
            fused_gather=self.fused_gather,
            decoded=self.decoded,
            arranged=self.arranged,
        )

    def pipeline(self) -> tuple[OpSpec, ...]:
        """All ops in launch order."""
        ops = pipeline_ops(self.spec(), self._shape(), (PUBLIC_PACK, PUBLIC_PACK))
        gemms = (OpKind.GEMM1, OpKind.GEMM2)
        return tuple(replace(op, weight_pack=CATALOG.weight_packs(op)[0]) if op.kind in gemms else op for op in ops)

    def ops(self) -> dict[OpKind, OpSpec]:
        """By kind; where a kind occurs twice (quantize), the one that gathers."""
        made: dict[OpKind, OpSpec] = {}
        for op in self.pipeline():
            made.setdefault(op.kind, op)
        return made

    def row_quantizer(self) -> OpSpec:
        """The quantize op that reads ``h_rows``."""
        return next(op for op in self.pipeline() if op.kind is OpKind.QUANTIZE and not op.gather)


def public(op: OpSpec) -> OpSpec:
    """The same op over the public pack: what the reference reads."""
    return replace(op, weight_pack=PUBLIC_PACK) if op.weight_pack else op


def private_buffers(case: HopperCase, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """``given`` with token rows and products in the private order and packed weights beside the public ones.

    Experts without rows get 0xFF bytes as packed weights.
    """
    layout, ops = row_layout(ROWS_LAYOUT), case.ops()
    made = dict(given)
    for name in ("x_rows", "h_rows"):
        made[name] = layout.pack(given[name])
    for name, columns in (("x", case.hidden), ("h", case.intermediate)):
        codes = given[f"{name}_codes"]
        scales = scale_layout(case.row_scales).unpack(given[f"{name}_scales"], len(codes), columns // BLOCK)
        made[f"{name}_products"] = layout.pack(to_bf16(unscaled_values(Quantized(codes=codes, scales=scales))))
    made["x_pieces"] = layout.arrange(given["x"])
    for name, kind, halves in (("w1", OpKind.GEMM1, 2 if case.gated else 1), ("w2", OpKind.GEMM2, 1)):
        op = ops[kind]
        half = op.intermediate if kind is OpKind.GEMM1 else op.hidden
        made[f"{name}_packed"] = _repack(op, given, name, half, halves, given["expert_rows"] == 0)
    return made


def _repack(op: OpSpec, given: dict[str, Tensor], name: str, rows: int, halves: int, idle: Tensor) -> Tensor:
    scales = given[f"{name}_scales"].clone()
    scales[idle] = 0x38
    tensors = {"codes": given[f"{name}_codes"], "scales": scales}
    parts = weight_pack(PUBLIC_PACK).unpack(
        tensors, rows=rows, depth=op.k, halves=halves, layout=op.weight_scale_layout
    )
    packed = weight_pack(op.weight_pack).pack(parts, ScaleLayout.LINEAR)["packed"]
    packed[idle] = 0xFF
    assert packed.dtype is torch.uint8
    return packed
