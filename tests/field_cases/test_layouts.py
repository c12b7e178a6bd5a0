"""Field cases of scale layouts and weight order (category c and its neighbours)."""

import pytest
import torch

from moegen.core.enums import ActivationKind, ScaleLayout
from moegen.core.errors import LayoutError, TensorError
from moegen.core.ops import Activation
from moegen.numerics import LayerWeights, e2m1, e4m3, layer_reference
from moegen.numerics.layouts import (
    LINEAR,
    SWIZZLE_8X4,
    SWIZZLE_128X4,
    GateUpRows,
    Projection,
    ScaleTensor,
    check_scales,
    pack_rows8,
    weight_pack,
)

SWIGLU = Activation(kind=ActivationKind.SWIGLU)


def distinct(*shape: int) -> torch.Tensor:
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count) % 125 + 1).to(torch.uint8).reshape(shape)


def constant_projection(value: float, experts: int, rows: int, depth: int) -> Projection:
    """Weights whose first column is ``value`` and the rest 0; scales are 1."""
    dense = torch.zeros(experts, rows, depth)
    dense[..., 0] = value
    codes = e2m1.pack(e2m1.encode(dense), depth // 2)
    return Projection(codes=codes, scales=torch.full((experts, rows, depth // 16), 0x38, dtype=torch.uint8))


@pytest.mark.parametrize(("depth", "columns"), [(80, 5), (464, 29), (352, 22)])
@pytest.mark.parametrize("layout", [SWIZZLE_128X4, SWIZZLE_8X4])
def test_fr_09_padded_scale_columns_are_zero(depth, columns, layout):
    packed = layout.pack(distinct(7, columns))
    layout.validate(packed, 7, depth // 16)
    assert int((packed != 0).sum()) == 7 * columns


def test_fr_10_an_experts_stride_counts_padded_rows():
    scales = distinct(2, 144, 4)
    packed = SWIZZLE_128X4.pack(scales)
    assert packed[1].data_ptr() - packed[0].data_ptr() == 256 * 4
    assert packed[1].flatten()[16] == scales[1, 1, 0]


@pytest.mark.parametrize("rows", [1, 17, 33])
def test_fr_16_padding_rows_are_zero(rows):
    packed = SWIZZLE_128X4.pack(distinct(rows, 6))
    assert packed.shape == (128, 8)
    SWIZZLE_128X4.validate(packed, rows, 6)
    packed.flatten()[-1] = 0x7F
    with pytest.raises(LayoutError, match="padding byte is 0x7f"):
        SWIZZLE_128X4.validate(packed, rows, 6)


def test_fr_17_a_swizzled_tensor_is_not_swizzled_again():
    scales = distinct(129, 5)
    swizzled = ScaleTensor.linear(scales).pack(SWIZZLE_128X4)
    assert swizzled.data.shape == (256, 8)
    assert torch.equal(swizzled.unpack().data, scales)
    with pytest.raises(LayoutError, match="linear is needed"):
        swizzled.pack(SWIZZLE_128X4)


def test_fr_17_literal_offsets():
    scales = distinct(256, 8)
    packed = SWIZZLE_128X4.pack(scales).flatten()
    for (row, column), offset in {
        (0, 4): 512,
        (1, 0): 16,
        (32, 0): 4,
        (33, 5): 533,
        (127, 7): 1023,
        (128, 0): 1024,
    }.items():
        assert packed[offset] == scales[row, column]


def swiglu_of(gate: float, up: float, alphas: tuple[float, float] = (1.0, 1.0)) -> float:
    """One expert's first activated value for x = (1, 0, …), through the public pack and back."""
    halves = (constant_projection(gate, 1, 16, 32), constant_projection(up, 1, 16, 32))
    codes, scales = pack_rows8(halves, ScaleLayout.SWIZZLE_128X4)
    tensors = {"codes": codes, "scales": scales}
    w1 = weight_pack("rows8").unpack(tensors, rows=16, depth=32, halves=2, layout=ScaleLayout.SWIZZLE_128X4)
    weights = LayerWeights(
        w1=w1,
        w2=constant_projection(1.0, 1, 32, 16),
        w1_alpha=torch.tensor([alphas]),
        w2_alpha=torch.ones(1, 1),
    )
    x = torch.zeros(1, 32)
    x[0, 0] = 1.0
    ids, ones = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1)
    return layer_reference(x, ids, ones, weights, SWIGLU)[0, 0].item()


def test_fr_18_gate_and_up_keep_their_places():
    assert swiglu_of(2.0, -1.0) == pytest.approx(-1.7616, abs=1e-4)
    assert swiglu_of(-1.0, 2.0) == pytest.approx(-0.5379, abs=1e-4)


def test_fr_18_the_order_is_a_value_that_decides_the_rows():
    gate, up = torch.full((8, 1), 2.0), torch.full((8, 1), -1.0)
    file = GateUpRows(gate_first=False).pack(gate, up)
    assert torch.equal(file[:8], up)
    assert torch.equal(GateUpRows(gate_first=False).unpack(file)[0], gate)
    assert GateUpRows().tag != GateUpRows(gate_first=False).tag


def test_fr_19_each_half_uses_its_own_second_level_scale():
    gate, up = 3.85e-5, 4.83e-5
    assert up / gate == pytest.approx(1.2545, abs=1e-4)
    both = swiglu_of(6.0, 6.0, (gate, up))
    assert swiglu_of(6.0, 6.0, (gate, gate)) * up / gate == pytest.approx(both, rel=1e-5)
    assert both == pytest.approx(0.5 * (6 * gate) * (6 * up), rel=1e-3)


def test_sd_05_transposed_scales_are_refused():
    codes = torch.zeros(2, 48, 64, dtype=torch.uint8)
    with pytest.raises(TensorError, match="transposed scale tensor"):
        Projection(codes=codes, scales=torch.zeros(2, 8, 48, dtype=torch.uint8))
    with pytest.raises(LayoutError, match="TRANSPOSED"):
        check_scales("w1.weight_scale", torch.zeros(2, 8, 48, dtype=torch.uint8), 48, 8)


def test_sd_05_transposed_scales_are_refused_also_when_square():
    square = distinct(8, 8)
    with pytest.raises(LayoutError, match="not a transposed view"):
        ScaleTensor.linear(square.T)
    with pytest.raises(LayoutError, match=r"row 0, column 1 \(byte 1 of linear\)"):
        LINEAR.validate(square.T.contiguous(), 8, 8, square)


def test_scale_bytes_survive_packing_bit_for_bit():
    scales = distinct(3, 48, 5)
    codes = torch.randint(0, 256, (3, 48, 40), dtype=torch.uint8)
    packed = pack_rows8((Projection(codes=codes, scales=scales.view(torch.float8_e4m3fn)),), ScaleLayout.SWIZZLE_128X4)
    tensors = dict(zip(("codes", "scales"), packed, strict=True))
    (back,) = weight_pack("rows8").unpack(tensors, rows=48, depth=80, halves=1, layout=ScaleLayout.SWIZZLE_128X4)
    assert torch.equal(back.codes, codes)
    assert torch.equal(e4m3.decode(back.scales), e4m3.decode(scales))
