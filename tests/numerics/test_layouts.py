"""Layouts: literal offsets, an independent index computation, inverses, and what they refuse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moegen.core.enums import GateUpOrder, ScaleLayout
from moegen.core.errors import LayoutError, TensorError
from moegen.numerics import layouts
from moegen.numerics.layouts import (
    LINEAR,
    SWIZZLE_8X4,
    SWIZZLE_128X4,
    TRANSPOSED,
    ExpertRows,
    GateUpRows,
    Projection,
    ScaleTensor,
)

SIZES = [(129, 5), (17, 180), (1, 80), (300, 22), (0, 5), (129, 704), (8, 4)]


def numbered(*shape: int) -> torch.Tensor:
    """Bytes 1…251 in order, so that neighbours differ and no element is 0."""
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count) % 251 + 1).to(torch.uint8).reshape(shape)


@pytest.mark.parametrize(
    ("row", "column", "offset"), [(0, 4, 512), (1, 0, 16), (32, 0, 4), (33, 5, 533), (127, 7, 1023), (128, 0, 1024)]
)
def test_swizzle_128x4_has_its_literal_offsets(row, column, offset):
    assert SWIZZLE_128X4.offsets(256, 8)[row, column] == offset
    scales = torch.zeros(256, 8, dtype=torch.uint8)
    scales[row, column] = 77
    assert SWIZZLE_128X4.pack(scales).flatten()[offset] == 77


@pytest.mark.parametrize(
    ("row", "column", "offset"), [(0, 3, 3), (1, 0, 4), (7, 3, 31), (0, 4, 32), (8, 0, 64), (9, 5, 101)]
)
def test_swizzle_8x4_has_its_literal_offsets(row, column, offset):
    scales = torch.zeros(16, 8, dtype=torch.uint8)
    scales[row, column] = 77
    assert SWIZZLE_8X4.pack(scales).flatten()[offset] == 77


def test_sizes_of_field_notes_in_scale_columns():
    assert [
        SWIZZLE_128X4.pack(torch.zeros(m, k // 16, dtype=torch.uint8)).numel()
        for m, k in ((1, 80), (129, 704), (17, 2880))
    ] == [
        1024,
        11_264,
        23_040,
    ]


@pytest.mark.parametrize("tag", layouts.LAYOUTS)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_moving_by_views_equals_the_offset_formula(tag, rows, columns):
    layout = layouts.LAYOUTS[tag]
    scales = numbered(2, rows, columns)
    packed = layout.pack(scales)
    assert tuple(packed.shape[1:]) == layout.shape(rows, columns)
    by_formula = torch.zeros(2, packed[0].numel(), dtype=torch.uint8)
    for m in range(rows):
        for k in range(columns):
            by_formula[:, plain_offset(tag, m, k, rows, columns)] = scales[:, m, k]
    assert torch.equal(packed.flatten(1), by_formula)
    assert torch.equal(layout.unpack(packed, rows, columns), scales)
    layout.validate(packed, rows, columns, scales)


def plain_offset(tag: str, m: int, k: int, rows: int, columns: int) -> int:
    """Offsets written out in integers, independently of the package."""
    padded_columns = -(-columns // 4) * 4
    if tag == "linear":
        return m * columns + k
    if tag == "transposed":
        return k * rows + m
    if tag == "swizzle_8x4":
        return (m // 8 * (padded_columns // 4) + k // 4) * 32 + m % 8 * 4 + k % 4
    return (m // 128 * (padded_columns // 4) + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4


def test_swizzle_equals_the_torch_view_of_the_block_scaled_gemm():
    """torch._scaled_mm's documented order: tiles of 128×4 as (32, 4 row groups, 4 columns)."""
    scales = numbered(256, 12)
    expected = torch.cat(
        [
            scales[128 * i : 128 * i + 128, 4 * j : 4 * j + 4].reshape(4, 32, 4).permute(1, 0, 2).flatten()
            for i in range(2)
            for j in range(3)
        ]
    )
    assert torch.equal(SWIZZLE_128X4.pack(scales).flatten(), expected)


def test_float8_scales_pack_as_their_bytes():
    scales = numbered(3, 5)
    assert torch.equal(SWIZZLE_128X4.pack(scales.view(torch.float8_e4m3fn)), SWIZZLE_128X4.pack(scales))


def test_validator_names_the_first_wrong_scale():
    scales = numbered(2, 40, 6)
    packed = SWIZZLE_128X4.pack(scales)
    packed[1].view(-1)[plain_offset("swizzle_128x4", 33, 5, 40, 6)] ^= 1
    with pytest.raises(LayoutError, match=r"expert 1, row 33, column 5 \(byte 533") as caught:
        SWIZZLE_128X4.validate(packed, 40, 6, scales)
    assert "expected" in caught.value.what


