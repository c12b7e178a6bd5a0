"""Field cases of categories a, b and g, and lessons, tried on the compiled CPU kernels."""

from dataclasses import replace

import pytest
import torch
from field_cases.values import (
    ACTIVATED,
    BF16_ULP,
    MIDPOINT_CODES,
    MIDPOINTS,
    ONE,
    ROW_COUNTS,
    midpoint_pairs,
    midpoint_weights,
    one_expert,
    rows_with_zeros,
    tiny_block,
)
from kernels.cases import DYNAMIC, LINEAR, STATIC, SWIZZLED, Case, buffers
from kernels.chain import planned, run_chain, run_layer, variant_for
from kernels.compare import POISONS, check_op, launch, same_bytes
from kernels.harness import Workshop, gemm_variant, stream_variant
from numerics.layers import Layer
from torch import Tensor

from moegen.core.abi import Dims
from moegen.core.enums import ActScale, CombineMode, Epilogue, OpKind
from moegen.core.ops import OpSpec
from moegen.numerics import Quantized, dequantize, e2m1, layer_reference, run_op
from moegen.numerics.layouts import scale_layout, weight_pack
from moegen.numerics.reference import route


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("kernels"))


def single_expert(rows: int, hidden: int, **fields: object) -> Case:
    """Rows of x in order, in tiles of one row."""
    return one_expert(Case, rows, hidden, row_tile=1, **fields)


