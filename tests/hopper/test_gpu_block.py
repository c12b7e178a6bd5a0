"""The whole-layer kernel on the GPU: bit for bit the reference's layer, again and again, in graphs and on streams."""

from dataclasses import replace

import pytest
import torch
from hopper.blocks import (
    SMALL,
    block_variant,
    check_call,
    every_form,
    given_buffers,
    make_call,
)
from hopper.cases import HopperCase, public
from hopper.workshop import Workshop
from kernels.cases import generator
from kernels.compare import POISONS, Call, same_bytes
from torch import Tensor

from moegen.codegen.variant import Variant
from moegen.core.abi import arguments
from moegen.numerics.reference import run_op

pytestmark = pytest.mark.gpu
ROUTINGS = ("mixed", "hot", "none", "uniform")
#: Sizes at which rows of an expert fill tiles of every width, some of them several.
LARGE = {"hidden": 336, "intermediate": 208, "experts": 11, "top_k": 4, "tokens": 61, "w4a4": False}
SHAPES = ((8, 2, 64, 1), (8, 4, 256, 1), (8, 5, 256, 1), (16, 3, 256, 2), (16, 4, 256, 1), (24, 3, 512, 1))


def cases() -> dict[str, tuple[HopperCase, Variant]]:
    made: dict[str, tuple[HopperCase, Variant]] = {}
    for name, case in every_form().items():
        made[name] = (case, block_variant(case, tiles=1 if name == "situ" else 2))  # its rows are weighted
    for index, (width, groups, slots, tiles) in enumerate(SHAPES):
        case = HopperCase(**(SMALL if slots == 64 else LARGE), routing=ROUTINGS[index % 4])
        made[f"w{width}_g{groups}_m{tiles}"] = (
            case,
            block_variant(case, width, groups, slots, tiles, ids_int64=index % 2 == 0),
        )
    for routing in ROUTINGS:
        case = HopperCase(**LARGE, routing=routing, bias=True)
        made[f"large_{routing}"] = (case, block_variant(case, 8, 4, 256))
    for tiles in (1, 2):  # more K units than there are stages
        case = HopperCase(**{**SMALL, "hidden": 4240}, routing="uniform")
        made[f"long_m{tiles}"] = (case, block_variant(case, 8, 4, 64, tiles))
    return made


CASES = cases()


def variants() -> list[Variant]:
    """Every kernel that these tests launch."""
    return [variant for _, variant in CASES.values()]


@pytest.fixture(scope="module", autouse=True)
def compiled(hopper_workshop: Workshop) -> None:
    hopper_workshop.prepare(variants())


def launched(workshop: Workshop, variant: Variant, case: HopperCase, given: dict[str, Tensor], byte: int) -> Call:
    call = make_call(variant, case, given, byte, Tensor.cuda)
    workshop.kernel(variant)(*call.values)
    torch.cuda.synchronize()
    return call


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_the_reference_layer(hopper_workshop: Workshop, name: str) -> None:
    case, variant = CASES[name]
    given = given_buffers(case)
    for byte in POISONS:
        check_call(variant, case, given, launched(hopper_workshop, variant, case, given, byte), byte)


def random_tokens(case: HopperCase, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs whose sums depend on their order."""
    return {**given, "x": torch.randn(given["x"].shape, generator=generator(case, 20)).to(torch.bfloat16)}


def test_twenty_launches_write_the_same_bytes(hopper_workshop: Workshop) -> None:
    case, variant = CASES["large_uniform"]
    given = random_tokens(case, given_buffers(case))
    call = make_call(variant, case, given, 0xFF, Tensor.cuda)
    kernel = hopper_workshop.kernel(variant)
    first = None
    for _ in range(20):
        kernel(*call.values)
        torch.cuda.synchronize()
        first = call.written["y"].clone() if first is None else first
        assert same_bytes(first, call.written["y"])


def test_a_graph_replays_with_new_routing(hopper_workshop: Workshop) -> None:
    """Captured with one routing, replayed with others: one without a valid slot, then a hot expert, then the first."""
    case, variant = CASES["large_mixed"]
    kernel, given = hopper_workshop.kernel(variant), given_buffers(case)
    call = make_call(variant, case, given, 0xFF, Tensor.cuda)
    kernel(*call.values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*call.values)
    names = [argument.name for argument in arguments(variant.op)]
    ids = call.values[names.index("topk_ids")]
    assert isinstance(ids, Tensor)
    for routing in ("none", "hot", "mixed", "uniform"):
        other = replace(case, routing=routing)
        fresh = given_buffers(other)
        ids.copy_(fresh["topk_ids"])
        for name in ("w1_packed", "w1_alpha", "w1_bias", "w2_packed", "w2_alpha", "w2_bias"):
            held = call.values[names.index(name)]
            assert isinstance(held, Tensor)
            held.copy_(fresh[name])  # experts without rows hold poison, so each routing has its own
        graph.replay()
        torch.cuda.synchronize()
        expected = run_op(public(variant.op), fresh, first_expert=case.first_expert)
        assert same_bytes(call.written["y"].cpu(), expected["y"]), routing


def test_two_streams_run_at_once(hopper_workshop: Workshop) -> None:
    """Neither instance may count on all its blocks being resident: both claim every multiprocessor."""
    case, variant = CASES["large_uniform"]
    given, kernel = given_buffers(case), hopper_workshop.kernel(variant)
    streams = [torch.cuda.Stream() for _ in range(3)]
    calls = [make_call(variant, case, given, 0xFF, Tensor.cuda) for _ in streams]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, call in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                kernel(*call.values)
    torch.cuda.synchronize()
    for call in calls:
        check_call(variant, case, given, call, 0xFF)


def test_more_slots_than_the_kernel_holds_are_refused(hopper_workshop: Workshop) -> None:
    case, variant = CASES["w8_g2_m1"]
    large = replace(case, tokens=64)
    call = make_call(variant, large, given_buffers(large), 0xFF, Tensor.cuda)
    with pytest.raises(ValueError, match="at most 64"):
        hopper_workshop.kernel(variant)(*call.values)


def test_no_tokens_launch_nothing(hopper_workshop: Workshop) -> None:
    case, variant = CASES["large_uniform"]
    empty = replace(case, tokens=0)
    call = make_call(variant, empty, given_buffers(empty), 0xFF, Tensor.cuda)
    hopper_workshop.kernel(variant)(*call.values)
    torch.cuda.synchronize()
    call.check_kept("block")
