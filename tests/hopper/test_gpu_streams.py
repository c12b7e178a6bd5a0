"""The ops around the gemms on the GPU, bit for bit against the reference."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hopper.cases import HopperCase, private_buffers
from hopper.compare import check_op, launch
from hopper.workshop import Workshop, stream_variant
from kernels.cases import DYNAMIC, LINEAR, STATIC, SWIZZLED, buffers, generator
from kernels.compare import POISONS
from torch import Tensor

from moegen.codegen.variant import Variant
from moegen.core.abi import row_capacity
from moegen.core.enums import ActScale, CombineMode, Contract, Epilogue, OpKind, RouterWeight, ScaleLayout
from moegen.core.ops import Numerics, OpSpec

pytestmark = pytest.mark.gpu
ROUTINGS = ("mixed", "hot", "none")
PLACES, COMBINED = (RouterWeight.COMBINE, RouterWeight.INPUT), (RouterWeight.COMBINE, RouterWeight.PRE_QUANT)
HIDDEN, ARRANGED, INTERMEDIATE = (80, 528), (80, 1104), (144, 208)
CLUSTERS = (1, 8)  # blocks that route together
ROUTES = ((5, 3, 19), (60, 4, 19), (1, 1, 19), (256, 8, 700), (384, 6, 5000))


def wild(shape: tuple[int, ...], case: HopperCase, salt: int) -> Tensor:
    """bf16 values over twelve orders of magnitude with zeros of both signs, whole zero rows and zero blocks."""
    source = generator(case, salt)
    values = torch.randn(shape, generator=source) * 10 ** (torch.rand(shape, generator=source) * 12 - 9)
    values[torch.rand(shape, generator=source) < 0.1] = -0.0
    values[::4] = 0
    values[:, :16] = 0
    return values.clamp(-6e4, 6e4).to(torch.bfloat16)


def route_op(experts: int, top_k: int, int64: bool) -> tuple[HopperCase, OpSpec]:
    case = HopperCase(experts=experts, top_k=top_k)
    return case, replace(case.ops()[OpKind.ROUTE], ids_int64=int64)


def quantizing_case(contract: Contract, x_scale: ActScale, layout: ScaleLayout, place: RouterWeight) -> HopperCase:
    return HopperCase(
        numerics=Numerics(contract=contract, router_weight=place), row_scales=layout, x_scale=x_scale, hidden=176
    )


def quantizing_cases() -> list[HopperCase]:
    grid = product(Contract, (STATIC, DYNAMIC), (LINEAR, SWIZZLED))
    return [quantizing_case(*values, PLACES[index % 2]) for index, values in enumerate(grid)]


def row_cases() -> list[HopperCase]:
    grid = product((Contract.TE, Contract.TORCHAO, Contract.HALF_STEP), (STATIC, DYNAMIC), (LINEAR, SWIZZLED))
    return [
        HopperCase(intermediate=208, numerics=Numerics(contract=contract), h_scale=scale, row_scales=layout)
        for contract, scale, layout in grid
    ]


def row_ops(case: HopperCase) -> tuple[OpSpec, OpSpec]:
    """The quantizers of h_rows and of h_pair."""
    interleaved = replace(case, epilogue=Epilogue.INTERLEAVED)
    return case.row_quantizer(), interleaved.ops()[OpKind.DEINTERLEAVE_QUANTIZE]


def gathering_case(hidden: int, place: RouterWeight) -> HopperCase:
    return HopperCase(hidden=hidden, w4a4=False, fused_gather=False, numerics=Numerics(router_weight=place))


def arranging_case(hidden: int, tokens: int) -> HopperCase:
    return HopperCase(hidden=hidden, tokens=tokens, w4a4=False, arranged=True)


def interleaved_case(intermediate: int) -> HopperCase:
    return HopperCase(w4a4=False, intermediate=intermediate, epilogue=Epilogue.INTERLEAVED)


def combining_case(place: RouterWeight) -> HopperCase:
    return HopperCase(hidden=2064, numerics=Numerics(router_weight=place))


ATOMIC = HopperCase(combine=CombineMode.ATOMIC)


def variants() -> list[Variant]:
    """Every kernel that these tests launch."""
    routes = [route_op(experts, top_k, int64)[1] for experts, top_k, _ in ROUTES for int64 in (True, False)]
    ops = [case.ops()[OpKind.QUANTIZE] for case in quantizing_cases()]
    ops += [op for case in row_cases() for op in row_ops(case)]
    ops += [gathering_case(*values).ops()[OpKind.GATHER] for values in product(HIDDEN, PLACES)]
    ops += [arranging_case(hidden, 1).ops()[OpKind.ARRANGE] for hidden in ARRANGED]
    ops += [interleaved_case(intermediate).ops()[OpKind.DEINTERLEAVE] for intermediate in INTERMEDIATE]
    ops += [combining_case(place).ops()[OpKind.COMBINE] for place in COMBINED]
    ops += [route_op(3, 1, True)[1], ATOMIC.ops()[OpKind.COMBINE]]
    routing = [stream_variant(op, blocks) for op in routes for blocks in CLUSTERS]
    return [*routing, *(stream_variant(op) for op in dict.fromkeys(ops))]


@pytest.fixture(scope="module", autouse=True)
def compiled(hopper_workshop: Workshop) -> None:
    hopper_workshop.prepare(variants())


def check(workshop: Workshop, op: OpSpec, case: HopperCase, given: dict[str, Tensor], route_blocks: int = 1) -> None:
    variant = stream_variant(op, route_blocks)
    for byte in POISONS:
        check_op(workshop.kernel(variant), variant, case, given, byte=byte)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("blocks", CLUSTERS)
@pytest.mark.parametrize("int64", [True, False])
@pytest.mark.parametrize(("experts", "top_k", "tokens"), ROUTES)
def test_route(
    hopper_workshop: Workshop, experts: int, top_k: int, tokens: int, int64: bool, blocks: int, routing: str
) -> None:
    case, op = route_op(experts, top_k, int64)
    case = replace(case, routing=routing, tokens=tokens, hidden=16, intermediate=32)
    given = buffers(case)
    if not int64:
        given["topk_ids"] = given["topk_ids"].clamp(max=2**31 - 1).to(torch.int32)
    check(hopper_workshop, op, case, given, blocks)


def test_route_takes_the_most_negative_and_the_largest_id(hopper_workshop: Workshop) -> None:
    case, op = route_op(5, 3, True)
    variant = stream_variant(op)
    for extreme in (-(2**63), 2**63 - 1):
        given = {"topk_ids": torch.full((case.tokens, 3), extreme)}
        written = launch(hopper_workshop.kernel(variant), variant, case, given, 0xFF)
        assert written["totals"].tolist() == [0, 0, 0, 0]
        assert (written["slot_row"] == -1).all()


def test_route_fills_its_capacity_exactly(hopper_workshop: Workshop) -> None:
    case, op = route_op(3, 1, True)
    case = replace(case, tokens=27)
    variant = stream_variant(op)
    ids = torch.tensor([0] * 9 + [1] * 9 + [2] * 9).reshape(27, 1) + case.first_expert
    written = launch(hopper_workshop.kernel(variant), variant, case, {"topk_ids": ids}, 0xFF)
    assert written["totals"].tolist() == [6, row_capacity(27, 1, 3, 8), 27, 3]
    assert written["expert_offsets"].tolist() == [0, 16, 32, 48]


@pytest.mark.parametrize(
    "case", quantizing_cases(), ids=lambda case: case.ops()[OpKind.QUANTIZE].numerics.contract.value
)
def test_quantize_gathers_in_every_contract(hopper_workshop: Workshop, case: HopperCase) -> None:
    for routing in ROUTINGS:
        batch = replace(case, routing=routing)
        given = buffers(batch) | {"x": wild((batch.tokens, batch.hidden), batch, 20)}
        check(hopper_workshop, batch.ops()[OpKind.QUANTIZE], batch, given)


@pytest.mark.parametrize("case", row_cases(), ids=lambda case: case.numerics.contract.value)
def test_row_quantizers(hopper_workshop: Workshop, case: HopperCase) -> None:
    given = buffers(case)
    rows = case.dims()["R"]
    padding = given["row_slot"] < 0
    given |= {"h_rows": wild((rows, 208), case, 22), "h_pair": wild((rows, 416), case, 23)}
    for name in ("h_rows", "h_pair"):
        given[name][padding] = 0
    given = private_buffers(case, given)
    for op in row_ops(case):
        check(hopper_workshop, op, case, given)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_gather(hopper_workshop: Workshop, hidden: int, place: RouterWeight) -> None:
    case = gathering_case(hidden, place)
    for routing in ROUTINGS:
        batch = replace(case, routing=routing)
        given = buffers(batch) | {"x": wild((batch.tokens, hidden), batch, 24)}
        check(hopper_workshop, batch.ops()[OpKind.GATHER], batch, given)


@pytest.mark.parametrize("tokens", [1, 37, 700])
@pytest.mark.parametrize("hidden", ARRANGED)
def test_arrange(hopper_workshop: Workshop, hidden: int, tokens: int) -> None:
    case = arranging_case(hidden, tokens)
    given = buffers(case) | {"x": wild((tokens, hidden), case, 26)}
    check(hopper_workshop, case.ops()[OpKind.ARRANGE], case, given)


@pytest.mark.parametrize("intermediate", INTERMEDIATE)
def test_deinterleave(hopper_workshop: Workshop, intermediate: int) -> None:
    case = interleaved_case(intermediate)
    check(hopper_workshop, case.ops()[OpKind.DEINTERLEAVE], case, buffers(case))


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("place", COMBINED)
def test_ordered_combine(hopper_workshop: Workshop, place: RouterWeight, routing: str) -> None:
    case = replace(combining_case(place), routing=routing)
    given = buffers(case)
    # Padding rows are never read: what gemm2 leaves there may be anything.
    given["out_rows"] = wild(tuple(given["out_rows"].shape), case, 25)
    given["out_rows"][given["row_slot"] < 0] = float("nan")
    check(hopper_workshop, case.ops()[OpKind.COMBINE], case, given)


def test_atomic_combine_rounds_the_sums_once(hopper_workshop: Workshop) -> None:
    check(hopper_workshop, ATOMIC.ops()[OpKind.COMBINE], ATOMIC, buffers(ATOMIC))
