"""From a checkpoint's scales, linear and per expert, to the 128x4 tiles that Blackwell's tensor cores load.

The independent side is CuTeDSL's own layout of scale factors, evaluated while a function of it is traced.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from kernels.cases import SWIZZLED, Case, buffers
from runtime.packages import TestPackage
from runtime.writers import random_weights

from moegen.core.abi import arguments
from moegen.core.enums import OpKind, ScaleLayout
from moegen.core.errors import CheckpointError, LayoutError
from moegen.numerics.layouts import LINEAR, SWIZZLE_128X4, ScaleTensor
from moegen.numerics.reference import run_op
from moegen.ptx.capture import prepare_cutedsl
from moegen.runtime import ExpertWeights, MoELayer

#: (expert, row, scale column) of 200 rows and 5 columns, which pad to 256 and 8: 2048 bytes an expert.
LITERAL = {
    (0, 0, 0): 0,
    (0, 1, 0): 16,
    (0, 32, 0): 4,
    (0, 33, 4): 532,
    (0, 127, 3): 511,
    (0, 128, 0): 1024,
    (1, 0, 0): 2048,
    (2, 199, 4): 4096 + 1024 + 512 + 7 * 16 + 2 * 4,
}
Point = tuple[int, int, int]


def cutlass_offsets(rows: int, columns: int, experts: int, points: Iterable[Point]) -> dict[Point, int]:
    """Byte offset of each (expert, row, column) in CuTeDSL's layout of ``[experts, rows, 16 x columns]``."""
    prepare_cutedsl()  # before the import: a process has one CuTeDSL runtime, and other tests need the interpreter's
    import cutlass.cute as cute
    from cutlass.utils.blockscaled_layout import tile_atom_to_shape_SF

    found: dict[Point, int] = {}

    @cute.jit
    def trace() -> None:
        layout = tile_atom_to_shape_SF((rows, columns * 16, experts), 16)
        for expert, row, column in points:
            found[expert, row, column] = cute.crd2idx((row, column * 16, expert), layout)

    cute.compile(trace)
    return found


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """``[E, rows, columns]`` placed one by one where CuTeDSL says, everything else 0: ``[E, bytes]``."""
    experts, rows, columns = scales.shape
    places = cutlass_offsets(rows, columns, 1, [(0, row, column) for row in range(rows) for column in range(columns)])
    order = torch.tensor(list(places.values()))
    made = torch.zeros(experts, -(-rows // 128) * 128 * (-(-columns // 4) * 4), dtype=torch.uint8)
    made[:, order] = scales.flatten(1)
    return made


def test_offsets_are_the_literal_ones_and_cutlasss() -> None:
    assert cutlass_offsets(200, 5, 3, LITERAL) == LITERAL
    for (expert, row, column), offset in LITERAL.items():
        place = SWIZZLE_128X4.offset(torch.tensor(row), torch.tensor(column), 200, 5)
        assert expert * 2048 + int(place) == offset


def bank_tensor(layer: MoELayer, name: str) -> torch.Tensor:
    """A packed weight tensor of the layer's first pipeline."""
    for step in next(iter(layer.engine.pipelines.values())).steps:
        for argument in arguments(step.op):
            if argument.name == name:
                tensor = layer.engine.bank.get(step.op, argument)
                assert tensor is not None
                return tensor
    raise AssertionError(name)


def test_checkpoint_scales_are_swizzled_expert_by_expert(layer: MoELayer, weights: ExpertWeights) -> None:
    assert weights.gate is not None
    both = torch.stack((weights.gate.scales.unflatten(1, (-1, 8)), weights.up.scales.unflatten(1, (-1, 8))), dim=2)
    assert torch.equal(bank_tensor(layer, "w1_scales").flatten(1), swizzled(both.flatten(1, 3)))
    assert torch.equal(bank_tensor(layer, "w2_scales").flatten(1), swizzled(weights.down.scales))


def test_activation_scales_are_padded_and_swizzled_by_expert_from_sizes_that_the_host_knows() -> None:
    """With rows padded to 128 every expert's tiles are its own; kernels take offsets as tensors, never as numbers."""
    case = Case(row_tile=128, tokens=600, top_k=2, experts=4, row_scales=SWIZZLED)
    op, given = case.ops()[OpKind.QUANTIZE], buffers(case)
    assert [argument.name for argument in arguments(op) if argument.dtype == "int"] == []
    found = run_op(op, given)["x_scales"]
    linear = run_op(replace(op, scale_layout=ScaleLayout.LINEAR), given)["x_scales"]
    assert found.shape == (case.dims()["R128"], 8)
    offsets, rows = given["expert_offsets"].tolist(), given["expert_rows"].tolist()
    assert sorted(rows)[0] == 0
    assert max(rows) > 128
    for first, last, count in zip(offsets, offsets[1:], rows, strict=False):
        assert torch.count_nonzero(linear[first + count : last]) == 0
        if count:
            assert torch.equal(found[first:last].flatten(), swizzled(linear[None, first:last])[0])


@pytest.mark.parametrize(
    ("side", "scales", "message"),
    [
        ("gate", lambda s: s.transpose(1, 2).contiguous(), r"gate\.scales has shape \(7, 4, 48\).*it is transposed"),
        ("up", SWIZZLE_128X4.pack, r"up\.scales has shape \(7, 128, 4\).*swizzled already"),
        ("down", lambda s: s.transpose(1, 2), r"down\.scales has shape \(7, 3, 64\).*it is transposed"),
        ("up", lambda s: s.index_fill(0, torch.tensor(2), 0x7F)[:, :, :4], r"up\.scales\[2, 0, 0\] is NaN"),
        ("up", lambda s: s.mT.contiguous().mT, r"up\.scales is a view with strides \(192, 1, 48\)"),
    ],
)
def test_scales_in_another_order_are_refused_by_name(tiny: TestPackage, side: str, scales, message: str) -> None:
    weights = random_weights(experts=7)
    wrong = replace(getattr(weights, side), scales=scales(getattr(weights, side).scales))
    with pytest.raises(CheckpointError, match=message):
        tiny.load().from_tensors(replace(weights, **{side: wrong}))


def test_a_second_swizzle_is_refused_and_a_scrambled_element_is_named() -> None:
    """Where rows and columns fill whole tiles a swizzled tensor has the linear shape: only its tag tells."""
    linear = (torch.arange(3 * 128 * 4) % 125 + 1).to(torch.uint8).reshape(3, 128, 4)
    once = ScaleTensor.linear(linear).pack(SWIZZLE_128X4)
    assert once.data.shape == linear.shape
    with pytest.raises(LayoutError, match=r"scales lie in swizzle_128x4, linear is needed"):
        once.pack(SWIZZLE_128X4)
    twice = SWIZZLE_128X4.pack(once.data)
    twice[0] = once.data[0]
    with pytest.raises(LayoutError, match=r"expert 1, row 1, column 0 \(byte 16 of swizzle_128x4\)"):
        SWIZZLE_128X4.validate(twice, 128, 4, linear)
    with pytest.raises(LayoutError, match=r"expert 0, row 1, column 0 \(byte 4 of linear\)"):
        LINEAR.validate(once.data, 128, 4, linear)
