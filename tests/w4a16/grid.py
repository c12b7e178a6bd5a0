"""Gemm cases that cover the W4A16 kernels: epilogues by activations, or every two values of any two axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from typing import Any

from kernels.cases import ACTIVATIONS, SWIZZLED, Case
from kernels.pairwise import Row, covering
from w4a16.workshop import variant_of

from moegen.codegen.catalogs.sm100 import CATALOGS
from moegen.codegen.variant import Variant
from moegen.core.devices import B200
from moegen.core.enums import CombineMode, Epilogue, OpKind, Round, RouterWeight, Target, TokenDtype
from moegen.core.ops import Numerics

#: (H, I): tails of a chunk, a stage and a tile, a code pitch beyond K / 2, more than two rounds of most rings.
GEOMETRIES = ((272, 176), (1040, 32), (80, 144), (400, 112))
AXES: Mapping[str, Sequence[Any]] = {
    "epilogue": (Epilogue.INTERLEAVED, Epilogue.COMPACT),
    "activation": tuple(ACTIVATIONS),
    "tokens": (8, 16, 32, 64, 128),
    "rows": (64, 128),
    "k": (128, 256),
    "stages": (2, 3),
    "warps": (4, 8),
    "gather": (True, False),
    "gate_round": (Round.FP32, Round.BF16),
    "router_weight": tuple(RouterWeight),
    "dtype": tuple(TokenDtype),
    "bias": (False, True),
    "geometry": GEOMETRIES,
    "routing": ("mixed", "hot", "uniform"),
}
SCHEDULE = ("tokens", "rows", "k", "stages", "warps")
PAIRS = tuple(product(AXES["epilogue"], AXES["activation"]))
_DRAWS = 200


@dataclass(frozen=True)
class GemmCase:
    """A gemm1, or the gemm2 of the same layer with its rows stored or, ``added``, summed by token."""

    row: Row
    second: bool = False
    added: bool = False

    @property
    def name(self) -> str:
        """What is particular, in words."""
        words = ("epilogue", "activation", "tokens", "rows", "k", "warps", "dtype")
        kind = ("gemm2 added " if self.added else "gemm2 ") if self.second else ""
        return kind + " ".join(str(getattr(self.row[word], "value", self.row[word])) for word in words)

    @property
    def case(self) -> Case:
        """The layer and its batch; sums of several slots are exact only by chance, so added rows have one each."""
        row = self.row
        hidden, intermediate = row["geometry"]
        return Case(
            hidden=hidden,
            intermediate=intermediate,
            experts=3,
            top_k=1 if self.added else 2,
            tokens=5 + row["tokens"] // 3,
            row_tile=row["tokens"],
            routing=row["routing"],
            activation=ACTIVATIONS[row["activation"]],
            epilogue=row["epilogue"],
            numerics=Numerics(gate_round=row["gate_round"], router_weight=row["router_weight"]),
            dtype=row["dtype"],
            bias=row["bias"],
            combine=CombineMode.ATOMIC if self.added else CombineMode.ORDERED,
            fused_gather=row["gather"],
            w4a4=False,
            weight_scales=SWIZZLED,
        )

    def variant(self, target: Target = Target.SM_100A) -> Variant:
        """The kernel."""
        op = self.case.ops()[OpKind.GEMM2 if self.second else OpKind.GEMM1]
        return variant_of(op, target, **{name: self.row[name] for name in SCHEDULE})


def allowed(row: Row) -> bool:
    """Cells that exist: a gate to interleave or round, and a legal schedule."""
    gated = ACTIVATIONS[row["activation"]].kind.gated
    if not gated and (row["epilogue"] is Epilogue.INTERLEAVED or row["gate_round"] is Round.BF16):
        return False
    return _legal(*(row[name] for name in SCHEDULE))


@cache
def _legal(*values: int) -> bool:
    first = {name: axis[0] for name, axis in AXES.items()}
    row = first | dict(zip(SCHEDULE, values, strict=True))
    catalog = CATALOGS[Target.SM_100A]
    schedule = catalog.w4a16.families[0].make(**{name: row[name] for name in SCHEDULE})
    return catalog.verdict(GemmCase(row).case.ops()[OpKind.GEMM1], schedule, B200).legal


def every_pair(seed: int = 1) -> list[GemmCase]:
    """Every pair of values that some cell holds; of four cases one is a gemm2 and one a gemm2 that adds."""
    rows = covering(AXES, allowed, seed)
    return [GemmCase(row, second=number % 4 >= 2, added=number % 4 == 3) for number, row in enumerate(rows)]


def every_epilogue(seed: int = 1) -> list[GemmCase]:
    """Every epilogue with every activation, every value of every other axis, and both forms of gemm2."""
    random = Random(seed)
    missing = {(name, value) for name, values in AXES.items() for value in values}
    rows: list[Row] = []
    for epilogue, activation in PAIRS:
        fixed = {"epilogue": epilogue, "activation": activation}
        drawn = [{name: random.choice(values) for name, values in AXES.items()} | fixed for _ in range(_DRAWS)]
        legal = [row for row in drawn if allowed(row)]
        if legal:
            rows.append(max(legal, key=lambda row: len(missing & set(row.items()))))
            missing -= set(rows[-1].items())
    second = [GemmCase(row, second=True, added=number % 2 == 1) for number, row in enumerate(rows[:4])]
    return [GemmCase(row) for row in rows] + second
