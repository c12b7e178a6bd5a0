"""E2M1, E4M3, bf16 and fp16 casts: exhaustive over bf16 inputs, against ml_dtypes where it is an oracle, and the
mirror."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numerics.bits import ALL_BF16, differing, neighbours, random_bits, uniform

from moegen.core.enums import Round, TokenDtype
from moegen.core.errors import TensorError
from moegen.numerics import e2m1, e4m3
from moegen.numerics.rounding import round_at, to_bf16, to_fp16, to_token

E4M3_MIDPOINTS = [
    (low + high) / 2 for low, high in itertools.pairwise(e4m3.decode(torch.arange(0x7F, dtype=torch.uint8)).tolist())
]
BROAD = torch.cat(
    (
        ALL_BF16,
        random_bits(1 << 17),
        uniform(-8, 8, 1 << 17),
        neighbours([midpoint for midpoint, _ in e2m1.MIDPOINTS] + [6.0, 448.0, 464.0, 480.0]),
        neighbours(E4M3_MIDPOINTS),
        neighbours([65504.0, 65520.0, 2.0**-14, 2.0**-24, 2.0**-25]),
    )
)


def test_e2m1_table():
    assert e2m1.decode(torch.arange(16)).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert torch.signbit(e2m1.decode(torch.tensor([8]))).item()


def test_e2m1_matches_ml_dtypes_on_every_bf16_value():
    finite = ALL_BF16[ALL_BF16.isfinite()]
    expected = torch.from_numpy(finite.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8))
    assert torch.equal(e2m1.encode(finite), expected & 0xF)


def test_e2m1_special_values():
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), -float("nan"), -0.0, -0.1])
    assert e2m1.encode(x).tolist() == [7, 15, 7, 7, 8, 8]


def test_half_step_rounds_twice():
    x = torch.tensor([2.6, 3.3, 5.25, -2.6, 0.2, 0.3, 7.0])
    assert e2m1.decode(e2m1.encode_half_step(x)).tolist() == [2.0, 4.0, 4.0, -2.0, 0.0, 0.5, 6.0]
    assert e2m1.decode(e2m1.encode(x)).tolist() == [3.0, 3.0, 6.0, -3.0, 0.0, 0.5, 6.0]


def test_e4m3_decodes_as_ml_dtypes():
    codes = torch.arange(256, dtype=torch.uint8)
    expected = torch.from_numpy(codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert differing(e4m3.decode(codes), expected).numel() == 0


def test_e4m3_matches_ml_dtypes_on_every_bf16_value_up_to_448():
    x = ALL_BF16[ALL_BF16.abs() <= 448]
    expected = torch.from_numpy(x.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    assert torch.equal(e4m3.encode(x), expected)


def test_e4m3_literal_bytes():
    x = torch.tensor([0.001, 247.9, 248.0, 250.0, 448.0, 464.1, 470.0, float("inf"), -float("inf"), float("nan"), -0.0])
    assert e4m3.encode(x).tolist() == [0x01, 0x77, 0x78, 0x78, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x80]


def test_e4m3_gives_nan_only_for_nan():
    codes = e4m3.encode(BROAD)
    assert torch.equal((codes & 0x7F) == 0x7F, BROAD.isnan())


def test_e4m3_is_the_nearest_value_with_ties_to_even():
    for index, midpoint in enumerate(E4M3_MIDPOINTS):
        below, at, above = np.nextafter(np.float32(midpoint), np.float32([0, midpoint, 1e9]))
        got = e4m3.encode(torch.tensor([float(below), float(at), float(above)])).tolist()
        assert got == [index, index + (index % 2), index + 1]


@pytest.mark.parametrize(
    ("name", "function"),
    [("e2m1_encode", e2m1.encode), ("e2m1_encode_half_step", e2m1.encode_half_step), ("e4m3_encode", e4m3.encode)],
)
def test_mirror_encodes_the_same_bytes(mirror, name, function):
    assert torch.equal(mirror.map(name, BROAD, dtype=torch.uint8), function(BROAD))


def test_mirror_decodes_the_same_values(mirror):
    codes = torch.arange(256, dtype=torch.uint8)
    assert differing(mirror.map("e4m3_decode", codes), e4m3.decode(codes)).numel() == 0
    assert differing(mirror.map("e2m1_decode", codes[:16].contiguous()), e2m1.decode(codes[:16])).numel() == 0


def test_every_code_times_every_scale_is_exact_in_bf16():
    products = (
        e2m1.decode(torch.arange(16))[:, None].double()
        * e4m3.decode(torch.arange(256, dtype=torch.uint8))[None, :].double()
    )
    finite = products[products.isfinite()]
    assert torch.equal(finite, finite.bfloat16().double())


def test_bf16_matches_ml_dtypes_and_has_one_nan(mirror):
    numbers = BROAD[~BROAD.isnan()]
    expected = torch.from_numpy(numbers.numpy().astype(ml_dtypes.bfloat16).view(np.int16))
    assert torch.equal(to_bf16(numbers).view(torch.int16), expected)
    assert set(to_bf16(BROAD[BROAD.isnan()]).view(torch.int16).tolist()) == {0x7FC0}
    assert torch.equal(mirror.map("bf16_encode", BROAD, dtype=torch.int16), to_bf16(BROAD).view(torch.int16))


def test_fp16_matches_numpy_and_has_one_nan(mirror):
    numbers = BROAD[~BROAD.isnan()]
    with np.errstate(over="ignore"):
        expected = torch.from_numpy(numbers.numpy().astype(np.float16).view(np.int16))
    assert torch.equal(to_fp16(numbers).view(torch.int16), expected)
    assert set(to_fp16(BROAD[BROAD.isnan()]).view(torch.int16).tolist()) == {0x7E00}
    assert torch.equal(mirror.map("f16_encode", BROAD, dtype=torch.int16), to_fp16(BROAD).view(torch.int16))


def test_mirror_widens_every_half_and_bf16(mirror):
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    assert differing(mirror.map("f16_decode", bits), bits.view(torch.float16).float()).numel() == 0
    assert differing(mirror.map("bf16_decode", bits), bits.view(torch.bfloat16).float()).numel() == 0


def test_rounding_points(mirror):
    assert differing(round_at(BROAD, Round.FP32), BROAD).numel() == 0
    assert differing(round_at(BROAD, Round.BF16), mirror.map("bf16_round", BROAD)).numel() == 0
    assert differing(to_token(BROAD, TokenDtype.FP16).float(), mirror.map("f16_round", BROAD)).numel() == 0


@given(st.lists(st.integers(0, 15), min_size=2, max_size=70).filter(lambda codes: len(codes) % 2 == 0))
def test_packing_round_trips_and_zero_fills(codes):
    row = torch.tensor(codes, dtype=torch.uint8)
    packed = e2m1.pack(row)
    assert packed.shape[-1] % 16 == 0
    assert not packed[len(codes) // 2 :].any()
    assert torch.equal(e2m1.unpack(packed, len(codes)), row)
    assert packed[0].item() == codes[0] | codes[1] << 4


@pytest.mark.parametrize("columns", [0, 16, 34, 64])
def test_packed_rows_decode_as_their_codes(columns):
    packed = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
    expected = e2m1.decode(e2m1.unpack(packed, columns))
    assert differing(e2m1.decode_packed(packed, columns), expected).numel() == 0


def test_packing_refuses_what_does_not_fit():
    with pytest.raises(TensorError, match="even K"):
        e2m1.pack(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(TensorError, match="do not hold"):
        e2m1.unpack(torch.zeros(8, dtype=torch.uint8), 18)


@pytest.mark.parametrize("read", [e4m3.decode, lambda tensor: e2m1.unpack(tensor, 2)])
def test_only_bytes_are_read_as_codes(read):
    with pytest.raises(TensorError, match="int64 tensor where bytes are expected"):
        read(torch.zeros(4, dtype=torch.int64))


def test_one_byte_float_dtypes_are_read_as_their_bytes():
    data = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(e4m3.decode(data.view(torch.float8_e4m3fn)), e4m3.decode(data))
    assert torch.equal(e2m1.unpack(data.view(torch.float4_e2m1fn_x2), 32), e2m1.unpack(data, 32))
