"""Faults put into the device library on purpose: each must make the byte comparison fail."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from kernels.cases import DYNAMIC, SWIZZLED, Case, buffers
from kernels.chain import variant_for
from kernels.compare import check_op
from kernels.harness import Workshop

from moegen.core.enums import CombineMode, Epilogue, OpKind, RouterWeight, TokenDtype
from moegen.core.ops import Numerics
from moegen.core.paths import data_root

PLAIN = Case()
FUSED = Case(epilogue=Epilogue.FUSED_FP4, row_scales=SWIZZLED, weight_scales=SWIZZLED, bias=True)
WEIGHTED = Case(numerics=Numerics(router_weight=RouterWeight.PRE_QUANT))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A replacement in one file below ``templates/cpu`` that ``case``'s op of ``kind`` must show."""

    file: str
    right: str
    wrong: str
    kind: OpKind
    case: Case = FUSED


FAULTS = {
    "swizzle order": Fault(file="device/scales.h", right="row % 32 * 16", wrong="row % 16 * 32", kind=OpKind.QUANTIZE),
    "expert stride without padded rows": Fault(
        file="device/operands.h",
        right="expert * Scales::bytes(N)",
        wrong="expert * N * Scales::columns",
        kind=OpKind.GEMM2,
    ),
    "stale code pitch": Fault(
        file="device/code_sink.h",
        right="std::memset(codes + row * kPitch + kBytes, 0, kPitch - kBytes);",
        wrong="",
        kind=OpKind.GEMM1,
        case=Case(epilogue=Epilogue.FUSED_FP4, intermediate=80, hidden=144),
    ),
    "stale scale columns": Fault(
        file="device/code_sink.h",
        right="Index block = Scales::columns; block < Scales::padded_columns",
        wrong="Index block = Scales::columns; block < Scales::columns",
        kind=OpKind.QUANTIZE,
    ),
    "stale scale rows": Fault(
        file="device/code_sink.h",
        right="row < Scales::padded_rows(rows)",
        wrong="row < rows",
        kind=OpKind.GEMM1,
    ),
    "stale padding rows": Fault(
        file="gemm1.cc.j2",
        right="row < block.tile.first_row + Layer::row_tile; ++row) {\n{% if op.fused_fp4 %}\n      output.clear",
        wrong="row < block.tile.first_row; ++row) {\n{% if op.fused_fp4 %}\n      output.clear",
        kind=OpKind.GEMM1,
    ),
    "padding rows quantised": Fault(
        file="device/quantize.h",
        right="if (row_slot[row] < 0) {",
        wrong="if (row_slot[row] < -1) {",
        kind=OpKind.QUANTIZE,
    ),
    "amax of half a block": Fault(
        file="device/quantize.h",
        right="Index i = 0; i < count; ++i) {\n        const std::int32_t candidate",
        wrong="Index i = 0; i < 1; ++i) {\n        const std::int32_t candidate",
        kind=OpKind.QUANTIZE,
        case=Case(x_scale=DYNAMIC, tokens=2),
    ),
    "sign of a code": Fault(
        file="device/decode.h", right="(codes & 8u) << 28", wrong="(codes & 8u) << 27", kind=OpKind.GEMM2
    ),
    "last chunk not cut": Fault(
        file="device/gemm.h",
        right="minimum(S::kDepth, Weights::kDepth - first)",
        wrong="S::kDepth",
        kind=OpKind.GEMM1,
        case=PLAIN,
    ),
    "gate taken for up": Fault(
        file="device/row_ops.h",
        right="up[group / 2 + lane] = values[group + kHalf + lane];",
        wrong="up[group / 2 + lane] = values[group + lane];",
        kind=OpKind.GEMM1,
    ),
    "one alpha for both halves": Fault(
        file="gemm1.cc.j2", right="alpha[2 * expert + 1]", wrong="alpha[2 * expert]", kind=OpKind.GEMM1
    ),
    "bias of another expert": Fault(
        file="gemm1.cc.j2",
        right="bias + expert * kN + block.first_column",
        wrong="bias + block.first_column",
        kind=OpKind.GEMM1,
    ),
    "router weight of another slot": Fault(
        file="gemm1.cc.j2",
        right="weights_of_slots[slots[row]]",
        wrong="weights_of_slots[row % dims.TK]",
        kind=OpKind.GEMM1,
        case=WEIGHTED,
    ),
    "first expert forgotten": Fault(
        file="device/route.h",
        right="static_cast<std::uint64_t>(first_expert)",
        wrong="0 * static_cast<std::uint64_t>(first_expert)",
        kind=OpKind.ROUTE,
    ),
    "combine without fma": Fault(
        file="device/combine.h",
        right="__builtin_fmaf(topk_weights[slot], value, sum)",
        wrong="topk_weights[slot] * value + sum",
        kind=OpKind.COMBINE,
        case=Case(tokens=211, hidden=592, dtype=TokenDtype.FP16),
    ),
    "combine in another order": Fault(
        file="device/combine.h",
        right="Index slot = token * TopK; slot < (token + 1) * TopK; ++slot",
        wrong="Index slot = (token + 1) * TopK - 1; slot >= token * TopK; --slot",
        kind=OpKind.COMBINE,
        case=Case(tokens=211, hidden=592, dtype=TokenDtype.FP16),
    ),
    "atomic sum of rounded rows": Fault(
        file="gemm2.cc.j2",
        right="moegen::atomic_add(",
        wrong="moegen::round_values<Bf16>(v, block.columns); moegen::atomic_add(",
        kind=OpKind.GEMM2,
        case=Case(combine=CombineMode.ATOMIC),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_seen(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    shutil.copytree(data_root("templates") / "cpu", tmp_path / "templates" / "cpu")
    path = tmp_path / "templates" / "cpu" / fault.file
    text = path.read_text()
    assert fault.right in text, f"{fault.file} no longer holds {fault.right!r}"
    path.write_text(text.replace(fault.right, fault.wrong))
    (tmp_path / "objects").mkdir()
    faulty = Workshop(tmp_path / "objects", tmp_path / "templates")
    op, given = fault.case.ops()[fault.kind], buffers(fault.case)
    kernel = faulty.kernel(variant_for(op))
    with pytest.raises(AssertionError, match=r"wrong|must not define"):
        check_op(kernel, op, fault.case, given)
