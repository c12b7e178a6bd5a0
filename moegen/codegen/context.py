"""What a template sees: literals only. Every decision is taken before rendering."""

import struct

from pydantic import BaseModel, ConfigDict

from moegen.codegen.catalog import Scratch
from moegen.codegen.schedule import Schedule, Value
from moegen.core.abi import BLOCK, Argument, arguments, code_pitch, public_pack, round_up
from moegen.core.enums import ActScale, Epilogue, Round, RouterWeight, ScaleLayout, Target, TokenDtype
from moegen.core.ops import OpSpec

GENERATOR = "moegen codegen 1"
"""Version of the rules that turn a variant into text; raised when templates change meaning without changing text."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArgumentFacts(_Model):
    """One parameter of the entry.

    ``c_type``/``cuda_type``/``dsl_type`` name the element (bf16 and fp16 are raw ``std::uint16_t`` on a CPU);
    ``dl_code`` and ``dl_bits`` are its DLPack dtype; ``shape`` holds dimension names of ``core.abi.Dims`` or numbers.
    """

    name: str
    dtype: str
    c_type: str
    cuda_type: str
    dsl_type: str
    dl_code: str
    dl_bits: int
    scalar: bool
    writable: bool
    rank: int
    shape: tuple[str, ...]


class OpFacts(_Model):
    """An OpSpec flattened to literals; enum values are lower-case names for choosing one library function.

    Sizes are in elements unless named ``pitch`` (bytes). ``n`` x ``k`` is the gemm's weight matrix of one expert.
    ``*_scales`` are scale columns (K/16); ``*_scale_pitch`` the columns a row of scales takes in its layout.
    Activation constants are rounded to fp32; None where the kind has no such constant.
    """

    kind: str
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    n: int
    k: int
    halves: int
    row_tile: int
    hidden_pitch: int
    intermediate_pitch: int
    k_pitch: int
    hidden_scales: int
    intermediate_scales: int
    k_scales: int
    hidden_scale_pitch: int
    intermediate_scale_pitch: int
    k_scale_pitch: int
    weight_scale_rows: int
    weight_scale_pitch: int
    token: str
    gated: bool
    w4a4: bool
    decoded: bool
    epilogue: str
    fused_fp4: bool
    interleaved: bool
    compact: bool
    swizzled_scales: bool
    swizzled_weight_scales: bool
    public_pack: bool
    weight_pack: str
    rows_layout: str
    bias: bool
    gather: bool
    arranged: bool
    ids_int64: bool
    static_scale: bool
    scale_per_expert: bool
    fused_combine: bool
    combine: str
    activation: str
    alpha: float | None
    beta: float | None
    limit: float | None
    linear_beta: float | None
    contract: str
    gate_round_bf16: bool
    pre_quant_round_bf16: bool
    router_weight: str
    weight_on_input: bool
    weight_pre_quant: bool
    weight_on_combine: bool
    fast_math: bool


class RenderContext(_Model):
    """The whole world of a template. ``symbol`` is the entry's exported name."""

    variant: str
    generator: str
    symbol: str
    op: OpFacts
    arguments: tuple[ArgumentFacts, ...]
    schedule: dict[str, Value]
    includes: tuple[str, ...]


_TYPES: dict[str, tuple[str, str, str, str, int]] = {
    "bf16": ("std::uint16_t", "__nv_bfloat16", "cutlass.BFloat16", "kDLBfloat", 16),
    "f16": ("std::uint16_t", "__half", "cutlass.Float16", "kDLFloat", 16),
    "f32": ("float", "float", "cutlass.Float32", "kDLFloat", 32),
    "u8": ("std::uint8_t", "uint8_t", "cutlass.Uint8", "kDLUInt", 8),
    "i32": ("std::int32_t", "int32_t", "cutlass.Int32", "kDLInt", 32),
    "i64": ("std::int64_t", "int64_t", "cutlass.Int64", "kDLInt", 64),
    "int": ("std::int64_t", "int64_t", "cutlass.Int64", "kDLInt", 64),
}


def argument_facts(argument: Argument) -> ArgumentFacts:
    """Spells an ABI argument out for every language."""
    c_type, cuda_type, dsl_type, dl_code, dl_bits = _TYPES[argument.dtype]
    return ArgumentFacts(
        name=argument.name,
        dtype=argument.dtype,
        c_type=c_type,
        cuda_type=cuda_type,
        dsl_type=dsl_type,
        dl_code=dl_code,
        dl_bits=dl_bits,
        scalar=argument.dtype == "int",
        writable=argument.access != "read",
        rank=len(argument.shape),
        shape=tuple(str(size) for size in argument.shape),
    )


