"""The ops around the gemms, bit for bit against the reference: route, quantize, gather, deinterleave, combine."""

from dataclasses import replace

import pytest
import torch
from kernels.cases import DYNAMIC, LINEAR, STATIC, SWIZZLED, Case, buffers, generator
from kernels.compare import POISONS, check_op, launch, same_bytes
from kernels.harness import Workshop, stream_variant
from torch import Tensor

from moegen.core.abi import row_capacity
from moegen.core.enums import ActScale, CombineMode, Contract, Epilogue, OpKind, RouterWeight, ScaleLayout, TokenDtype
from moegen.core.ops import Numerics
from moegen.numerics.reference import run_op
from moegen.numerics.rounding import to_token

ROUTINGS = ("mixed", "hot", "none")


def wild(shape: tuple[int, ...], case: Case, salt: int) -> Tensor:
    """Values over twelve orders of magnitude with zeros of both signs, whole zero rows and zero blocks, a NaN and
    infinities of both signs."""
    source = generator(case, salt)
    values = torch.randn(shape, generator=source) * 10 ** (torch.rand(shape, generator=source) * 12 - 9)
    values[torch.rand(shape, generator=source) < 0.1] = -0.0
    values[::4] = 0
    values[:, :16] = 0
    values = values.clamp(-6e4, 6e4)
    values[1, 20], values[2, 40], values[-1, -1] = float("nan"), float("inf"), -float("inf")
    return to_token(values, case.dtype)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("int64", [True, False])
@pytest.mark.parametrize(("experts", "row_tile", "top_k"), [(5, 4, 3), (60, 1, 4), (1, 32, 1)])
def test_route_matches_the_reference(
    workshop: Workshop, experts: int, row_tile: int, top_k: int, int64: bool, routing: str
) -> None:
    case = Case(experts=experts, row_tile=row_tile, top_k=top_k, routing=routing, tokens=19)
    op = replace(case.ops()[OpKind.ROUTE], ids_int64=int64)
    given = buffers(case)
    if not int64:
        given["topk_ids"] = given["topk_ids"].clamp(max=2**31 - 1).to(torch.int32)
    for byte in POISONS:
        check_op(workshop.kernel(stream_variant(op)), op, case, given, byte=byte)


def test_route_takes_the_most_negative_and_the_largest_id(workshop: Workshop) -> None:
    case = Case(tokens=2)
    op = case.ops()[OpKind.ROUTE]
    for extreme in (-(2**63), 2**63 - 1):
        given = {"topk_ids": torch.full((2, 3), extreme)}
        written = launch(workshop.kernel(stream_variant(op)), op, given, case.dims(), first_expert=case.first_expert)
        assert written["totals"].tolist() == [0, 0, 0, 0]
        assert (written["slot_row"] == -1).all()


def test_route_fills_its_capacity_exactly(workshop: Workshop) -> None:
    """The worst routing: every expert has one row more than whole tiles."""
    case = Case(tokens=15, top_k=1, row_tile=4, experts=3)
    op = case.ops()[OpKind.ROUTE]
    ids = torch.tensor([0] * 5 + [1] * 5 + [2] * 5).reshape(15, 1) + case.first_expert
    written = launch(workshop.kernel(stream_variant(op)), op, {"topk_ids": ids}, case.dims(), first_expert=3)
    assert written["totals"].tolist() == [6, row_capacity(15, 1, 3, 4), 15, 3]
    assert written["expert_offsets"].tolist() == [0, 8, 16, 24]


@pytest.mark.parametrize("contract", Contract)
def test_quantize_gathers_in_every_contract(workshop: Workshop, contract: Contract) -> None:
    index = list(Contract).index(contract)
    case = Case(
        numerics=Numerics(contract=contract),
        row_scales=SWIZZLED if index % 2 else LINEAR,
        x_scale=DYNAMIC if index % 3 == 1 else STATIC,
        routing="mixed" if index != 5 else "hot",
    )
    op = case.ops()[OpKind.QUANTIZE]
    given = buffers(case) | {"x": wild((case.tokens, case.hidden), case, 20)}
    check_op(workshop.kernel(stream_variant(op)), op, case, given, byte=POISONS[index % 3])


@pytest.mark.parametrize("x_scale", [STATIC, DYNAMIC])
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("hidden", [176, 528])
def test_quantize_multiplies_the_router_weight_before_amax(
    workshop: Workshop, hidden: int, routing: str, x_scale: ActScale
) -> None:
    case = Case(
        hidden=hidden,
        row_scales=SWIZZLED,
        x_scale=x_scale,
        routing=routing,
        dtype=TokenDtype.FP16,
        numerics=Numerics(router_weight=RouterWeight.INPUT),
    )
    op = case.ops()[OpKind.QUANTIZE]
    given = buffers(case) | {"x": wild((case.tokens, hidden), case, 21)}
    check_op(workshop.kernel(stream_variant(op)), op, case, given)