def quantised(
    workshop: Workshop, x: Tensor, *, scale: ActScale = DYNAMIC, pair: Tensor = ONE, case: Case | None = None
) -> tuple[Quantized, Tensor]:
    """``x`` through the gathering quantiser: codes and linear scales, and the second-level scale."""
    case = case or single_expert(*x.shape, x_scale=scale)
    written = launch(
        workshop.kernel(stream_variant(case.ops()[OpKind.QUANTIZE])),
        case.ops()[OpKind.QUANTIZE],
        buffers(case) | {"x": x, "x_scale": pair},
        case.dims(),
    )
    scales = scale_layout(case.row_scales).unpack(written["x_scales"], len(x), case.hidden // 16)
    return Quantized(codes=written["x_codes"], scales=scales), written.get("x_scale", pair)


def test_fr_01_zeros_quantise_to_zeros(workshop: Workshop) -> None:
    found, pair = quantised(workshop, torch.zeros(4, 64, dtype=torch.bfloat16))
    assert torch.isfinite(pair).all()
    assert not found.codes.any()
    assert not found.scales.any()

    values, with_zero_row = rows_with_zeros()
    found, _ = quantised(workshop, with_zero_row, scale=STATIC, pair=torch.tensor([[64.0, 1 / 64]]))
    whole, _ = quantised(workshop, values, scale=STATIC, pair=torch.tensor([[64.0, 1 / 64]]))
    others = torch.tensor([0, 1, 3])
    assert same_bytes(found.codes[others], whole.codes[others])
    assert same_bytes(found.scales[others], whole.scales[others])
    assert found.codes[2].tolist() == [0x88] * 32
    assert not dequantize(found, 1 / 64)[2].any()
    assert not ((found.scales & 0x7F) == 0x7F).any()


def _midpoint_codes(codes: Tensor) -> list[int]:
    return e2m1.unpack(codes, 16)[0].tolist()


def test_fr_03_midpoints_go_to_the_even_code_in_every_kernel(workshop: Workshop) -> None:
    signed = torch.tensor([MIDPOINTS]).to(torch.bfloat16)

    found, _ = quantised(workshop, signed, scale=STATIC)
    assert (found.scales.tolist(), _midpoint_codes(found.codes)) == ([[0x38]], MIDPOINT_CODES)

    case = single_expert(1, 32, intermediate=16)
    given = buffers(case) | {"h_rows": signed, "h_scale": ONE, "h_pair": midpoint_pairs()}
    interleaved = replace(case, epilogue=Epilogue.INTERLEAVED).ops()[OpKind.DEINTERLEAVE_QUANTIZE]
    for op in (case.row_quantizer(), interleaved):
        written = launch(workshop.kernel(stream_variant(op)), op, given, case.dims())
        assert (written["h_scales"].tolist(), _midpoint_codes(written["h_codes"])) == ([[0x38]], MIDPOINT_CODES)

    written = fused_midpoints(workshop)
    assert (written["h_scales"].tolist(), _midpoint_codes(written["h_codes"])) == ([[0x38]], MIDPOINT_CODES)


def fused_midpoints(workshop: Workshop) -> dict[str, Tensor]:
    """The same values made by gemm1: silu(64) is 64, and up is the value over 64."""
    case = single_expert(1, 16, intermediate=16, epilogue=Epilogue.FUSED_FP4)
    halves, inputs = midpoint_weights()
    packed = weight_pack("rows8").pack(halves, LINEAR)
    given = buffers(case) | {f"w1_{name}": tensor for name, tensor in packed.items()} | inputs
    op = case.ops()[OpKind.GEMM1]
    return launch(workshop.kernel(gemm_variant(op)), op, given, case.dims())


def test_fr_04_a_tiny_block_underflows_to_zero(workshop: Workshop) -> None:
    found, pair = quantised(workshop, tiny_block())
    assert found.scales.tolist() == [[0x7E, 0]]
    values = dequantize(found, pair[0, 1])
    assert values[0, 0].item() == pytest.approx(1.0, rel=1e-6)
    assert not values[0, 16:].any()


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_fr_05_every_row_count_keeps_direction_and_magnitude(workshop: Workshop, rows: int) -> None:
    x = torch.randn(rows, 2048, generator=torch.Generator().manual_seed(rows)).to(torch.bfloat16)
    case = single_expert(rows, 2048, intermediate=16, x_scale=DYNAMIC, row_scales=SWIZZLED)
    found, pair = quantised(workshop, x, case=case)
    values = dequantize(found, pair[0, 1])
    assert torch.cosine_similarity(values.flatten(), x.float().flatten(), dim=0) > 0.97
    large = x.float().abs() > 0.5
    assert (values[large] / x.float()[large]).median().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("layer", [Layer(epilogue=Epilogue.FUSED_FP4), Layer(w4a4=False)], ids=["w4a4", "w4a16"])
def test_fr_06_no_tokens(workshop: Workshop, layer: Layer) -> None:
    held = run_layer(workshop, layer.change(tokens=0))
    assert held["y"].shape == (0, layer.hidden)
    assert held["totals"].tolist() == [0, 0, 0, 0]


def dense(layer: Layer, ids: Tensor, weights: Tensor) -> Tensor:
    """The layer expert by expert in fp64 on its dequantised weights (W4A16)."""
    return layer_reference(
        layer.x, ids, weights, layer.weights, layer.activation, first_expert=layer.first_expert
    ).float()


def assert_close(y: Tensor, expected: Tensor) -> None:
    """The float gate of W4A16: relative error at most 5e-3."""
    assert torch.isfinite(y).all()
    assert ((y.float() - expected).norm() / expected.norm()).item() <= 5e-3


@pytest.mark.parametrize(("experts", "counts"), [(4, (6, 40, 0, 18)), (32, (0,) * 31 + (257,))], ids=["uneven", "hot"])
def test_fr_07_empty_and_hot_experts(workshop: Workshop, experts: int, counts: tuple[int, ...]) -> None:
    layer = Layer(w4a4=False, experts=experts, top_k=1, tokens=sum(counts), first_expert=0, single=False)
    ids = torch.repeat_interleave(torch.arange(experts), torch.tensor(counts))[:, None]
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(5))]
    expected = dense(layer, ids, layer.topk_weights)
    changes = layer.buffers() | {"topk_ids": ids}
    idle = torch.tensor(counts) == 0
    for name in ("w1_scales", "w2_scales", "w1_alpha", "w2_alpha", "w1_bias", "w2_bias"):
        changes[name] = changes[name].clone()
        changes[name][idle] = 0x7F if name.endswith("scales") else float("nan")
    first = run_layer(workshop, layer, changes)["y"]
    assert_close(first, expected)
    for repeat in range(50):
        assert same_bytes(run_layer(workshop, layer, changes, threads=1 + repeat % 4)["y"], first)


def stale_proof(workshop: Workshop, layer: Layer) -> dict[str, Tensor]:
    """Buffers of a run whose ``y`` does not depend on what memory held before."""
    held = run_layer(workshop, layer, byte=0)
    for byte in POISONS:
        again = run_layer(workshop, layer, byte=byte)
        assert same_bytes(again["y"], held["y"]), hex(byte)
    return again


