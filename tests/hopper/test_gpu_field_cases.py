"""Field cases of single kernels on the GPU, with the values that the CPU's kernels must give too."""

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
from hopper.cases import HopperCase
from hopper.compare import launch
from hopper.workshop import Workshop, ladder_variant, stream_variant
from kernels.cases import DYNAMIC, LINEAR, STATIC, SWIZZLED, buffers
from kernels.compare import same_bytes
from torch import Tensor

from moegen.codegen.catalogs.sm90 import ROWS_LAYOUT
from moegen.codegen.variant import Variant
from moegen.core.enums import ActScale, Epilogue, OpKind
from moegen.core.ops import OpSpec
from moegen.numerics import Quantized, dequantize, e2m1
from moegen.numerics.layouts import Halves, scale_layout, weight_pack
from moegen.numerics.reference import row_layout

pytestmark = pytest.mark.gpu
WIDE = one_expert(HopperCase, 1, 2048, intermediate=16, x_scale=DYNAMIC, row_scales=SWIZZLED)
ROWS = one_expert(HopperCase, 1, 32, intermediate=16)
FUSED = one_expert(HopperCase, 1, 16, intermediate=16, epilogue=Epilogue.FUSED_FP4)
ROUTED = HopperCase(experts=512, top_k=10, tokens=1, first_expert=0)


def quantizing_case(hidden: int, scale: ActScale) -> HopperCase:
    return one_expert(HopperCase, 1, hidden, x_scale=scale)


def row_quantizers() -> tuple[OpSpec, OpSpec]:
    """What quantises h_rows, and h_pair."""
    return ROWS.row_quantizer(), replace(ROWS, epilogue=Epilogue.INTERLEAVED).ops()[OpKind.DEINTERLEAVE_QUANTIZE]


def gemm1_of(case: HopperCase) -> Variant:
    return ladder_variant(case.ops()[OpKind.GEMM1], "n8", warpgroups=2)


def variants() -> list[Variant]:
    """Every kernel that these tests launch."""
    cases = [quantizing_case(*form) for form in ((64, DYNAMIC), (64, STATIC), (16, STATIC), (32, DYNAMIC))]
    layers = [example.case(HopperCase) for example in ACTIVATED.values()]
    quantizers = [case.ops()[OpKind.QUANTIZE] for case in (WIDE, *cases, ACTIVATED["fr_45_w4a4"].case(HopperCase))]
    ops = dict.fromkeys((*quantizers, *row_quantizers(), ROUTED.ops()[OpKind.ROUTE]))
    return [*map(stream_variant, ops), *map(gemm1_of, (FUSED, *layers))]


@pytest.fixture(scope="module", autouse=True)
def compiled(hopper_workshop: Workshop) -> None:
    hopper_workshop.prepare(variants())


def written_by(workshop: Workshop, variant: Variant, case: HopperCase, given: dict[str, Tensor]) -> dict[str, Tensor]:
    return launch(workshop.kernel(variant), variant, case, given, 0xFF)


