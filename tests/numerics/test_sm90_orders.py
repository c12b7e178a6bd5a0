"""The private weight packs and row order of sm_90a: inverses, permutations of bits, and no change to any result."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numerics.layers import Layer

from moegen.core.enums import Epilogue, OpKind, ScaleLayout
from moegen.core.errors import LayoutError
from moegen.numerics import e2m1, run_pipeline
from moegen.numerics.layouts import Projection, weight_pack
from moegen.numerics.layouts.sm90 import PACK, PACK_FP16, PIECES, PIECES_FP16, expert_bytes
from moegen.numerics.layouts.sm90_rows import K64R8

LINEAR = ScaleLayout.LINEAR


def projection(rows: int, depth: int, seed: int, lowest_scale: int = 1) -> Projection:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (2, rows, depth // 2), dtype=torch.uint8, generator=generator)
    scales = torch.randint(lowest_scale, 0x7F, (2, rows, depth // 16), dtype=torch.uint8, generator=generator)
    return Projection(codes=codes, scales=scales)


@pytest.mark.parametrize("depth", [16, 64, 80, 144, 192, 256])
@pytest.mark.parametrize("rows", [16, 64, 176])
@pytest.mark.parametrize(("pack", "halves"), [(PACK, 1), (PACK, 2), (PIECES, 1), (PACK_FP16, 2), (PIECES_FP16, 1)])
def test_packs_round_trip_bit_for_bit(pack, halves, rows, depth):
    parts = tuple(projection(rows, depth, seed) for seed in range(halves))
    packed = pack.pack(parts, LINEAR)
    assert packed["packed"].shape == (2, expert_bytes(pack.tiles(halves, rows), depth))
    back = weight_pack(pack.name).unpack(packed, rows=rows, depth=depth, halves=halves, layout=LINEAR)
    for got, part in zip(back, parts, strict=True):
        assert torch.equal(got.codes, part.codes)
        assert torch.equal(got.scales, part.scales)


def test_codes_under_a_zero_scale_come_back_as_zero():
    part = projection(64, 128, 3, lowest_scale=0)
    part.scales[:, ::3, 1] = 0
    (back,) = PACK.unpack(PACK.pack((part,), LINEAR), rows=64, depth=128, halves=1, layout=LINEAR)
    assert torch.equal(back.scales, part.scales)
    zero = (part.scales == 0).repeat_interleave(16, dim=-1)
    codes = e2m1.unpack(back.codes, 128)
    assert not codes[zero].any()
    assert torch.equal(codes[~zero], e2m1.unpack(part.codes, 128)[~zero])


@given(pack=st.sampled_from([PACK, PACK_FP16]), row=st.integers(0, 63), byte=st.integers(0, 63), bit=st.integers(0, 7))
def test_every_code_bit_has_one_place(pack, row, byte, bit):
    part = projection(64, 128, 5)
    changed = part.codes.clone()
    changed[0, row, byte] ^= 1 << bit
    before = pack.pack((part,), LINEAR)["packed"]
    after = pack.pack((Projection(codes=changed, scales=part.scales),), LINEAR)["packed"]
    difference = (before ^ after)[0]
    assert int((difference != 0).sum()) == 1
    assert int(difference.max()).bit_count() == 1


@pytest.mark.parametrize("byte", [0x7F, 0x81])
def test_scales_that_no_weight_has_are_refused(byte):
    part = projection(64, 64, 1)
    part.scales[1, 5, 2] = byte
    with pytest.raises(LayoutError, match=rf"expert 1, row, block \[5, 2\].*{byte:#04x}"):
        PACK.pack((part,), LINEAR)


def test_another_shape_is_refused():
    packed = PACK.pack((projection(64, 64, 1),), LINEAR)
    with pytest.raises(LayoutError, match="expected"):
        PACK.unpack(packed, rows=64, depth=128, halves=1, layout=LINEAR)
    with pytest.raises(LayoutError, match="without a gate"):
        PIECES.pack((projection(64, 64, 1), projection(64, 64, 2)), LINEAR)


@given(groups=st.integers(0, 3), columns=st.sampled_from([16, 64, 80, 176, 256]))
def test_row_order_is_a_permutation_and_round_trips(groups, columns):
    rows = torch.arange(8 * groups * columns, dtype=torch.int16).reshape(8 * groups, columns) + 1
    packed = K64R8().pack(rows)
    assert packed.shape == (8 * groups, -(-columns // 128) * 128)
    assert torch.equal(packed[packed != 0].sort().values, rows.flatten())
    assert torch.equal(K64R8().unpack(packed, columns), rows)


@given(tokens=st.integers(0, 9), columns=st.sampled_from([16, 64, 80, 176, 256]))
def test_single_tokens_are_the_first_rows_of_groups(tokens, columns):
    """Row 0 of a group moves no pieces: arranging a token is packing it there."""
    rows = torch.arange(tokens * columns, dtype=torch.int16).reshape(tokens, columns) + 1
    arranged = K64R8().arrange(rows)
    assert torch.equal(K64R8().restore(arranged, columns), rows)
    groups = torch.zeros(8 * tokens, columns, dtype=torch.int16)
    groups[::8] = rows
    chunks = -(-columns // 128) * 2
    firsts = K64R8().pack(groups).view(tokens, chunks, 8, 64)[:, :, 0] if tokens else arranged.view(0, chunks, 64)
    assert torch.equal(arranged.view(tokens, chunks, 64), firsts)
    with pytest.raises(LayoutError, match="expected"):
        K64R8().restore(arranged, columns + 128)


def test_row_order_refuses_partial_groups():
    with pytest.raises(LayoutError, match="multiple of 8"):
        K64R8().pack(torch.zeros(12, 64))


@pytest.mark.parametrize("epilogue", [Epilogue.COMPACT, Epilogue.INTERLEAVED])
def test_a_layer_in_private_orders_gives_the_same_result(epilogue):
    layer = Layer(w4a4=False, fused_gather=False, row_tile=8, epilogue=epilogue)
    expected = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)["y"]
    moved = (OpKind.GATHER, OpKind.GEMM1, OpKind.DEINTERLEAVE, OpKind.GEMM2)
    ops = [replace(op, weight_pack=PACK.name, rows_layout="k64r8" if op.kind in moved else "") for op in layer.ops()]
    buffers = layer.buffers()
    for name, halves in (("w1", layer.weights.w1), ("w2", (layer.weights.w2,))):
        buffers[f"{name}_packed"] = PACK.pack(halves, LINEAR)["packed"]
        del buffers[f"{name}_codes"], buffers[f"{name}_scales"]
    assert torch.equal(run_pipeline(ops, buffers, first_expert=layer.first_expert)["y"], expected)