@pytest.mark.parametrize(("hidden", "intermediate"), [(80, 464), (464, 352)])
def test_fr_09_padded_scale_columns_are_zero(workshop: Workshop, hidden: int, intermediate: int) -> None:
    layer = Layer(hidden=hidden, intermediate=intermediate, epilogue=Epilogue.FUSED_FP4)
    held = stale_proof(workshop, layer)
    rows = int(held["totals"][1])
    for name, columns in (("x_scales", hidden // 16), ("h_scales", intermediate // 16)):
        scale_layout(SWIZZLED).validate(held[name][: -(-rows // 128) * 128], rows, columns)
    for name, columns in (("x_codes", hidden), ("h_codes", intermediate)):
        assert not held[name][:rows, columns // 2 :].any()


def test_fr_10_an_experts_scale_stride_counts_padded_rows(workshop: Workshop) -> None:
    layer = Layer(hidden=144, intermediate=64, experts=2, top_k=1, w4a4=False, weight_scales=SWIZZLED, single=False)
    ids = torch.full((layer.tokens, 1), layer.first_expert + 1)
    expected = dense(layer, ids, layer.topk_weights)
    assert_close(run_layer(workshop, layer, {"topk_ids": ids})["y"], expected)


def test_fr_11_more_than_65535_slots(workshop: Workshop) -> None:
    layer = Layer(hidden=48, intermediate=16, experts=9, top_k=8, tokens=8192, w4a4=False)
    whole = run_layer(workshop, layer)
    assert whole["totals"][2] > 40_000
    control = layer.change(tokens=8191)
    changes = {name: layer.buffers()[name][:8191] for name in ("x", "topk_ids", "topk_weights")}
    assert same_bytes(run_layer(workshop, control, changes)["y"], whole["y"][:8191])
    for start in range(0, 8192, 3000):
        part = slice(start, min(start + 3000, 8192))
        changes = {name: layer.buffers()[name][part] for name in ("x", "topk_ids", "topk_weights")}
        y = run_layer(workshop, layer.change(tokens=part.stop - part.start), changes)["y"]
        assert same_bytes(y, whole["y"][part])


def untouched(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """Address space without memory behind it: pages that nobody writes cost nothing."""
    return torch.empty(shape, dtype=dtype)


def test_fr_12_weight_bank_beyond_2_31_bytes(workshop: Workshop) -> None:
    """Routed to the last of 256 experts: its codes start at byte 255·4128·2048 = 2,155,806,720."""
    case = Case(hidden=4096, intermediate=2064, experts=256, top_k=1, tokens=1, row_tile=1, w4a4=False, first_expert=0)
    small = replace(case, experts=1, routing="hot")
    given = buffers(small)
    bank = {"w1_codes": untouched(256, 4128, 2048), "w1_scales": untouched(256, 4128, 256), "w1_alpha": None}
    for name in ("w1_codes", "w1_scales"):
        bank[name][255] = given[name][0]
    bank["w1_alpha"] = given["w1_alpha"].expand(256, 2).contiguous()
    routed = route(torch.full((1, 1), 255), experts=256, row_tile=1).buffers()
    op = case.ops()[OpKind.GEMM1]
    kernel = workshop.kernel(gemm_variant(op, k_chunk=512))
    values = given | bank | routed
    written = torch.full((1, 2064), float("nan"), dtype=torch.bfloat16)
    order = ("x", "w1_codes", "w1_scales", "w1_alpha", "row_slot", "expert_offsets", "expert_rows", "tile_expert")
    kernel(*(values[name] for name in order), values["totals"], written, 1)
    assert same_bytes(written, run_op(small.ops()[OpKind.GEMM1], given)["h_rows"])


def test_fr_12_rows_beyond_2_31_elements(workshop: Workshop) -> None:
    """H = 7168: from row 299,594 on, row·H passes 2^31."""
    rows, hidden = 299_600, 7168
    last = (torch.arange(hidden) % 13 - 6).to(torch.bfloat16)
    tall = untouched(rows, hidden, dtype=torch.bfloat16)
    tall[-1] = last
    case = Case(hidden=hidden, top_k=1, tokens=1)
    one = torch.ones(1, 1)
    y = torch.zeros(1, hidden, dtype=torch.bfloat16)
    combine = workshop.kernel(stream_variant(case.ops()[OpKind.COMBINE]))
    combine(tall, torch.tensor([rows - 1], dtype=torch.int32), one, y, 1)
    assert torch.equal(y[0], last)

    slot, totals = torch.tensor([rows - 1], dtype=torch.int32), torch.tensor([1, 1, 1, 1], dtype=torch.int32)
    gathered = torch.zeros(1, hidden, dtype=torch.bfloat16)
    gather = replace(case, w4a4=False, fused_gather=False, row_tile=1).ops()[OpKind.GATHER]
    workshop.kernel(stream_variant(gather))(tall, slot, totals, gathered, 1)
    assert torch.equal(gathered[0], last)

    codes, scales = torch.zeros(1, hidden // 2, dtype=torch.uint8), torch.zeros(1, hidden // 16, dtype=torch.uint8)
    quantize = replace(case, row_tile=1).ops()[OpKind.QUANTIZE]
    workshop.kernel(stream_variant(quantize))(tall, slot, totals, ONE, codes, scales, 1)
    assert torch.equal(dequantize(Quantized(codes=codes, scales=scales), 1.0)[0].abs() > 0, last != 0)


def test_fr_13_all_of_512_experts_can_be_chosen(workshop: Workshop) -> None:
    case = Case(experts=512, top_k=10, tokens=1, row_tile=1, first_expert=0)
    ids = torch.arange(300, 310)[None]
    op = case.ops()[OpKind.ROUTE]
    written = launch(workshop.kernel(stream_variant(op)), op, {"topk_ids": ids}, case.dims())
    assert written["tile_expert"].tolist() == list(range(300, 310))


@pytest.mark.parametrize("tokens", [1, 17, 33])
def test_fr_16_rows_that_fill_a_scale_tile_are_zero(workshop: Workshop, tokens: int) -> None:
    held = stale_proof(workshop, Layer(epilogue=Epilogue.FUSED_FP4, tokens=tokens))
    rows = int(held["totals"][1])
    for name, columns in (("x_scales", 5), ("h_scales", 3)):
        scale_layout(SWIZZLED).validate(held[name][: -(-rows // 128) * 128], rows, columns)


def check_activated(workshop: Workshop, name: str) -> None:
    """Runs the ops until gemm1."""
    example = ACTIVATED[name]
    case = example.case(Case, row_tile=1)
    weights = {f"w1_{key}": tensor for key, tensor in weight_pack("rows8").pack(example.halves, LINEAR).items()}
    until_gemm1 = [op for op in case.pipeline() if op.kind in (OpKind.ROUTE, OpKind.GEMM1) or op.gather]
    held = run_chain(workshop, until_gemm1, example.inputs() | weights, case.dims())
    assert held["h_rows"][0, 0].item() == pytest.approx(example.expected, rel=BF16_ULP)


def test_fr_18_gate_and_up_keep_their_places(workshop: Workshop) -> None:
    check_activated(workshop, "fr_18")


def test_fr_19_each_half_uses_its_own_second_level_scale(workshop: Workshop) -> None:
    check_activated(workshop, "fr_19")


@pytest.mark.parametrize("kind", ["oai", "clamp"])
def test_fr_44_clamped_swiglu_uses_all_its_constants(workshop: Workshop, kind: str) -> None:
    check_activated(workshop, f"fr_44_{kind}")


@pytest.mark.parametrize("form", ["w4a16", "w4a4"])
def test_fr_45_router_weight_on_the_input_is_applied_once(workshop: Workshop, form: str) -> None:
    check_activated(workshop, f"fr_45_{form}")


@pytest.mark.parametrize("combine", CombineMode)
def test_fr_46_ids_outside_the_rank_add_exactly_nothing(workshop: Workshop, combine: CombineMode) -> None:
    layer = Layer(tokens=4, top_k=2, experts=3, first_expert=0, w4a4=False, combine=combine)
    ids = torch.tensor([[0, -1], [3, 2], [-1, 3], [1, 2]])
    for byte in POISONS:
        y = run_layer(workshop, layer, {"topk_ids": ids}, byte=byte)["y"]
        assert not y[2].any()
        assert_close(y, dense(layer, ids, layer.topk_weights))
    only_local = run_layer(workshop, layer, {"topk_ids": torch.tensor([[0, 77], [-9, 2], [99, -1], [1, 2]])})["y"]
    assert same_bytes(only_local, y)


def test_sd_01_the_9216_wide_case(workshop: Workshop) -> None:
    case = Case(hidden=48, intermediate=4608, experts=2, top_k=1, tokens=5, w4a4=False)
    op = case.ops()[OpKind.GEMM1]
    assert op.n == 9216
    check_op(workshop.kernel(gemm_variant(op, cols=128)), op, case, buffers(case))


@pytest.mark.parametrize("epilogue", Epilogue)
def test_sd_02_no_valid_slot_at_all(workshop: Workshop, epilogue: Epilogue) -> None:
    layer = Layer(epilogue=epilogue)
    ids = torch.full((layer.tokens, layer.top_k), -1)
    held = run_layer(workshop, layer, {"topk_ids": ids}, byte=0x7F)
    assert held["totals"].tolist() == [0, 0, 0, 0]
    assert not held["y"].view(torch.int16).any()


@pytest.mark.parametrize("epilogue", [Epilogue.COMPACT, Epilogue.FUSED_FP4])
@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_sd_04_odd_column_ranges_and_every_chunk_count(workshop: Workshop, epilogue: Epilogue, chunks: int) -> None:
    """Three ranges of 32 weight rows, 1 to 4 chunks of K."""
    case = Case(hidden=64 * chunks, intermediate=48, epilogue=epilogue, row_scales=SWIZZLED)
    op: OpSpec = case.ops()[OpKind.GEMM1]
    check_op(workshop.kernel(gemm_variant(op, cols=32, k_chunk=64)), op, case, buffers(case))


def test_ops_of_a_layer_are_those_that_planning_makes() -> None:
    """What these cases compile is what users get."""
    assert [variant_for(op).op for op in planned(Layer()).pipeline()] == list(planned(Layer()).pipeline())
    assert isinstance(planned(Layer()).dims(), Dims)
