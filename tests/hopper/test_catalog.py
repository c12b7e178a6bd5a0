"""What the sm_90a catalog offers and refuses, with the numbers behind each refusal."""

from dataclasses import replace

import pytest
from hopper.cases import HopperCase
from hopper.workshop import ladder_variant
from kernels.cases import ACTIVATIONS

from moegen.codegen.catalogs.sm90 import (
    CATALOG,
    CLAIMS,
    LADDER,
    ROUTE,
    STREAM,
    expert_bytes,
    shared_bytes,
    warpgroups_of,
    widths,
)
from moegen.codegen.catalogs.sm90_even import EVEN, rounds
from moegen.codegen.load import expected_load
from moegen.codegen.registry import parse_variant
from moegen.core.devices import H200
from moegen.core.enums import Epilogue, OpKind, RouterWeight, TokenDtype
from moegen.core.errors import SpecError
from moegen.core.ops import Numerics, OpSpec

CASE = HopperCase(hidden=2880, intermediate=704, experts=60, top_k=4, w4a4=False, fused_gather=False)


def gemm(kind: OpKind = OpKind.GEMM1, case: HopperCase = CASE) -> OpSpec:
    return case.ops()[kind]


def verdict(op: OpSpec, ladder: str, warpgroups: int = 4, tiles: int = 1, blocks: int = 1) -> str:
    schedule = LADDER.make(ladder=ladder, warpgroups=warpgroups, tiles=tiles, blocks=blocks)
    return CATALOG.verdict(op, schedule, H200).predicate


def test_names_parse_back() -> None:
    variant = ladder_variant(gemm(), "n8_16_64")
    assert parse_variant(variant.name) == variant


@pytest.mark.parametrize("text", ["n", "n16_8", "n8_8", "n12", "n264", "n8_x"])
def test_malformed_ladders_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="rising multiples of 8"):
        widths(LADDER.make(ladder=text, warpgroups=4, tiles=1, blocks=1))


def test_fp16_operands_have_packs_of_their_own() -> None:
    """W4A4 multiplies decoded codes, which are bf16 whatever the tokens are."""
    for kind, name in ((OpKind.GEMM1, "sm90_m64k128_fp16"), (OpKind.GEMM2, "sm90_m64k128_fp16")):
        op = gemm(kind, replace(CASE, dtype=TokenDtype.FP16))
        assert (op.weight_pack, verdict(op, "n8")) == (name, "")
        assert verdict(replace(op, weight_pack="sm90_m64k128"), "n8") == "weight_pack"
    ungated = replace(CASE, dtype=TokenDtype.FP16, activation=ACTIVATIONS["relu2"])
    assert gemm(case=ungated).weight_pack == "sm90_m64k128_pieces_fp16"
    assert gemm(case=replace(ungated, w4a4=True)).weight_pack == "sm90_m64k128_pieces"


def test_other_packs_rows_and_tiles_are_refused() -> None:
    op = gemm()
    assert verdict(op, "n8") == ""
    assert verdict(replace(op, weight_pack="rows8"), "n8") == "weight_pack"
    assert verdict(replace(op, rows_layout=""), "n8") == "rows_layout"
    assert verdict(replace(op, row_tile=16), "n8") == "row_tile"


def test_registers_bound_the_plain_form() -> None:
    assert verdict(gemm(), "n64", warpgroups=4) == ""
    assert verdict(gemm(), "n64", warpgroups=5) == "registers"


def test_shared_memory_counts_everything_beside_the_stages() -> None:
    op = gemm()
    wide = LADDER.make(ladder="n256", warpgroups=4, tiles=1, blocks=1)
    stage, fixed = shared_bytes(op, wide, 256)
    assert (stage, fixed) == (256 * 256 + 2 * 4608, 16 * 12 + (16 + 60 + 1) * 16)
    assert CATALOG.verdict(op, wide, H200).legal
    tight = replace(H200, smem_bytes=2 * stage + fixed - 1)
    refused = CATALOG.verdict(op, wide, tight)
    assert refused.predicate == "shared_memory"
    assert dict(refused.numbers)["limit"] == 2 * stage + fixed - 1
    assert CATALOG.verdict(op, wide, replace(tight, smem_bytes=2 * stage + fixed)).legal


