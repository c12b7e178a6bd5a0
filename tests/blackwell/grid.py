"""Gemm cases that cover every pair of choices: numerics, layouts, and whatever fields the catalog's schedules have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from kernels.cases import ACTIVATIONS, Case, topk_ids
from kernels.pairwise import Row, covering

from moegen.codegen.catalogs.sm100 import AUTO_GEMM, CATALOGS
from moegen.codegen.schedule import Schedule
from moegen.codegen.variant import Variant
from moegen.core.devices import B200
from moegen.core.enums import CombineMode, Contract, Epilogue, OpKind, Round, RouterWeight, ScaleLayout, Target
from moegen.core.enums import TokenDtype as Dtype
from moegen.core.ops import Numerics, OpSpec
from moegen.numerics.reference import route

SWIZZLED = ScaleLayout.SWIZZLE_128X4
FAMILY = CATALOGS[Target.SM_100A].gemm
#: (CTAs of a group, operands swapped)
FORMS = {"plain": (1, False), "pair": (2, False), "swapped": (1, True), "swapped pair": (2, True)}
#: Fields that ``form`` and ``groups`` stand for.
DERIVED = ("rows", "cta_group", "swap_ab", "ctas")
#: Short rings, so that small shapes wrap them; depths that fill a swizzle box in part, once, twice.
SHORT: Mapping[str, tuple[Any, ...]] = {"k": (64, 128, 256), "stages": (2, 3)}
#: Every other field of a schedule with the values that planning considers: a new field is covered without being named.
SCHEDULE_AXES = {
    field.name: SHORT.get(field.name) or AUTO_GEMM[field.name] for field in FAMILY.fields if field.name not in DERIVED
}
#: (H, I): tails in both, a pitch beyond K / 2, several stages of depth, more than one tile of weights.
GEOMETRIES = ((272, 144), (80, 176), (640, 80), (144, 208))
SHAPE_AXES: Mapping[str, Sequence[Any]] = {
    "form": tuple(FORMS),
    **SCHEDULE_AXES,
    "dtype": tuple(Dtype),
    "bias": (False, True),
    "geometry": GEOMETRIES,
    "routing": ("mixed", "hot", "uniform"),
}
FIRST_AXES: Mapping[str, Sequence[Any]] = {
    "epilogue": tuple(Epilogue),
    "activation": tuple(ACTIVATIONS),
    "contract": tuple(Contract),
    "gate_round": (Round.FP32, Round.BF16),
    "pre_quant_round": (Round.FP32, Round.BF16),
    "router_weight": tuple(RouterWeight),
    **SHAPE_AXES,
}
TILE_AXES = ("form", "geometry", *SCHEDULE_AXES)
"""What makes a tile legal, with what is stored (``epilogue`` or ``combine``)."""
SECOND_AXES: Mapping[str, Sequence[Any]] = {"combine": tuple(CombineMode), **SHAPE_AXES}
NAMING = ("routing", "dtype", "combine", "epilogue", "activation", "contract")
TOKENS = (5, 19, 37, 69, 101, 133, 165, 229, 293, 421, 549, 805, 1061, 1317, 1573, 2085)
"""Batches to choose from: the smallest that sends every CTA around its pipelines more than twice."""
FEW = 300
"""Two groups of CTAs where so many tokens are enough for both, one where they are not."""


@dataclass(frozen=True)
class GemmCase:
    """One gemm and a batch that sends every persistent CTA around each of its pipelines more than twice."""

    row: Row

    @property
    def kind(self) -> OpKind:
        """gemm2's rows have no activation."""
        return OpKind.GEMM1 if "activation" in self.row else OpKind.GEMM2

    @property
    def name(self) -> str:
        """Tile, shape and chain, as far as they tell cases apart."""
        tile = [field.encode(self.row[field.name]) for field in FAMILY.fields if field.name in SCHEDULE_AXES]
        words = [self.kind.value, self.row["form"], "-".join(tile), "x".join(map(str, self.row["geometry"]))]
        words += [getattr(self.row.get(axis), "value", self.row.get(axis)) for axis in NAMING]
        return " ".join(word for word in words if word)

    @property
    def group(self) -> int:
        """CTAs that share an MMA."""
        return FORMS[self.row["form"]][0]

    @property
    def swapped(self) -> bool:
        """True when weights are the M operand."""
        return FORMS[self.row["form"]][1]

    @property
    def row_tile(self) -> int:
        """Token rows of a tile."""
        return self.row["cols"] if self.swapped else 128 * self.group

    @cached_property
    def batch(self) -> tuple[int, int]:
        """(Groups of CTAs, tokens): as few tokens as make every group wrap."""
        for groups in (2, 1):
            for tokens in TOKENS:
                if self._turns(tokens, groups) and (groups == 1 or tokens <= FEW):
                    return groups, tokens
        return 1, TOKENS[-1]

    @cached_property
    def case(self) -> Case:
        """The layer and its batch."""
        return replace(self._layer, tokens=self.batch[1])

    @property
    def wraps(self) -> bool:
        """True when the batch goes around the ring and the accumulators more than twice."""
        groups, tokens = self.batch
        return self._turns(tokens, groups)

    @cached_property
    def _layer(self) -> Case:
        row = self.row
        hidden, intermediate = row["geometry"]
        atomic = row.get("combine") is CombineMode.ATOMIC
        return Case(
            hidden=hidden,
            intermediate=intermediate,
            experts=3,
            top_k=1 if atomic else 2,  # one row a token: no order of the additions is left open
            row_tile=self.row_tile,
            routing=row["routing"],
            activation=ACTIVATIONS[row.get("activation", "swiglu")],
            epilogue=row.get("epilogue", Epilogue.COMPACT),
            combine=row.get("combine", CombineMode.ORDERED),
            numerics=Numerics(**{name: row[name] for name in Numerics.__dataclass_fields__ if name in row}),
            dtype=row["dtype"],
            bias=row["bias"],
            row_scales=SWIZZLED,
            weight_scales=SWIZZLED,
        )

    @cached_property
    def variant(self) -> Variant:
        """The kernel; one or two groups of CTAs run however many tiles there are."""
        return Variant(op=self.op, schedule=self.schedule(self.batch[0]))

    @cached_property
    def op(self) -> OpSpec:
        """The gemm."""
        return self._layer.ops()[self.kind]

    def schedule(self, groups: int) -> Schedule:
        """The row's tile on so many groups of CTAs."""
        return FAMILY.make(
            rows=128 * self.group,
            cta_group=self.group,
            swap_ab=self.swapped,
            ctas=groups * self.group,
            **{name: self.row[name] for name in SCHEDULE_AXES},
        )

    def _turns(self, tokens: int, groups: int) -> bool:
        """Whether every group of CTAs goes around its pipelines more than twice."""
        case, op = replace(self._layer, tokens=tokens), self.op
        routing = route(topk_ids(case), experts=case.experts, row_tile=case.row_tile, first_expert=case.first_expert)
        tiles = int(routing.totals[0]) * -(-op.n // (128 * self.group if self.swapped else self.row["cols"]))
        turns = tiles // groups
        return turns > 2 * self.row["acc_stages"] and turns * -(-op.k // self.row["k"]) > 2 * self.row["stages"]


def allowed(row: Row) -> bool:
    """Cells that exist: a gate to interleave, a contract where something is quantised, a legal tile."""
    if "activation" in row:
        gated = ACTIVATIONS[row["activation"]].kind.gated
        fused = row["epilogue"] is Epilogue.FUSED_FP4
        if not gated and (row["epilogue"] is Epilogue.INTERLEAVED or row["gate_round"] is Round.BF16):
            return False
        if not fused and row["contract"] is not Contract.TE:
            return False
        if not fused and row["dtype"] is Dtype.FP16 and row["pre_quant_round"] is Round.BF16:
            return False
    axes = (*TILE_AXES, "epilogue" if "activation" in row else "combine")
    return _legal_tile(tuple((name, row[name]) for name in axes), "activation" in row)


@cache
def _legal_tile(tile: tuple[tuple[str, Any], ...], first: bool) -> bool:
    plain = {name: axis[0] for name, axis in (FIRST_AXES if first else SECOND_AXES).items()}
    case = GemmCase(plain | dict(tile))
    return CATALOGS[Target.SM_100A].verdict(case.op, case.schedule(1), B200).legal


@cache
def every_pair(seed: int = 1) -> tuple[GemmCase, ...]:
    """A set of gemm1 cases that holds every pair of values which some cell has, and one of gemm2 cases."""
    rows = [*covering(FIRST_AXES, allowed, seed), *covering(SECOND_AXES, allowed, seed)]
    return tuple(GemmCase(row) for row in rows)
