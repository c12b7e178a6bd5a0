"""The CPU catalog: enough legal schedules, a reason for every illegal one, and a time model that ranks sensibly."""

from dataclasses import replace

import pytest
from kernels.cases import LINEAR, SWIZZLED, Case

from moegen.codegen.catalogs.cpu import AUTO, CATALOG, PANEL, ROW_TILES, STREAM
from moegen.codegen.load import expected_load
from moegen.codegen.registry import parse_variant
from moegen.codegen.variant import Variant
from moegen.core.devices import CPU_GENERIC
from moegen.core.enums import ActFormat, Epilogue, OpKind
from moegen.core.errors import SpecError

#: The geometry of specs/quickstart.yaml.
QUICKSTART = Case(hidden=256, intermediate=160, experts=10, top_k=3, row_tile=8, epilogue=Epilogue.FUSED_FP4)


@pytest.mark.parametrize("kind", [OpKind.GEMM1, OpKind.GEMM2])
def test_quickstart_has_dozens_of_legal_gemm_schedules(kind: OpKind) -> None:
    op = QUICKSTART.ops()[kind]
    schedules = CATALOG.schedules(op, CPU_GENERIC, None)
    legal = [item for item in schedules if CATALOG.verdict(op, item, CPU_GENERIC).legal]
    assert len(schedules) == 48
    assert len(legal) == {OpKind.GEMM1: 27, OpKind.GEMM2: 36}[kind]
    assert len({item.name for item in schedules}) == len(schedules)


@pytest.mark.parametrize(
    ("values", "predicate", "numbers"),
    [
        ({"rows": 4}, "row_tile", {"rows": 4, "row_tile": 8}),
        ({"cols": 40}, "cols", {"cols": 40}),
        ({"k_chunk": 40}, "k_chunk", {"k_chunk": 40, "block": 16}),
        ({"unroll": 3}, "unroll", {"unroll": 3}),
        ({"cols": 16}, "output_block", {"cols": 16, "needed": 32}),
        ({"k_chunk": 512}, "redundant", {"k_chunk": 512, "size": 256}),
        ({"cols": 640}, "redundant", {"cols": 640, "size": 320}),
        ({"cols": 16384}, "stack", {"bytes": 526848, "limit": 524288}),
    ],
)
def test_refusals_carry_predicate_and_numbers(values: dict[str, int], predicate: str, numbers: dict[str, int]) -> None:
    schedule = PANEL.make(**({"rows": 8, "cols": 32, "k_chunk": 64, "unroll": 2} | values))
    verdict = CATALOG.verdict(QUICKSTART.ops()[OpKind.GEMM1], schedule, CPU_GENERIC)
    assert (verdict.predicate, dict(verdict.numbers)) == (predicate, numbers)
    assert verdict.reason


def test_the_smallest_layer_has_a_schedule() -> None:
    """H = I = 16: every tile covers the whole matrix, and the smallest ones stay."""
    case = Case(hidden=16, intermediate=16, row_tile=1, epilogue=Epilogue.FUSED_FP4)
    for kind in (OpKind.GEMM1, OpKind.GEMM2):
        op = case.ops()[kind]
        legal = {
            (item["cols"], item["k_chunk"])
            for item in CATALOG.schedules(op, CPU_GENERIC, None)
            if CATALOG.verdict(op, item, CPU_GENERIC).legal
        }
        assert legal == {(32 if kind is OpKind.GEMM1 else 16, 64)}


def test_partial_row_groups_are_refused() -> None:
    """Six rows would make the inner loop's second group of four read two rows past the panel."""
    op = replace(QUICKSTART, row_tile=6).ops()[OpKind.GEMM1]
    verdict = CATALOG.verdict(op, PANEL.make(rows=6, cols=32, k_chunk=64, unroll=2), CPU_GENERIC)
    assert verdict.predicate == "row_group"