def test_a_decoder_needs_a_multiprocessor_of_its_own_and_narrow_tiles() -> None:
    coded = gemm(case=replace(CASE, w4a4=True))
    assert verdict(coded, "n8", warpgroups=2, blocks=2) == "blocks"
    assert verdict(coded, "n128") == ""
    assert verdict(coded, "n136") == "token_width"
    ungated = replace(CASE, w4a4=True, epilogue=Epilogue.FUSED_FP4, activation=ACTIVATIONS["relu2"])
    assert verdict(gemm(case=ungated), "n96") == ""
    assert verdict(gemm(case=ungated), "n104") == "token_width"


def test_gathered_rows_are_copied_unless_they_are_weighted() -> None:
    gathering = gemm(case=replace(CASE, fused_gather=True))
    assert verdict(gathering, "n256") == ""
    on_input = replace(CASE, fused_gather=True, numerics=Numerics(router_weight=RouterWeight.INPUT))
    weighted = gemm(case=on_input)
    assert verdict(weighted, "n32") == ""
    assert verdict(weighted, "n40") == "token_width"
    assert verdict(weighted, "n8", warpgroups=5) == "registers"
    assert verdict(gathering, "n8", warpgroups=5) == ""
    assert verdict(gathering, "n8_24", warpgroups=5) == ""
    assert verdict(gathering, "n8_32", warpgroups=5) == "registers"


def test_pieces_are_copied_to_tiles_whose_tokens_fit_and_never_weighted() -> None:
    arranged = replace(CASE, fused_gather=True, arranged=True)
    assert verdict(gemm(case=arranged), "n8_152") == ""
    assert verdict(gemm(case=arranged), "n8_160") == "token_width"
    assert verdict(gemm(case=replace(arranged, hidden=2048)), "n64_88", tiles=2) == ""
    on_input = replace(gemm(case=arranged), numerics=Numerics(router_weight=RouterWeight.INPUT))
    assert verdict(on_input, "n8") == "arranged"
    arrange = arranged.ops()[OpKind.ARRANGE]
    assert CATALOG.verdict(arrange, STREAM.make(), H200).legal
    assert CATALOG.verdict(replace(arrange, rows_layout=""), STREAM.make(), H200).predicate == "rows_layout"


def test_arranging_hides_behind_routing() -> None:
    arranged = replace(CASE, hidden=2048, fused_gather=True, arranged=True).ops()
    gather = replace(CASE, hidden=2048, fused_gather=False).ops()[OpKind.GATHER]
    for tokens in (128, 8192):
        load = expected_load(tokens, 128, 8, 8)
        time_us = CATALOG.time_us(arranged[OpKind.ARRANGE], STREAM.make(), H200, load)
        assert 0 < time_us < CATALOG.time_us(gather, STREAM.make(), H200, load) / 2


def test_decoding_producers_cannot_claim_items() -> None:
    fields = {"ladder": "n8_64", "warpgroups": 4, "tiles": 1, "blocks": 1}
    claims = CLAIMS.make(**fields)
    assert CATALOG.verdict(gemm(), claims, H200).legal
    assert CATALOG.scratch(gemm(), claims).fixed == 2 * 8
    assert not CATALOG.scratch(gemm(), LADDER.make(**fields)).any
    assert CATALOG.verdict(gemm(case=replace(CASE, w4a4=True)), claims, H200).predicate == "claims"


def even(op: OpSpec, ladder: str = "n8", warpgroups: int = 4, parts: int = 4) -> str:
    fields = {"ladder": ladder, "warpgroups": warpgroups, "tiles": 1, "blocks": 1}
    return CATALOG.verdict(op, EVEN.make(**fields, parts=parts), H200).predicate


def test_parts_are_whole_shares_of_weights() -> None:
    plain = gemm(case=replace(CASE, w4a4=False, intermediate=640))
    assert even(plain) == even(plain, parts=2) == even(plain, ladder="n8_16_32", warpgroups=5, parts=5) == ""
    assert even(plain, parts=1) == even(plain, parts=5) == "parts"
    assert even(plain, warpgroups=3, parts=3) == "parts"
    fused = gemm(case=replace(CASE, w4a4=True, intermediate=640, epilogue=Epilogue.FUSED_FP4))
    assert verdict(fused, "n8") == ""
    assert even(fused) == "parts"


def test_the_last_items_take_as_little_as_blocks_allow() -> None:
    fields = {"ladder": "n8", "warpgroups": 5, "tiles": 1, "blocks": 1}
    cut, fixed = EVEN.make(**fields, parts=5), LADDER.make(**fields)
    assert [rounds(fixed, items, 132) for items in (132, 133, 515)] == [1, 2, 4]
    assert [rounds(cut, items, 132) for items in (132, 133, 132 + 26, 132 + 27, 132 + 60, 515)] == [
        1,
        1.2,
        1.2,
        1.25,
        1.5,
        4,
    ]