def entry_arguments(op: OpSpec, target: Target, scratch: Scratch) -> tuple[Argument, ...]:
    """Every parameter of a variant's entry: the ABI's, then ``scratch`` where it has any, then ``threads`` on a CPU."""
    extra: list[Argument] = []
    if scratch.any:
        extra.append(Argument(name="scratch", dtype="u8", shape=("*",), role="workspace", access="update"))
    if target is Target.CPU:
        extra.append(Argument(name="threads", dtype="int", shape=(), role="scalar"))
    return (*arguments(op), *extra)


def _fp32(value: float | None) -> float | None:
    return None if value is None else struct.unpack("f", struct.pack("f", value))[0]


def op_facts(op: OpSpec) -> OpFacts:
    """Flattens ``op``; everything a template would have to compute is computed here."""
    swizzled = op.scale_layout is ScaleLayout.SWIZZLE_128X4
    weight_swizzled = op.weight_scale_layout is ScaleLayout.SWIZZLE_128X4
    activation, numerics = op.activation, op.numerics
    router_weight = numerics.router_weight if numerics else RouterWeight.COMBINE

    def pitch(columns: int, in_blocks: bool) -> int:
        return round_up(columns // BLOCK, 4) if in_blocks else columns // BLOCK

    return OpFacts(
        kind=op.kind.value,
        experts=op.experts,
        top_k=op.top_k,
        hidden=op.hidden,
        intermediate=op.intermediate,
        n=op.n,
        k=op.k,
        halves=2 if op.gated else 1,
        row_tile=op.row_tile,
        hidden_pitch=code_pitch(op.hidden),
        intermediate_pitch=code_pitch(op.intermediate),
        k_pitch=code_pitch(op.k),
        hidden_scales=op.hidden // BLOCK,
        intermediate_scales=op.intermediate // BLOCK,
        k_scales=op.k // BLOCK,
        hidden_scale_pitch=pitch(op.hidden, swizzled),
        intermediate_scale_pitch=pitch(op.intermediate, swizzled),
        k_scale_pitch=pitch(op.k, swizzled),
        weight_scale_rows=round_up(op.n, 128) if weight_swizzled else op.n,
        weight_scale_pitch=pitch(op.k, weight_swizzled),
        token="fp16" if op.dtype is TokenDtype.FP16 else "bf16",
        gated=op.gated,
        w4a4=op.w4a4,
        decoded=op.decoded,
        epilogue=op.epilogue.value if op.epilogue else "",
        fused_fp4=op.epilogue is Epilogue.FUSED_FP4,
        interleaved=op.epilogue is Epilogue.INTERLEAVED,
        compact=op.epilogue is Epilogue.COMPACT,
        swizzled_scales=swizzled,
        swizzled_weight_scales=weight_swizzled,
        public_pack=public_pack(op),
        weight_pack=op.weight_pack,
        rows_layout=op.rows_layout,
        bias=op.bias,
        gather=op.gather,
        arranged=op.arranged,
        ids_int64=op.ids_int64,
        static_scale=op.act_scale is ActScale.STATIC,
        scale_per_expert=op.act_scale is ActScale.STATIC and not op.gather,
        fused_combine=op.fused_combine,
        combine=op.combine.value if op.combine else "",
        activation=activation.kind.value if activation else "",
        alpha=_fp32(activation.alpha) if activation else None,
        beta=_fp32(activation.beta) if activation else None,
        limit=_fp32(activation.limit) if activation else None,
        linear_beta=_fp32(activation.linear_beta) if activation else None,
        contract=numerics.contract.value if numerics else "",
        gate_round_bf16=numerics is not None and numerics.gate_round is Round.BF16,
        pre_quant_round_bf16=numerics is not None and numerics.pre_quant_round is Round.BF16,
        router_weight=router_weight.value,
        weight_on_input=router_weight is RouterWeight.INPUT,
        weight_pre_quant=router_weight is RouterWeight.PRE_QUANT,
        weight_on_combine=router_weight is RouterWeight.COMBINE,
        fast_math=numerics is not None and numerics.activation_math.value == "fast",
    )


def render_context(
    op: OpSpec, schedule: Schedule, variant: str, scratch: Scratch, includes: tuple[str, ...]
) -> RenderContext:
    """Builds the context of one variant; ``variant`` is its canonical name."""
    parameters = entry_arguments(op, schedule.family.target, scratch)
    return RenderContext(
        variant=variant,
        generator=GENERATOR,
        symbol=op.kind.value,
        op=op_facts(op),
        arguments=tuple(argument_facts(parameter) for parameter in parameters),
        schedule=dict(schedule.as_dict()),
        includes=includes,
    )