@pytest.mark.parametrize("dtype", TokenDtype)
@pytest.mark.parametrize(("h_scale", "row_scales"), [(STATIC, LINEAR), (DYNAMIC, SWIZZLED), (STATIC, SWIZZLED)])
def test_row_quantizers_match_the_reference(
    workshop: Workshop, h_scale: ActScale, row_scales: ScaleLayout, dtype: TokenDtype
) -> None:
    case = Case(intermediate=208, h_scale=h_scale, row_scales=row_scales, dtype=dtype, row_tile=8)
    given = buffers(case)
    rows = case.dims()["R"]
    padding = given["row_slot"] < 0
    given |= {"h_rows": wild((rows, 208), case, 22), "h_pair": wild((rows, 416), case, 23)}
    for name in ("h_rows", "h_pair"):
        given[name][padding] = 0
    pairs = replace(case, epilogue=Epilogue.INTERLEAVED).ops()[OpKind.DEINTERLEAVE_QUANTIZE]
    for op in (case.row_quantizer(), pairs):
        check_op(workshop.kernel(stream_variant(op)), op, case, given, byte=0x7E)


@pytest.mark.parametrize("place", [RouterWeight.COMBINE, RouterWeight.INPUT])
@pytest.mark.parametrize("dtype", TokenDtype)
def test_gather_matches_the_reference(workshop: Workshop, dtype: TokenDtype, place: RouterWeight) -> None:
    case = Case(w4a4=False, fused_gather=False, dtype=dtype, numerics=Numerics(router_weight=place))
    op = case.ops()[OpKind.GATHER]
    given = buffers(case) | {"x": wild((case.tokens, case.hidden), case, 24)}
    for byte in POISONS:
        check_op(workshop.kernel(stream_variant(op)), op, case, given, byte=byte)


def test_deinterleave_takes_the_products(workshop: Workshop) -> None:
    case = Case(w4a4=False, epilogue=Epilogue.INTERLEAVED)
    op = case.ops()[OpKind.DEINTERLEAVE]
    given = buffers(case)
    check_op(workshop.kernel(stream_variant(op)), op, case, given)
    written = launch(workshop.kernel(stream_variant(op)), op, given, case.dims())
    first = given["h_pair"][0].tolist()
    assert written["h_rows"][0, :16].tolist() == first[8:16] + first[24:32]


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("place", [RouterWeight.COMBINE, RouterWeight.PRE_QUANT])
@pytest.mark.parametrize("dtype", TokenDtype)
def test_ordered_combine_matches_the_reference(
    workshop: Workshop, dtype: TokenDtype, place: RouterWeight, routing: str
) -> None:
    case = Case(hidden=592, dtype=dtype, routing=routing, numerics=Numerics(router_weight=place))
    op = case.ops()[OpKind.COMBINE]
    given = buffers(case)
    # Padding rows are never read: what gemm2 leaves there may be anything.
    given["out_rows"] = wild(tuple(given["out_rows"].shape), case, 25)
    given["out_rows"][given["row_slot"] < 0] = float("nan")
    check_op(workshop.kernel(stream_variant(op)), op, case, given, byte=0x7F)


def test_atomic_combine_rounds_the_sums_once(workshop: Workshop) -> None:
    case = Case(combine=CombineMode.ATOMIC)
    op = case.ops()[OpKind.COMBINE]
    check_op(workshop.kernel(stream_variant(op)), op, case, buffers(case))


def test_streams_do_not_depend_on_threads(workshop: Workshop) -> None:
    case = Case(row_scales=SWIZZLED, x_scale=DYNAMIC, tokens=70)
    given = buffers(case) | {"x": wild((70, case.hidden), case, 26)}
    for kind in (OpKind.QUANTIZE, OpKind.COMBINE):
        op = case.ops()[kind]
        kernel = workshop.kernel(stream_variant(op))
        expected = run_op(op, given)
        for threads in (1, 2, 3, 7):
            written = launch(kernel, op, given, case.dims(), byte=0, threads=threads)
            rows = int(given["totals"][1]) if kind is OpKind.QUANTIZE else case.tokens
            for name, tensor in written.items():
                assert same_bytes(tensor[:rows], expected[name][:rows]), (name, threads)
