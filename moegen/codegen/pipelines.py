"""From a LayerSpec to the ops of each pipeline: the legality table, written out as OpSpecs."""

from dataclasses import dataclass, replace

from moegen.core.abi import arguments
from moegen.core.enums import (
    ActFormat,
    ActScale,
    CombineMode,
    Epilogue,
    OpKind,
    Round,
    RouterWeight,
    ScaleLayout,
    TokenDtype,
)
from moegen.core.ops import Numerics, OpSpec
from moegen.spec.legality import middle
from moegen.spec.models import LayerSpec


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What sets one op chain of a spec apart.

    ``rows_layout`` is the order of token rows between ops; ``fused_gather``: a W4A16 gemm1 gathers its rows itself;
    ``arranged``: from tokens that an op of their own has put into that order once, instead of from ``x``;
    ``decoded``: a quantising op of a W4A4 layer decodes what it rounds, and the gemm after it reads bf16 products;
    ``block``: one op computes the whole layer (W4A16, compact, ordered).
    """

    epilogue: Epilogue
    combine: CombineMode
    row_tile: int
    rows_layout: str = ""
    fused_gather: bool = True
    decoded: bool = False
    arranged: bool = False
    block: bool = False


def numerics_class(spec: LayerSpec, epilogue: Epilogue) -> Numerics:
    """The rounding a pipeline really does: modes that store rows in the token dtype round to it before quantising."""
    declared = spec.numerics.value()
    if epilogue is Epilogue.FUSED_FP4:
        return declared
    stored = Round.FP16 if spec.activations.dtype is TokenDtype.FP16 else Round.BF16
    return replace(declared, pre_quant_round=stored)


def pipeline_ops(spec: LayerSpec, shape: Shape, packs: tuple[str, str] = ("", "")) -> tuple[OpSpec, ...]:
    """Ops of one pipeline in launch order; ``packs`` are the weight packs of gemm1 and gemm2.

    A field that an op does not use keeps its default and a size that it does not use is 0, so that equal kernels of
    different pipelines and models are equal OpSpecs.
    """
    maker = _Maker(spec, shape)
    if shape.block:
        return (_with_rows_layout(maker.block(packs), shape.rows_layout),)
    between = middle(spec.activations.format, spec.activation.kind.gated, shape.epilogue)
    plain = (
        maker.route(),
        *maker.inputs(),
        maker.gemm1(packs[0]),
        *(maker.middle(kind) for kind in between),
        maker.gemm2(packs[1]),
        maker.combine(),
    )
    return tuple(_with_rows_layout(op, shape.rows_layout) for op in plain)


def _with_rows_layout(op: OpSpec, layout: str) -> OpSpec:
    """``op`` with a private row order, where it reads or writes rows of that kind at all."""
    private = replace(op, rows_layout=layout)
    return private if arguments(private) != arguments(op) else op


@dataclass(frozen=True)
class _Maker:
    spec: LayerSpec
    shape: Shape

    @property
    def numerics(self) -> Numerics:
        return numerics_class(self.spec, self.shape.epilogue)

    @property
    def w4a4(self) -> bool:
        return self.spec.activations.format is ActFormat.NVFP4

    def gemm2_scale(self) -> ActScale | None:
        scale = self.spec.activations.activation_scale
        return scale.gemm2 if scale else None

    def row_layout(self, codes: bool = True) -> ScaleLayout:
        """Order of rows' block scales; ``codes`` False: the op neither reads nor writes any."""
        return self.spec.scale_layout.activations if self.w4a4 and codes else ScaleLayout.LINEAR

    @property
    def decoded_middle(self) -> bool:
        """True when gemm2 reads products: a fused epilogue writes codes."""
        return self.shape.decoded and self.shape.epilogue is not Epilogue.FUSED_FP4

    def only_weight(self, *used: RouterWeight) -> RouterWeight:
        """The declared place of the router weight where an op acts on it, else the default."""
        place = self.spec.numerics.router_weight
        return place if place in used else RouterWeight.COMBINE

    def route(self) -> OpSpec:
        geometry = self.spec.geometry
        return OpSpec(
            kind=OpKind.ROUTE,
            experts=geometry.rank_experts,
            top_k=geometry.top_k,
            hidden=0,
            intermediate=0,
            row_tile=self.shape.row_tile,
        )

    def inputs(self) -> tuple[OpSpec, ...]:
        """What turns ``x`` into gemm1's rows: quantize, gather or arrange; nothing when gemm1 gathers from ``x``."""
        if not self.w4a4 and self.shape.fused_gather:
            return (self.arrange(),) if self.shape.arranged else ()
        scale = self.spec.activations.activation_scale
        place = self.only_weight(RouterWeight.INPUT)
        op = OpSpec(
            kind=OpKind.QUANTIZE if self.w4a4 else OpKind.GATHER,
            experts=0,
            top_k=self.spec.geometry.top_k,
            hidden=self.spec.geometry.hidden,
            intermediate=0,
            dtype=self.spec.activations.dtype,
            act_format=self.spec.activations.format,
            scale_layout=self.row_layout(not self.shape.decoded),
            row_tile=self.shape.row_tile,
            numerics=Numerics(contract=self.numerics.contract, router_weight=place),
            gather=True,
            act_scale=scale.gemm1 if scale else None,
            decoded=self.shape.decoded,
        )
        return (op,) if self.w4a4 else (replace(op, numerics=Numerics(router_weight=place)),)

    def arrange(self) -> OpSpec:
        return OpSpec(
            kind=OpKind.ARRANGE,
            experts=0,
            top_k=0,
            hidden=self.spec.geometry.hidden,
            intermediate=0,
            dtype=self.spec.activations.dtype,
        )

    def gemm1(self, pack: str) -> OpSpec:
        geometry, numerics = self.spec.geometry, self.numerics
        fused = self.shape.epilogue is Epilogue.FUSED_FP4
        gathers = not self.w4a4 and self.shape.fused_gather
        places = (RouterWeight.PRE_QUANT, RouterWeight.INPUT) if gathers else (RouterWeight.PRE_QUANT,)
        return OpSpec(
            kind=OpKind.GEMM1,
            experts=geometry.rank_experts,
            top_k=geometry.top_k,
            hidden=geometry.hidden,
            intermediate=geometry.intermediate,
            dtype=self.spec.activations.dtype,
            act_format=self.spec.activations.format,
            scale_layout=self.row_layout(fused or not self.shape.decoded),
            weight_scale_layout=self.spec.scale_layout.weights,
            row_tile=self.shape.row_tile,
            epilogue=self.shape.epilogue,
            activation=self.spec.activation_value(),
            numerics=replace(
                numerics,
                contract=numerics.contract if fused else Numerics().contract,
                router_weight=self.only_weight(*places),
            ),
            bias=self.spec.weights.bias,
            gather=gathers,
            weight_pack=pack,
            decoded=self.shape.decoded,
            arranged=gathers and self.shape.arranged,
        )

    def middle(self, kind: OpKind) -> OpSpec:
        geometry = self.spec.geometry
        if kind is OpKind.DEINTERLEAVE:
            return OpSpec(
                kind=kind,
                experts=0,
                top_k=0,
                hidden=0,
                intermediate=geometry.intermediate,
                dtype=self.spec.activations.dtype,
            )
        return OpSpec(
            kind=kind,
            experts=geometry.rank_experts,
            top_k=0,
            hidden=0,
            intermediate=geometry.intermediate,
            dtype=self.spec.activations.dtype,
            act_format=self.spec.activations.format,
            scale_layout=self.row_layout(not self.decoded_middle),
            row_tile=self.shape.row_tile,
            numerics=Numerics(contract=self.numerics.contract),
            act_scale=self.gemm2_scale(),
            decoded=self.decoded_middle,
        )

    def gemm2(self, pack: str) -> OpSpec:
        geometry = self.spec.geometry
        fused = self.shape.combine is CombineMode.ATOMIC
        place = self.spec.numerics.router_weight
        return OpSpec(
            kind=OpKind.GEMM2,
            experts=geometry.rank_experts,
            top_k=geometry.top_k if fused else 0,
            hidden=geometry.hidden,
            intermediate=geometry.intermediate,
            dtype=self.spec.activations.dtype,
            act_format=self.spec.activations.format,
            scale_layout=self.row_layout(not self.decoded_middle),
            weight_scale_layout=self.spec.scale_layout.weights,
            row_tile=self.shape.row_tile,
            numerics=Numerics(router_weight=place) if fused else None,
            bias=self.spec.weights.bias,
            act_scale=self.gemm2_scale(),
            fused_combine=fused,
            weight_pack=pack,
            decoded=self.decoded_middle,
        )

    def block(self, packs: tuple[str, str]) -> OpSpec:
        """The layer as one op: what gemm1 says, with every place of the router weight."""
        pack = packs[0] if packs[0] == packs[1] else "+".join(packs)
        return replace(
            self.gemm1(pack),
            kind=OpKind.BLOCK,
            numerics=replace(self.numerics, contract=Numerics().contract),
            gather=False,
            arranged=False,
            combine=self.shape.combine,
        )

    def combine(self) -> OpSpec:
        place = self.spec.numerics.router_weight
        ordered = self.shape.combine is CombineMode.ORDERED
        return OpSpec(
            kind=OpKind.COMBINE,
            experts=0,
            top_k=self.spec.geometry.top_k if ordered else 0,
            hidden=self.spec.geometry.hidden,
            intermediate=0,
            dtype=self.spec.activations.dtype,
            numerics=Numerics(router_weight=place) if ordered else None,
            combine=self.shape.combine,
        )