def quantised(
    workshop: Workshop, x: Tensor, scale: ActScale, pair: Tensor = ONE, case: HopperCase | None = None
) -> tuple[Quantized, Tensor]:
    """``x`` through the gathering quantiser: codes and linear scales of its rows, and the second-level scale."""
    case = replace(case or quantizing_case(x.shape[1], scale), tokens=len(x))
    given = buffers(case) | {"x": x, "x_scale": pair}
    written = written_by(workshop, stream_variant(case.ops()[OpKind.QUANTIZE]), case, given)
    codes = written["x_codes"]
    scales = scale_layout(case.row_scales).unpack(written["x_scales"], len(codes), case.hidden // 16)
    return Quantized(codes=codes[: len(x)], scales=scales[: len(x)]), written.get("x_scale", pair)


def test_fr_01_zeros_quantise_to_zeros(hopper_workshop: Workshop) -> None:
    found, pair = quantised(hopper_workshop, torch.zeros(4, 64, dtype=torch.bfloat16), DYNAMIC)
    assert torch.isfinite(pair).all()
    assert not found.codes.any()
    assert not found.scales.any()

    values, with_zeros = rows_with_zeros()
    found, whole = (
        quantised(hopper_workshop, x, STATIC, torch.tensor([[64.0, 1 / 64]]))[0] for x in (with_zeros, values)
    )
    others = torch.tensor([0, 1, 3])
    assert same_bytes(found.codes[others], whole.codes[others])
    assert same_bytes(found.scales[others], whole.scales[others])
    assert found.codes[2].tolist() == [0x88] * 32
    assert not dequantize(found, 1 / 64)[2].any()
    assert not ((found.scales & 0x7F) == 0x7F).any()


def assert_midpoints(codes: Tensor, scales: Tensor) -> None:
    """One row of 16 values under one scale of 1."""
    assert (scales[0, 0].item(), e2m1.unpack(codes, 16)[0].tolist()) == (0x38, MIDPOINT_CODES)


def test_fr_03_midpoints_go_to_the_even_code_in_every_kernel(hopper_workshop: Workshop) -> None:
    signed = torch.tensor([MIDPOINTS]).to(torch.bfloat16)
    found, _ = quantised(hopper_workshop, signed, STATIC)
    assert_midpoints(found.codes, found.scales)

    given = buffers(ROWS)
    rows, pairs = torch.zeros(len(given["h_rows"]), 16), torch.zeros(len(given["h_rows"]), 32)
    rows[0], pairs[0] = signed[0], midpoint_pairs()[0]
    packed = row_layout(ROWS_LAYOUT).pack(rows.to(torch.bfloat16))
    given |= {"h_rows": packed, "h_pair": pairs.to(torch.bfloat16), "h_scale": ONE}
    for op in row_quantizers():
        written = written_by(hopper_workshop, stream_variant(op), ROWS, given)
        assert_midpoints(written["h_codes"], written["h_scales"])

    halves, inputs = midpoint_weights()
    given = buffers(FUSED)
    for name in ("x_codes", "x_scales"):  # padding rows keep what the case gives them
        given[name][:1] = inputs.pop(name)
    written = written_by(hopper_workshop, gemm1_of(FUSED), FUSED, given | inputs | packed_w1(FUSED, halves))
    assert_midpoints(written["h_codes"], written["h_scales"])


def packed_w1(case: HopperCase, halves: Halves) -> dict[str, Tensor]:
    pack = weight_pack(case.ops()[OpKind.GEMM1].weight_pack)
    return {f"w1_{name}": tensor for name, tensor in pack.pack(halves, LINEAR).items()}


def test_fr_04_a_tiny_block_underflows_to_zero(hopper_workshop: Workshop) -> None:
    found, pair = quantised(hopper_workshop, tiny_block(), DYNAMIC)
    assert found.scales.tolist() == [[0x7E, 0]]
    values = dequantize(found, pair[0, 1])
    assert values[0, 0].item() == pytest.approx(1.0, rel=1e-6)
    assert not values[0, 16:].any()


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_fr_05_every_row_count_keeps_direction_and_magnitude(hopper_workshop: Workshop, rows: int) -> None:
    x = torch.randn(rows, 2048, generator=torch.Generator().manual_seed(rows)).to(torch.bfloat16)
    found, pair = quantised(hopper_workshop, x, DYNAMIC, case=WIDE)
    values = dequantize(found, pair[0, 1])
    assert torch.cosine_similarity(values.flatten(), x.float().flatten(), dim=0) > 0.97
    large = x.float().abs() > 0.5
    assert (values[large] / x.float()[large]).median().item() == pytest.approx(1.0, abs=0.02)


def test_fr_13_all_of_512_experts_can_be_chosen(hopper_workshop: Workshop) -> None:
    given = {"topk_ids": torch.arange(300, 310)[None]}
    written = written_by(hopper_workshop, stream_variant(ROUTED.ops()[OpKind.ROUTE]), ROUTED, given)
    assert written["tile_expert"][:10].tolist() == list(range(300, 310))


@pytest.mark.parametrize("name", ACTIVATED)
def test_fr_18_fr_19_fr_44_fr_45_first_activated_value(hopper_workshop: Workshop, name: str) -> None:
    example = ACTIVATED[name]
    case = example.case(HopperCase)
    given = buffers(case) | example.inputs() | packed_w1(case, example.halves)
    if example.w4a4:
        given |= written_by(hopper_workshop, stream_variant(case.ops()[OpKind.QUANTIZE]), case, given)
    written = written_by(hopper_workshop, gemm1_of(case), case, given)
    rows = row_layout(ROWS_LAYOUT).unpack(written["h_rows"][:8], case.intermediate)
    assert rows[0, 0].item() == pytest.approx(example.expected, rel=BF16_ULP)
