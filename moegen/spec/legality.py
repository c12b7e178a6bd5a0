"""The table of legal cells (activation format × gate × epilogue), read by the spec's checks and by the planner."""

from dataclasses import dataclass

from moegen.core.enums import ActFormat, ActScale, Epilogue, OpKind

#: (format, gated, epilogue) to the ops between gemm1 and gemm2; a cell that is missing is refused.
CELLS: dict[tuple[ActFormat, bool, Epilogue], tuple[OpKind, ...]] = {
    (ActFormat.NVFP4, True, Epilogue.INTERLEAVED): (OpKind.DEINTERLEAVE_QUANTIZE,),
    (ActFormat.NVFP4, True, Epilogue.COMPACT): (OpKind.QUANTIZE,),
    (ActFormat.NVFP4, True, Epilogue.FUSED_FP4): (),
    (ActFormat.BF16, True, Epilogue.INTERLEAVED): (OpKind.DEINTERLEAVE,),
    (ActFormat.BF16, True, Epilogue.COMPACT): (),
    (ActFormat.NVFP4, False, Epilogue.COMPACT): (OpKind.QUANTIZE,),
    (ActFormat.NVFP4, False, Epilogue.FUSED_FP4): (),
    (ActFormat.BF16, False, Epilogue.COMPACT): (),
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a cell is not legal: the field to blame, the reason, and the way out."""

    field: str
    reason: str
    fix: str


def refusal(act_format: ActFormat, gated: bool, epilogue: Epilogue, gemm2_scale: ActScale | None) -> Refusal | None:
    """None for a legal cell, else why it is refused. ``gemm2_scale`` is None in W4A16."""
    if epilogue is Epilogue.INTERLEAVED and not gated:
        return Refusal(
            field="epilogues",
            reason="interleaved pairs a gate with an up half, and this activation has no gate",
            fix="use compact or fused_fp4",
        )
    if epilogue is Epilogue.FUSED_FP4 and act_format is ActFormat.BF16:
        return Refusal(
            field="epilogues",
            reason="fused_fp4 writes FP4 rows, and with activations.format bf16 gemm2 reads bf16 rows",
            fix="use compact or interleaved, or set activations.format to nvfp4",
        )
    if epilogue is Epilogue.FUSED_FP4 and gemm2_scale is not ActScale.STATIC:
        return Refusal(
            field="epilogues",
            reason="fused_fp4 quantises a row before the tensor's amax is known, so it needs a static gemm2 scale",
            fix="set activations.activation_scale.gemm2 to static, or drop fused_fp4",
        )
    return None


def middle(act_format: ActFormat, gated: bool, epilogue: Epilogue) -> tuple[OpKind, ...]:
    """Ops between gemm1 and gemm2 of a legal cell; raises KeyError for any other."""
    return CELLS[act_format, gated, epilogue]
