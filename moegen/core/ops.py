"""One op of a pipeline as a value: what to compute, with no word on how."""

from dataclasses import dataclass, field, fields
from typing import Any

from moegen.core.canonical import LATER
from moegen.core.enums import (
    ActFormat,
    ActivationKind,
    ActivationMath,
    ActScale,
    CombineMode,
    Contract,
    Epilogue,
    OpKind,
    Round,
    RouterWeight,
    ScaleLayout,
    TokenDtype,
)


@dataclass(frozen=True, kw_only=True)
class Activation:
    """Activation and its constants; a constant that a kind does not use is None.

    ``alpha``, ``beta``, ``limit``: swiglu_oai; ``limit``: swiglu_clamp, swiglustep; ``beta``, ``linear_beta``: situ
    (``linear_beta`` None leaves the up half as it is).
    """

    kind: ActivationKind
    alpha: float | None = None
    beta: float | None = None
    limit: float | None = None
    linear_beta: float | None = None


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Everything that decides bytes in the exact domain; two pipelines compare only when these are equal."""

    contract: Contract = Contract.TE
    gate_round: Round = Round.FP32
    pre_quant_round: Round = Round.FP32
    router_weight: RouterWeight = RouterWeight.COMBINE
    activation_math: ActivationMath = ActivationMath.EXACT


@dataclass(frozen=True, kw_only=True)
class OpSpec:
    """What one kernel computes.

    Every field that may change a kernel's output bytes or its arguments is here, and all of them go into its key.
    Fields that an op does not use stay at their defaults, and sizes that it does not use are 0, so that equal kernels
    have equal OpSpecs.

    Attributes:
        experts: experts on this rank (E_local), all of whose weights are in the bank.
        top_k: slots per token.
        hidden, intermediate: H and I in elements, unpadded.
        act_format: format of the rows that the matrix products read.
        row_tile: rows of an expert are padded to a multiple of this many.
        gather: quantize only: rows come from ``x`` through ``row_slot`` (gemm1's input); else from ``h_rows``.
        act_scale: quantize, deinterleave_quantize: where their second-level scale comes from.
        bias: a bias is added after alpha in gemm1 and gemm2.
        fused_combine: gemm2 only: adds weighted rows into ``y_acc`` instead of writing ``out_rows``.
        rows_layout: private order of ``x_rows`` and ``h_rows``, of ``x_products`` and ``h_products``, and of columns of
            ``x_pieces`` (``""``: row-major); such rows are padded to 128 columns.
        decoded: W4A4 only: quantised rows pass to a gemm as products of code and block scale, exact in bf16, instead of
            as codes and scales.
        arranged: W4A16 gemm1 only: it gathers from ``x_pieces``, which an ``arrange`` op has put into the column order
            of ``rows_layout``, instead of from ``x``.
    """

    kind: OpKind
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    dtype: TokenDtype = TokenDtype.BF16
    act_format: ActFormat = ActFormat.BF16
    scale_layout: ScaleLayout = ScaleLayout.LINEAR
    weight_scale_layout: ScaleLayout = ScaleLayout.LINEAR
    row_tile: int = 1
    epilogue: Epilogue | None = None
    activation: Activation | None = None
    numerics: Numerics | None = None
    bias: bool = False
    gather: bool = False
    act_scale: ActScale | None = None
    ids_int64: bool = True
    combine: CombineMode | None = None
    fused_combine: bool = False
    weight_pack: str = ""
    rows_layout: str = ""
    decoded: bool = field(default=False, metadata=LATER)
    arranged: bool = field(default=False, metadata=LATER)

    @property
    def gated(self) -> bool:
        """True when gemm1 has a gate half and an up half."""
        return self.activation is not None and self.activation.kind.gated

    @property
    def w4a4(self) -> bool:
        """True when the matrix products read rows of E2M1 values."""
        return self.act_format is ActFormat.NVFP4

    @property
    def reads_codes(self) -> bool:
        """True when those rows come as codes and scales."""
        return self.w4a4 and not self.decoded

    @property
    def n(self) -> int:
        """Weight rows of a gemm: gate and up together for gemm1 (2I or I), H for gemm2."""
        if self.kind is OpKind.GEMM1:
            return 2 * self.intermediate if self.gated else self.intermediate
        return self.hidden

    @property
    def k(self) -> int:
        """Depth of a gemm, or columns of a quantised row, in elements."""
        if self.kind is OpKind.QUANTIZE:
            return self.hidden if self.gather else self.intermediate
        if self.kind in (OpKind.GEMM1, OpKind.GATHER, OpKind.ARRANGE):
            return self.hidden
        return self.intermediate


_ENUMS: dict[str, Any] = {
    "kind": OpKind,
    "dtype": TokenDtype,
    "act_format": ActFormat,
    "scale_layout": ScaleLayout,
    "weight_scale_layout": ScaleLayout,
    "epilogue": Epilogue,
    "act_scale": ActScale,
    "combine": CombineMode,
}


def op_from_json(data: dict[str, Any]) -> OpSpec:
    """Reads back what ``canonical.plain(op)`` wrote.

    Raises:
        TypeError: on unknown or missing fields.
        ValueError: on a value outside an enum.
    """
    values = dict(data)
    for name, enum in _ENUMS.items():
        if values.get(name) is not None:
            values[name] = enum(values[name])
    if values.get("activation") is not None:
        act: dict[str, Any] = dict(values["activation"])
        act["kind"] = ActivationKind(act["kind"])
        values["activation"] = Activation(**act)
    if values.get("numerics") is not None:
        values["numerics"] = numerics_from_json(values["numerics"])
    return OpSpec(**values)


def numerics_from_json(data: dict[str, Any]) -> Numerics:
    """Reads back what ``canonical.plain(numerics)`` wrote; raises as :func:`op_from_json`."""
    enums: dict[str, Any] = {
        "contract": Contract,
        "gate_round": Round,
        "pre_quant_round": Round,
        "router_weight": RouterWeight,
        "activation_math": ActivationMath,
    }
    unknown = set(data) - {f.name for f in fields(Numerics)}
    if unknown:
        raise TypeError(f"unknown numerics fields: {sorted(unknown)}")
    return Numerics(**{name: enums[name](value) for name, value in data.items()})