def test_validator_names_the_first_stale_padding_byte():
    packed = SWIZZLE_128X4.pack(numbered(40, 6))
    packed.view(-1)[plain_offset("swizzle_128x4", 40, 0, 40, 6)] = 9
    with pytest.raises(LayoutError, match=r"expert 0, byte 132: padding byte is 0x09"):
        SWIZZLE_128X4.validate(packed, 40, 6)


def test_a_second_swizzle_is_refused():
    swizzled = ScaleTensor.linear(numbered(129, 5)).pack(SWIZZLE_128X4)
    with pytest.raises(LayoutError, match="lie in swizzle_128x4, linear is needed"):
        swizzled.pack(SWIZZLE_128X4)
    assert torch.equal(swizzled.unpack().data, numbered(129, 5))


def test_a_consumer_of_another_layout_is_refused():
    with pytest.raises(LayoutError, match="lie in linear, swizzle_128x4 is needed"):
        ScaleTensor.linear(numbered(128, 8)).require(SWIZZLE_128X4)
    assert ScaleTensor.linear(numbered(2, 4)).pack(SWIZZLE_8X4).require(SWIZZLE_8X4).shape == (8, 4)


def test_a_linear_tensor_cannot_be_tagged_as_swizzled():
    with pytest.raises(LayoutError, match="is not swizzle_128x4 of 129 rows"):
        ScaleTensor(data=numbered(129, 5), layout=SWIZZLE_128X4, rows=129, columns=5)


@given(
    experts=st.integers(0, 3),
    rows=st.integers(0, 140),
    columns=st.integers(0, 9),
    tag=st.sampled_from(sorted(layouts.LAYOUTS)),
)
def test_every_layout_round_trips(experts, rows, columns, tag):
    layout = layouts.LAYOUTS[tag]
    scales = torch.randint(0, 256, (experts, rows, columns), dtype=torch.uint8)
    packed = layout.pack(scales)
    assert torch.equal(layout.unpack(packed, rows, columns), scales)
    assert int((packed != 0).sum()) == int((scales != 0).sum())


def test_specs_choose_a_layout_by_name():
    assert layouts.scale_layout(ScaleLayout.LINEAR) == LINEAR
    assert layouts.scale_layout(ScaleLayout.SWIZZLE_128X4) == SWIZZLE_128X4


# Gate and up rows


def row_names(half: str, count: int) -> list[str]:
    return [f"{half}{row}" for row in range(count)]


def order_of(rows: GateUpRows, count: int) -> list[str]:
    names = row_names("g", count) + row_names("u", count)
    return [names[source] for source in rows.sources(count).tolist()]


def test_gate_up_orders_are_as_their_readers_have_them():
    assert order_of(GateUpRows(), 2) == ["g0", "g1", "u0", "u1"]
    assert order_of(GateUpRows(gate_first=False), 2) == ["u0", "u1", "g0", "g1"]
    assert order_of(GateUpRows(interleave=1), 3) == ["g0", "u0", "g1", "u1", "g2", "u2"]
    eights = order_of(GateUpRows(interleave=8), 16)
    assert eights == row_names("g", 8) + row_names("u", 8) + [f"g{r}" for r in range(8, 16)] + [
        f"u{r}" for r in range(8, 16)
    ]
    assert order_of(GateUpRows(gate_first=False, interleave=64), 64)[::64] == ["u0", "g0"]


@given(
    order=st.builds(GateUpRows, gate_first=st.booleans(), interleave=st.sampled_from(layouts.INTERLEAVES)),
    groups=st.integers(0, 3),
    dim=st.sampled_from([0, -1]),
)
def test_gate_up_round_trips(order, groups, dim):
    rows = groups * (order.interleave or 5)
    gate, up = torch.randn(rows, rows), torch.randn(rows, rows)
    fused = order.pack(gate, up, dim)
    assert fused.shape[dim] == 2 * rows
    back = order.unpack(fused, dim)
    assert torch.equal(back[0], gate)
    assert torch.equal(back[1], up)


def test_checkpoint_orders_map_to_row_orders():
    assert [layouts.checkpoint_rows(order).tag for order in GateUpOrder] == ["gate_up_0", "up_gate_0", "gate_up_1"]


def test_gate_up_refuses_what_it_cannot_order():
    with pytest.raises(LayoutError, match="not whole groups of 32"):
        GateUpRows(interleave=32).pack(torch.zeros(176, 4), torch.zeros(176, 4))
    with pytest.raises(LayoutError, match="differ"):
        GateUpRows().pack(torch.zeros(3, 4), torch.zeros(2, 4))
    with pytest.raises(LayoutError, match="one of"):
        GateUpRows(interleave=3)
    with pytest.raises(LayoutError, match="7 fused rows"):
        GateUpRows().unpack(torch.zeros(7, 2))


# Rows of experts