def test_private_packs_and_row_orders_are_refused() -> None:
    op = QUICKSTART.ops()[OpKind.GEMM2]
    schedule = PANEL.make(rows=8, cols=32, k_chunk=64, unroll=2)
    assert CATALOG.verdict(replace(op, weight_pack="sm90_m64k128"), schedule, CPU_GENERIC).predicate == "weight_pack"
    assert CATALOG.verdict(replace(op, rows_layout="sm90"), schedule, CPU_GENERIC).predicate == "rows_layout"
    combine = replace(QUICKSTART.ops()[OpKind.COMBINE], rows_layout="sm90")
    assert CATALOG.verdict(combine, STREAM.make(), CPU_GENERIC).predicate == "rows_layout"


def test_a_choice_narrows_the_schedules() -> None:
    op = QUICKSTART.ops()[OpKind.GEMM1]
    choice = {"tile": ({"rows": 8, "cols": 64}, {"rows": 16, "cols": 32}), "unroll": (4,)}
    assert CATALOG.row_tiles(choice, ActFormat.NVFP4) == (8, 16)
    found = {(item["rows"], item["cols"], item["unroll"]) for item in CATALOG.schedules(op, CPU_GENERIC, choice)}
    assert found == {(8, 64, 4)}
    assert CATALOG.row_tiles(None, ActFormat.NVFP4) == ROW_TILES


@pytest.mark.parametrize("choice", [{"stages": (3,)}, {"rows": (0,)}, {"rows": ("8",)}, {"tile": ({"width": 3},)}])
def test_a_choice_that_names_nothing_is_refused(choice: dict[str, tuple[object, ...]]) -> None:
    with pytest.raises(SpecError) as caught:
        CATALOG.row_tiles(choice, ActFormat.NVFP4)  # type: ignore[arg-type]
    assert caught.value.where.startswith("schedules.cpu")


def test_names_parse_back() -> None:
    for op in QUICKSTART.ops().values():
        for schedule in CATALOG.schedules(op, CPU_GENERIC, None):
            variant = Variant(op=op, schedule=schedule)
            assert parse_variant(variant.name) == variant


def test_pack_bytes_count_pitch_and_padding() -> None:
    case = Case(hidden=80, intermediate=144, experts=5, weight_scales=LINEAR)
    padded = replace(case, weight_scales=SWIZZLED)
    # Rows of 80 and 144 columns occupy 48 and 80 bytes of codes.
    assert CATALOG.pack_bytes(case.ops()[OpKind.GEMM1]) == 5 * (288 * 48 + 288 * 5)
    assert CATALOG.pack_bytes(padded.ops()[OpKind.GEMM1]) == 5 * (288 * 48 + 384 * 8)
    assert CATALOG.pack_bytes(padded.ops()[OpKind.GEMM2]) == 5 * (80 * 80 + 128 * 12)


def _time(row_tile: int, tokens: int, **values: int) -> float:
    case = Case(hidden=2048, intermediate=768, experts=8, top_k=2, row_tile=row_tile)
    schedule = PANEL.make(**({"rows": row_tile, "cols": 64, "k_chunk": 256, "unroll": 4} | values))
    load = expected_load(tokens, 8, 2, row_tile)
    return CATALOG.time_us(case.ops()[OpKind.GEMM1], schedule, CPU_GENERIC, load)


def test_time_model_ranks_what_was_measured() -> None:
    """Orders seen on the machine the coefficients come from: wide rows win large batches, short chunks lose."""
    assert _time(32, 512) < 0.5 * _time(1, 512)
    assert _time(1, 1) <= _time(32, 1)
    assert _time(32, 128, k_chunk=512) < _time(32, 128, k_chunk=64)
    assert _time(8, 64, unroll=4) < _time(8, 64, unroll=1)
    assert _time(8, 64) < _time(8, 128)


def test_streams_have_one_schedule_and_a_time() -> None:
    for op in QUICKSTART.ops().values():
        if op.kind not in (OpKind.GEMM1, OpKind.GEMM2):
            (schedule,) = CATALOG.schedules(op, CPU_GENERIC, None)
            assert CATALOG.verdict(op, schedule, CPU_GENERIC).legal
            small, large = (
                CATALOG.time_us(op, schedule, CPU_GENERIC, expected_load(tokens, 10, 3, 8)) for tokens in (1, 4096)
            )
            assert 0 < small < large


def test_values_considered_are_those_of_the_family() -> None:
    assert set(AUTO) == {field.name for field in PANEL.fields}
