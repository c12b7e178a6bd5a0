"""The private weight packs and row order: literal places, round trips, refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moegen.codegen.catalogs.sm90 import ROWS_LAYOUT
from moegen.core.enums import ScaleLayout
from moegen.core.errors import LayoutError
from moegen.numerics.layouts import SM90_PACK, SM90_PIECES_PACK, Projection
from moegen.numerics.layouts.sm90 import expert_bytes
from moegen.numerics.reference import row_layout

LINEAR = ScaleLayout.LINEAR


def projection(experts: int, rows: int, depth: int, seed: int = 0) -> Projection:
    source = torch.Generator().manual_seed(seed)
    return Projection(
        codes=torch.randint(0, 256, (experts, rows, depth // 2), dtype=torch.uint8, generator=source),
        scales=torch.randint(1, 0x7F, (experts, rows, depth // 16), dtype=torch.uint8, generator=source),
    )


def single(rows: int, depth: int, row: int, column: int, code: int) -> Projection:
    """All zero codes but one, all scales 1."""
    codes = torch.zeros(1, rows, depth // 2, dtype=torch.uint8)
    codes[0, row, column // 2] = code << (4 * (column % 2))
    return Projection(codes=codes, scales=torch.full((1, rows, depth // 16), 0x38, dtype=torch.uint8))


@settings(max_examples=12)
@given(
    halves=st.integers(1, 2),
    rows=st.sampled_from([16, 48, 80, 144, 176, 208]),
    depth=st.sampled_from([16, 64, 80, 128, 144, 176, 272]),
)
def test_packing_loses_nothing(halves: int, rows: int, depth: int) -> None:
    parts = tuple(projection(2, rows, depth, seed) for seed in range(halves))
    packs = (SM90_PACK,) if halves == 2 else (SM90_PACK, SM90_PIECES_PACK)
    for pack in packs:
        tensors = pack.pack(parts, LINEAR)
        found = pack.unpack(tensors, rows=rows, depth=depth, halves=halves, layout=LINEAR)
        for part, back in zip(parts, found, strict=True):
            assert torch.equal(part.codes, back.codes)
            assert torch.equal(part.scales, back.scales)


@pytest.mark.parametrize(
    ("row", "column", "byte", "value"),
    [
        # W2 row 0 is thread 0, word 0, pair 0, low half: e e m at bits 8 7 6, sign at 15. Code 0x9 is sign and m.
        (0, 0, 512, 0x40),
        (0, 0, 513, 0x80),
        # Row 2 is row 8 of the fragment (upper half): pair 1, e e m at 11 10 9, sign at bit 18.
        (2, 0, 513, 0x02),
        (2, 0, 514, 0x04),
        # K 64 begins the second chunk of codes.
        (0, 64, 512 + 2048, 0x40),
        # Row 17 is the second warp's row 1: thread 32 + 4.
        (17, 0, 512 + 36 * 16, 0x40),
        # K 21 = 16·1 + 4·1 + 1: block 1 is the quad's lane 1, word 1, odd half of pair 0: m at bit 22.
        (0, 21, 512 + 16 + 4 + 2, 0x40),
    ],
)
def test_a_code_lies_where_the_decoder_looks(row: int, column: int, byte: int, value: int) -> None:
    packed = SM90_PACK.pack((single(64, 128, row, column, 0x9),), LINEAR)["packed"][0]
    assert packed.numel() == 4608
    assert packed[byte] & value == value


def test_gate_and_up_share_a_thread() -> None:
    gate, up = single(64, 128, 5, 0, 0x7), single(64, 128, 5, 0, 0x7)
    zero = single(64, 128, 5, 0, 0)
    only_gate = SM90_PACK.pack((gate, zero), LINEAR)["packed"][0]
    only_up = SM90_PACK.pack((zero, up), LINEAR)["packed"][0]
    empty = SM90_PACK.pack((zero, zero), LINEAR)["packed"][0]
    places = [int((data != empty).nonzero()[0]) // 16 for data in (only_gate, only_up)]
    assert places[0] == places[1]


def test_scales_become_bf16_by_a_shift() -> None:
    """(byte << 4 | 0x7000) read as bf16 is the E4M3 value times 2^119, subnormals included."""
    for byte in (0x01, 0x03, 0x07, 0x08, 0x38, 0x7E):
        part = Projection(
            codes=torch.full((1, 64, 64), 0x22, dtype=torch.uint8),
            scales=torch.full((1, 64, 8), byte, dtype=torch.uint8),
        )
        packed = SM90_PACK.pack((part,), LINEAR)["packed"][0]
        word = int.from_bytes(bytes(packed[:4].tolist()), "little")
        bits = (word >> 4 & 0xFF) << 4 | 0x7000
        value = torch.tensor([bits], dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double().item()
        exact = torch.tensor([byte], dtype=torch.uint8).view(torch.float8_e4m3fn).double().item()
        assert value == exact * 2.0**119


@pytest.mark.parametrize(("tiles", "depth"), [(4, 128), (4, 256), (6, 2048)])
def test_the_pack_has_no_overhead_at_whole_tiles(tiles: int, depth: int) -> None:
    assert expert_bytes(tiles, depth) == tiles * 64 * (depth // 2 + depth // 16)


def test_a_depth_of_2880_costs_a_quarter_of_a_percent() -> None:
    assert expert_bytes(45, 2880) / (2880 * (2880 // 2 + 2880 // 16)) < 1.0026


def test_nan_scales_are_refused_with_their_place() -> None:
    part = projection(3, 32, 64)
    part.scales[2, 7, 1] = 0x7F
    with pytest.raises(LayoutError, match=r"expert 2, row, block \[7, 1\]"):
        SM90_PACK.pack((part,), LINEAR)


def test_a_foreign_tensor_is_refused() -> None:
    tensors = SM90_PACK.pack((projection(1, 64, 128),), LINEAR)
    with pytest.raises(LayoutError, match="expected"):
        SM90_PACK.unpack(tensors, rows=64, depth=144, halves=1, layout=LINEAR)
    tensors["packed"][0, :512] = 0xFF
    with pytest.raises(LayoutError, match="scale byte"):
        SM90_PACK.unpack(tensors, rows=64, depth=128, halves=1, layout=LINEAR)


def test_rows_lie_where_the_kernels_look() -> None:
    rows = torch.arange(16 * 176, dtype=torch.int32).view(16, 176).to(torch.int16)
    buffer = row_layout(ROWS_LAYOUT).pack(rows).flatten()
    # Row 11 is row 3 of group 1; k 103 is in chunk 1 at 39 = 16·2 + 4·1 + 2·1 + 1: piece 3, pair 2, odd.
    atom = (1 * 4 + 1) * 512
    assert buffer[atom + 3 * 64 + (3 ^ 3) * 8 + 2 * 2 + 1] == rows[11, 103]
    assert torch.equal(row_layout(ROWS_LAYOUT).unpack(buffer.view(16, 256), 176), rows)
    assert (row_layout(ROWS_LAYOUT).pack(torch.ones(8, 80)).view(-1).sort().values[: 8 * 48] == 0).all()


def test_rows_must_be_whole_groups() -> None:
    with pytest.raises(LayoutError, match="multiple of 8"):
        row_layout(ROWS_LAYOUT).pack(torch.zeros(9, 64))
