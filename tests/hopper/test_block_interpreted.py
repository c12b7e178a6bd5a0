"""The whole-layer kernel in the interpreter: bit for bit, without races, under schedules that starve its blocks."""

from pathlib import Path

import pytest
import torch
from hopper.blocks import RAGGED, SMALL, block_variant, check_call, given_buffers, make_call
from hopper.cases import HopperCase
from hopper.workshop import Workshop
from torch import Tensor

from moegen.codegen.variant import Variant
from moegen.core.enums import RouterWeight, Target
from moegen.core.ops import Numerics
from moegen.ptx import Check, Options, Policy, Severity
from moegen.ptx.runner import InterpreterRunner

# Padding columns of a token tile, and the half of a last K unit that has no weights, are multiplied as they lie.
PADDING = {Check.UNINITIALISED: Severity.WARNING}
# Blocks poll counters, so copies and products must be let happen while warps run: a late policy would never finish.
SCHEDULES = (
    Options(seed=1, races=True, severity=PADDING, resident_clusters=0),
    Options(seed=2, policy=Policy.TENSOR_EARLY, resident_clusters=2, slice_steps=50, timeout_probability=0.5),
    Options(seed=3, policy=Policy.EAGER, resident_clusters=1, slice_steps=1000),
)
POISON = 0xFF


def interpret(workshop: Workshop, variant: Variant, case: HopperCase, given: dict[str, Tensor]) -> None:
    call = make_call(variant, case, given, POISON, _aligned)
    workshop.prepare([variant])
    runner = InterpreterRunner(Target.SM_90A, SCHEDULES)
    runner.load(workshop.directory(variant), "block")(*call.values)
    assert len(runner.results) == len(SCHEDULES)
    assert {report.check for result in runner.results for report in result.reports} <= {Check.UNINITIALISED}
    check_call(variant, case, given, call, POISON)


def _aligned(tensor: Tensor) -> Tensor:
    """A copy at a 512-byte boundary, as a device allocates it."""
    room = torch.zeros(tensor.nbytes + 512, dtype=torch.uint8)
    start = -room.data_ptr() % 512
    return room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(Path(tmp_path_factory.mktemp("blocks")))


@pytest.mark.parametrize("routing", ["mixed", "hot", "none"])
def test_a_layer_is_the_reference_layer(workshop: Workshop, routing: str) -> None:
    case = HopperCase(**SMALL, routing=routing)
    interpret(workshop, block_variant(case, warpgroups=2), case, given_buffers(case))


@pytest.mark.parametrize(
    ("width", "warpgroups", "tiles", "place"),
    [(16, 3, 2, RouterWeight.INPUT), (8, 4, 1, RouterWeight.PRE_QUANT)],
)
def test_ragged_sizes_and_every_kind_of_tile(
    workshop: Workshop, width: int, warpgroups: int, tiles: int, place: RouterWeight
) -> None:
    case = HopperCase(**{**RAGGED, "tokens": 11}, routing="hot", bias=True, numerics=Numerics(router_weight=place))
    variant = block_variant(case, width=width, warpgroups=warpgroups, tiles=tiles)
    interpret(workshop, variant, case, given_buffers(case))
