"""Which gemm and stream variants the GPU tests run and CI compiles: pairwise covering sets of ops and schedules."""

from hopper.cases import GEOMETRIES, HopperCase
from kernels import axes
from kernels.cases import STATIC, SWIZZLED
from kernels.pairwise import Row, covering

from moegen.codegen.catalogs.sm90 import CATALOG, CLAIMS, LADDER
from moegen.codegen.catalogs.sm90_even import EVEN
from moegen.codegen.variant import Variant
from moegen.core.devices import H200
from moegen.core.enums import ActivationMath, Contract, OpKind, TokenDtype
from moegen.core.errors import MoegenError

LADDERS = ("n8", "n16_64", "n24_96", "n8_128", "n88_152", "n48_160", "n256")
OWN = {
    "geometry": tuple(GEOMETRIES),
    "ladder": LADDERS,
    "warpgroups": (1, 2, 3, 4, 5),
    "tiles": (1, 2),
    "blocks": (1, 2, 4),
    "family": ("ladder", "claims"),
}
GEMM1 = {**axes.GEMM1, **OWN, "arranged": (False, True)}
GEMM2 = {"format": ("w4a4", "gathered"), **axes.GEMM2, **OWN}
#: fp16 tokens and products in place of codes: what does not meet either takes few values.
FORMATS = {
    "dtype": tuple(TokenDtype),
    "decoded": (False, True),
    "geometry": ("odd", "long", "wide"),
    "warpgroups": (2, 4, 5),
    "blocks": (1, 2),
    "row_scales": (SWIZZLED,),
}
FORMATS1 = {"activation": ("swiglu", "swiglu_oai", "relu2"), "contract": (Contract.TE,)}
FORMATS2 = {"h_scale": (STATIC,)}


def case_of(row: Row, activation_math: ActivationMath = ActivationMath.EXACT) -> HopperCase:
    """The layer and batch of a row of either grid; ``dtype``, ``decoded`` and ``arranged`` are axes of some only."""
    fields = axes.case_fields(row, activation_math)
    fields |= {name: row[name] for name in ("arranged", "dtype", "decoded") if name in row}
    return HopperCase(**GEOMETRIES[row["geometry"]], **fields)


def variant_of(row: Row) -> Variant:
    """The variant that a row stands for."""
    op = case_of(row).ops()[OpKind.GEMM1 if "mode" in row else OpKind.GEMM2]
    fields = {name: row[name] for name in ("ladder", "warpgroups", "tiles", "blocks")}
    if row["family"] == "even":
        return Variant(op=op, schedule=EVEN.make(**fields, parts=row["warpgroups"]))
    return Variant(op=op, schedule=(CLAIMS if row["family"] == "claims" else LADDER).make(**fields))


def allowed(row: Row) -> bool:
    """True when the catalog calls the row legal, and the row says nothing that its form ignores."""
    form = row["mode"][0] if "mode" in row else row["format"]
    if (row.get("arranged") and form != "gathers") or (row.get("decoded") and form != "w4a4"):
        return False
    try:
        variant = variant_of(row)
    except (MoegenError, ValueError):
        return False
    return CATALOG.verdict(variant.op, variant.schedule, H200).legal


def other_format(row: Row) -> bool:
    """True for allowed rows that are not of the first grids."""
    return (row["dtype"] is TokenDtype.FP16 or row["decoded"]) and allowed(row)


def row_name(row: Row) -> str:
    """Test id."""
    return f"{variant_of(row).name}-{row['routing']}"


GEMM1_ROWS = covering(GEMM1, allowed)
GEMM2_ROWS = covering(GEMM2, allowed)
FORMAT_ROWS = [
    *covering({**GEMM1, **FORMATS, **FORMATS1}, other_format),
    *covering({**GEMM2, **FORMATS, **FORMATS2}, other_format),
]
#: Of the fixed shares whose last items may be cut into parts, every second: few geometries have whole row tiles.
EVEN_ROWS = [row for row in ({**row, "family": "even"} for row in (*GEMM1_ROWS, *GEMM2_ROWS)) if allowed(row)][::2]
