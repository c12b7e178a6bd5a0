"""Gemm cases that cover what the catalog offers: every value, or every pair of values, of these axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from kernels.cases import ACTIVATIONS, Case
from kernels.pairwise import Row, covering

from moegen.codegen.catalogs.sm100 import CATALOGS
from moegen.codegen.variant import Variant
from moegen.core.devices import B200
from moegen.core.enums import Contract, Epilogue, OpKind, Round, RouterWeight, ScaleLayout, Target, TokenDtype
from moegen.core.ops import Numerics

SWIZZLED = ScaleLayout.SWIZZLE_128X4
#: (CTAs of a group, operands swapped)
FORMS = {"plain": (1, False), "pair": (2, False), "swapped": (1, True), "swapped pair": (2, True)}
#: (H, I): tails in both, a pitch beyond K / 2, several stages of depth, more than one tile of weights.
GEOMETRIES = ((272, 144), (80, 176), (640, 80), (144, 208))
AXES: Mapping[str, Sequence[Any]] = {
    "epilogue": tuple(Epilogue),
    "activation": tuple(ACTIVATIONS),
    "contract": tuple(Contract),
    "form": tuple(FORMS),
    "cols": (64, 128, 192, 256),
    "depth": (64, 128, 256),
    "stages": (2, 3),
    "acc_stages": (1, 2),
    "gate_round": (Round.FP32, Round.BF16),
    "pre_quant_round": (Round.FP32, Round.BF16),
    "router_weight": tuple(RouterWeight),
    "dtype": tuple(TokenDtype),
    "bias": (False, True),
    "geometry": GEOMETRIES,
    "routing": ("mixed", "hot", "uniform"),
}


@dataclass(frozen=True)
class GemmCase:
    """A gemm1, or the gemm2 of the same layer, with a batch that fills more tiles than there are CTAs."""

    row: Row
    second: bool = False

    @property
    def name(self) -> str:
        """What is particular, in words."""
        words = ("form", "cols", "depth", "epilogue", "activation", "contract")
        return " ".join(str(getattr(self.row[word], "value", self.row[word])) for word in words)

    @property
    def row_tile(self) -> int:
        """Token rows of a tile."""
        group, swapped = FORMS[self.row["form"]]
        return self.row["cols"] if swapped else 128 * group

    @property
    def case(self) -> Case:
        """The layer and its batch."""
        row = self.row
        hidden, intermediate = row["geometry"]
        return Case(
            hidden=hidden,
            intermediate=intermediate,
            experts=3,
            top_k=2,
            tokens=37 + self.row_tile // 2,
            row_tile=self.row_tile,
            routing=row["routing"],
            activation=ACTIVATIONS[row["activation"]],
            epilogue=row["epilogue"],
            numerics=Numerics(
                contract=row["contract"],
                gate_round=row["gate_round"],
                pre_quant_round=row["pre_quant_round"],
                router_weight=row["router_weight"],
            ),
            dtype=row["dtype"],
            bias=row["bias"],
            row_scales=SWIZZLED,
            weight_scales=SWIZZLED,
        )

    @property
    def variant(self) -> Variant:
        """The kernel; three CTAs (two groups of a pair) run however many tiles there are."""
        group, swapped = FORMS[self.row["form"]]
        schedule = CATALOGS[Target.SM_100A].gemm.make(
            rows=128 * group,
            cols=self.row["cols"],
            k=self.row["depth"],
            stages=self.row["stages"],
            acc_stages=self.row["acc_stages"],
            cta_group=group,
            ctas=3 if group == 1 else 4,
            swap_ab=swapped,
        )
        op = self.case.ops()[OpKind.GEMM2 if self.second else OpKind.GEMM1]
        return Variant(op=op, schedule=schedule)


def allowed(row: Row) -> bool:
    """Cells that exist: a gate to interleave, a contract where something is quantised, a legal tile."""
    gated = ACTIVATIONS[row["activation"]].kind.gated
    if row["epilogue"] is Epilogue.INTERLEAVED and not gated:
        return False
    if row["epilogue"] is not Epilogue.FUSED_FP4 and row["contract"] is not Contract.TE:
        return False
    if not gated and row["gate_round"] is Round.BF16:
        return False
    stores_rows = row["epilogue"] is not Epilogue.FUSED_FP4
    if stores_rows and row["dtype"] is TokenDtype.FP16 and row["pre_quant_round"] is Round.BF16:
        return False
    return _legal_tile(*(row[name] for name in ("form", "cols", "depth", "stages", "acc_stages")))


@cache
def _legal_tile(form: str, cols: int, depth: int, stages: int, acc_stages: int) -> bool:
    values = {name: axis[0] for name, axis in AXES.items()}
    tile = {"form": form, "cols": cols, "depth": depth, "stages": stages, "acc_stages": acc_stages}
    variant = GemmCase({**values, **tile}).variant
    return CATALOGS[Target.SM_100A].verdict(variant.op, variant.schedule, B200).legal


def every_pair(seed: int = 1) -> list[GemmCase]:
    """Every pair of values that some cell holds, a gemm2 among every four cases."""
    rows = covering(AXES, allowed, seed)
    return [GemmCase(row, second=number % 4 == 3) for number, row in enumerate(rows)]


def every_value(seed: int = 1) -> list[GemmCase]:
    """A small set of cells that holds every value of every axis, and a gemm2 of two forms."""
    random = Random(seed)
    missing = {(name, value) for name, values in AXES.items() for value in values}
    rows: list[Row] = []
    while missing:
        drawn = ({name: random.choice(values) for name, values in AXES.items()} for _ in range(400))
        rows.append(max(filter(allowed, drawn), key=lambda row: len(missing & set(row.items()))))
        missing -= set(rows[-1].items())
    second = [{**rows[0], "form": form, "cols": 128, "acc_stages": 1} for form in ("plain", "swapped pair")]
    return [GemmCase(row) for row in rows] + [GemmCase(row, second=True) for row in second]