def test_expert_rows_pad_each_expert_and_no_empty_one():
    rows = ExpertRows(counts=(3, 0, 5), row_tile=4)
    assert rows.offsets == (0, 4, 4, 12)
    assert rows.rows().tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
    padded = rows.pack(torch.arange(1.0, 9)[:, None])
    assert padded[:, 0].tolist() == [1, 2, 3, 0, 4, 5, 6, 7, 8, 0, 0, 0]
    rows.validate(padded)


@given(counts=st.lists(st.integers(0, 9), max_size=5), row_tile=st.sampled_from([1, 4, 7]))
def test_expert_rows_round_trip(counts, row_tile):
    rows = ExpertRows(counts=tuple(counts), row_tile=row_tile)
    dense = torch.randn(sum(counts), 3)
    padded = rows.pack(dense)
    rows.validate(padded)
    assert len(padded) % row_tile == 0
    assert torch.equal(rows.unpack(padded), dense)


def test_expert_rows_name_the_first_stale_row():
    rows = ExpertRows(counts=(3, 5), row_tile=4)
    padded = rows.pack(torch.ones(8, 2))
    padded[10, 1] = 1e-30
    with pytest.raises(LayoutError, match=r"row 10 \(expert 1\)"):
        rows.validate(padded)
    with pytest.raises(LayoutError, match="11 rows, expected 12"):
        rows.validate(padded[:11])


# Packs


def projection(experts: int, rows: int, depth: int, seed: int) -> Projection:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (experts, rows, depth // 2), dtype=torch.uint8, generator=generator)
    return Projection(
        codes=codes, scales=torch.randint(0, 127, (experts, rows, depth // 16), dtype=torch.uint8, generator=generator)
    )


@pytest.mark.parametrize("layout", ScaleLayout)
@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("depth", [64, 80, 144, 176])
def test_rows8_round_trips_and_places_each_row(layout, halves, depth):
    parts = tuple(projection(3, 24, depth, seed) for seed in range(halves))
    codes, scales = layouts.pack_rows8(parts, layout)
    assert codes.shape == (3, 24 * halves, -(-depth // 32) * 16)
    assert not codes[..., depth // 2 :].any()
    row = 8 + 3 if halves == 2 else 3
    assert torch.equal(codes[1, row, : depth // 2], parts[-1].codes[1, 3])
    back = layouts.weight_pack("rows8").unpack(
        {"codes": codes, "scales": scales}, rows=24, depth=depth, halves=halves, layout=layout
    )
    for got, part in zip(back, parts, strict=True):
        assert torch.equal(got.codes, part.codes)
        assert torch.equal(got.scales, part.scales)
    layouts.scale_layout(layout).validate(scales, 24 * halves, depth // 16)


def test_bias_follows_the_rows():
    gate, up = torch.arange(16.0)[None], torch.arange(100.0, 116)[None]
    fused = layouts.fuse_rows((gate, up), dim=-1)
    assert fused[0, [0, 8, 16, 24]].tolist() == [0, 100, 8, 108]
    assert torch.equal(layouts.split_rows(fused, 2, dim=-1)[1], up)


def test_projections_refuse_scales_that_do_not_belong():
    with pytest.raises(TensorError, match="transposed scale"):
        Projection(codes=torch.zeros(2, 48, 32, dtype=torch.uint8), scales=torch.zeros(2, 4, 48, dtype=torch.uint8))


def test_unpacking_refuses_another_shape():
    codes, scales = layouts.pack_rows8((projection(2, 24, 80, 0),), ScaleLayout.LINEAR)
    with pytest.raises(LayoutError, match=r"expected \[E, 24, 32\]"):
        layouts.weight_pack("rows8").unpack(
            {"codes": codes, "scales": scales}, rows=24, depth=64, halves=1, layout=ScaleLayout.LINEAR
        )


def test_packs_are_known_by_name():
    with pytest.raises(LayoutError, match=r"no weight pack 'rows9'.*rows8"):
        layouts.weight_pack("rows9")

    class Other:
        name = "rows8"
        pack = unpack = None

    with pytest.raises(LayoutError, match="two packs are named rows8"):
        layouts.register_pack(Other())  # pyright: ignore[reportArgumentType]


def test_checkpoint_scales_are_checked_before_packing():
    good = numbered(2, 7, 5) % 100
    assert torch.equal(layouts.check_scales("w", good.view(torch.float8_e4m3fn), 7, 5), good)
    good[1, 3, 2] = 0xFF
    with pytest.raises(LayoutError, match=r"w\[1, 3, 2\]: scale is NaN"):
        layouts.check_scales("w", good, 7, 5)
    with pytest.raises(LayoutError, match="TRANSPOSED"):
        layouts.check_scales("w", numbered(2, 6, 6).transpose(1, 2), 6, 6)
    assert torch.equal(TRANSPOSED.unpack(numbered(2, 5, 7), 7, 5), numbered(2, 5, 7).transpose(1, 2))