def test_untuned_gemms_are_cut_where_the_last_round_is_nearly_empty() -> None:
    op = gemm(case=replace(CASE, w4a4=False, hidden=2880, intermediate=2880, experts=128, top_k=4))
    shapes = {schedule.family.name for schedule in CATALOG.schedules(op, H200, None)}
    assert shapes == {"ladder", "claims", "even"}
    fields = {"ladder": "n8", "warpgroups": 5, "tiles": 1, "blocks": 1}
    cut, fixed = EVEN.make(**fields, parts=5), LADDER.make(**fields)
    load = expected_load(2, 128, 4, 8)
    assert CATALOG.time_us(op, cut, H200, load) < CATALOG.time_us(op, fixed, H200, load)
    assert "even" not in {s.family.name for s in CATALOG.schedules(op, H200, {"ladder": ("n8",)})}


def test_a_fused_quantiser_needs_whole_chunks() -> None:
    fused = gemm(case=replace(CASE, w4a4=True, epilogue=Epilogue.FUSED_FP4))
    assert verdict(fused, "n8", warpgroups=3) == "chunk"
    assert verdict(fused, "n8", warpgroups=4) == ""


def test_routing_counts_must_fit() -> None:
    route = replace(CASE.ops()[OpKind.ROUTE], experts=2048)
    assert CATALOG.verdict(route, ROUTE.make(threads=1024, blocks=8), H200).predicate == "shared_memory"
    assert CATALOG.verdict(route, ROUTE.make(threads=256, blocks=8), H200).legal
    assert CATALOG.verdict(route, ROUTE.make(threads=256, blocks=3), H200).predicate == "blocks"


@pytest.mark.parametrize("kind", [OpKind.GEMM1, OpKind.GEMM2])
def test_every_op_has_a_schedule(kind: OpKind) -> None:
    for case in (CASE, replace(CASE, fused_gather=True), replace(CASE, w4a4=True)):
        op = gemm(kind, case)
        legal = [s for s in CATALOG.schedules(op, H200, None) if CATALOG.verdict(op, s, H200).legal]
        assert len(legal) > 10
        assert len({schedule.name for schedule in legal}) == len(legal)


def test_pack_bytes_are_codes_scales_and_tails() -> None:
    op = gemm(OpKind.GEMM2, replace(CASE, hidden=2048, intermediate=768))
    assert expert_bytes(op) == 2048 * (768 // 2 + 768 // 16)
    assert CATALOG.pack_bytes(op) == 60 * expert_bytes(op)


def test_the_model_prefers_wide_tiles_for_many_rows() -> None:
    op = gemm(case=replace(CASE, hidden=2048, intermediate=768))
    narrow, wide = ladder_variant(op, "n8").schedule, ladder_variant(op, "n64_128_192_256").schedule
    few, many = (expected_load(tokens, 60, 4, 8) for tokens in (1, 4096))
    assert CATALOG.time_us(op, narrow, H200, few) < CATALOG.time_us(op, wide, H200, few)
    assert CATALOG.time_us(op, wide, H200, many) < CATALOG.time_us(op, narrow, H200, many)


def test_wide_tiles_take_two_warpgroups() -> None:
    schedule = LADDER.make(ladder="n8_64_80_128_152_160_256", warpgroups=4, tiles=1, blocks=1)
    found = [warpgroups_of(gemm(), schedule, width) for width in widths(schedule)]
    assert found == [(4, 1), (4, 1), (4, 1), (2, 2), (2, 2), (2, 1), (2, 1)]


def test_more_tiles_a_warpgroup() -> None:
    op = gemm(case=replace(CASE, hidden=2048))
    schedule = LADDER.make(ladder="n8_32_40_64_72_88_96", warpgroups=4, tiles=2, blocks=1)
    found = [warpgroups_of(op, schedule, width) for width in widths(schedule)]
    assert found == [(4, 2), (4, 2), (2, 4), (2, 4), (2, 3), (2, 3), (2, 2)]
    assert verdict(op, "n64_96", tiles=2) == ""
    assert verdict(op, "n96", tiles=2) == "tiles"
    assert verdict(gemm(case=replace(CASE, hidden=2048, fused_gather=True)), "n64_96", tiles=2) == "tiles"
    assert verdict(gemm(), "n64", tiles=2) == "tiles"  # K ends in half a unit
    assert verdict(gemm(), "n64_96", tiles=2) == ""
