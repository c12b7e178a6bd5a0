"""Field cases of quantising (category a, and quantiser lessons): each asserts the right bytes for every contract."""

import pytest
import torch

from moegen.core.enums import Contract
from moegen.numerics import (
    block_amax,
    contracts,
    dequantize,
    dynamic_pair,
    e2m1,
    e4m3,
    pair_from_decode,
    quantize_rows,
    unscaled_values,
)
from moegen.numerics.compare import compare_codes

ALL = list(Contract)
FLOORED = (Contract.TORCHAO, Contract.MODELOPT, Contract.COMPRESSED_TENSORS, Contract.COMPRESSED_TENSORS_BF16)
"""Contracts that never store a zero scale."""
ONE = torch.ones(2)


def normal(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("contract", ALL)
def test_fr_01_zeros_quantise_to_zeros(contract):
    zeros = torch.zeros(4, 64)
    zeros[1, 3] = -0.0
    pair = dynamic_pair(zeros, contract)
    got = quantize_rows(zeros, pair[0], contract)
    assert pair.isfinite().all()
    assert not ((got.scales & 0x7F) == 0x7F).any()
    codes = e2m1.unpack(got.codes, 64)
    assert codes[1, 3] == 0x8
    assert int(codes.sum()) == 0x8
    assert not dequantize(got, pair[0, 1]).any()


@pytest.mark.parametrize("contract", ALL)
def test_fr_01_a_zero_row_leaves_the_others_alone(contract):
    x = normal(4, 64)
    x[2] = 0
    pair = dynamic_pair(x, contract)[0]
    with_zero = quantize_rows(x, pair, contract)
    others = [0, 1, 3]
    without = quantize_rows(x[others], pair, contract)
    assert torch.equal(pair, dynamic_pair(x[others], contract)[0])
    assert torch.equal(with_zero.codes[others], without.codes)
    assert torch.equal(with_zero.scales[others], without.scales)
    assert not dequantize(with_zero, pair[1])[2].any()


@pytest.mark.parametrize("contract", ALL)
def test_fr_02_a_zero_block_beside_a_small_amax_is_no_nan(contract):
    weight = normal(16, 32) * 0.01 / 4
    weight[0, 0], weight[:, 16:] = 0.01, 0
    got = quantize_rows(weight, dynamic_pair(weight, contract)[0], contract)
    assert not ((got.scales & 0x7F) == 0x7F).any()
    assert got.scales.max() <= 0x7E


def test_fr_02_scales_saturate_from_448_on():
    x = torch.tensor([448.0, 463.0, 464.0, 464.1, 470.0, 480.0, 1e9, float("inf")])
    assert e4m3.encode(x).tolist() == [0x7E] * 8


@pytest.mark.parametrize("contract", ALL)
def test_fr_02_a_static_scale_below_the_data_saturates(contract):
    x = normal(3, 48) * 40
    got = quantize_rows(x, pair_from_decode(torch.tensor(0.001)), contract)
    assert got.scales.unique().tolist() == [0x7E]
    assert (unscaled_values(got).abs().amax(-1) == 2688).all()


MIDPOINTS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]


@pytest.mark.parametrize("contract", [c for c in ALL if c is not Contract.HALF_STEP])
def test_fr_03_midpoints_go_to_the_even_code(contract):
    block = torch.tensor([MIDPOINTS + [-value for value in MIDPOINTS]])
    got = quantize_rows(block, ONE, contract)
    assert got.scales.tolist() == [[0x38]]
    codes = e2m1.unpack(got.codes, 16)[0]
    assert codes.tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8, 10, 10, 12, 12, 14, 14, 15]
    assert dequantize(got, 1.0)[0, :8].tolist() == [0, 1, 1, 2, 2, 4, 4, 6]


def test_fr_03_half_steps_double_round_as_declared():
    block = torch.tensor([[2.6, 3.3, 5.25, 6.0] + [0.0] * 12])
    got = quantize_rows(block, ONE, Contract.HALF_STEP)
    assert dequantize(got, 1.0)[0, :4].tolist() == [2, 4, 4, 6]


@pytest.mark.parametrize("contract", ALL)
def test_fr_04_a_tiny_block_underflows_to_zero(contract):
    x = torch.zeros(1, 32)
    x[0, :16], x[0, 16::2] = 1.0, 1e-6
    pair = dynamic_pair(x, contract)[0]
    got = quantize_rows(x, pair, contract)
    if contract not in FLOORED:
        assert got.scales[0, 1] == 0
    back = dequantize(got, pair[1])
    assert back.isfinite().all()
    assert not e2m1.unpack(got.codes, 32)[0, 17::2].any()
    assert not back[0, 16:].any() or contract in FLOORED


@pytest.mark.parametrize(
    ("ratio", "byte"), [(28_672.0, 0x08), (57_344.0, 0x04), (458_751.0, 0x01), (458_752.0, 0x00), (1e6, 0x00)]
)
def test_fr_04_scale_bytes_run_out_where_e4m3_does(ratio, byte):
    """r = tensor amax / block amax: full precision to 28,672, subnormal beyond, 0 from 458,752."""
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 16] = 1.0, 1.0 / ratio
    got = quantize_rows(x, contracts.global_scale_pair(torch.tensor(1.0), Contract.TE), Contract.TE)
    assert got.scales[0, 1] == byte


@pytest.mark.parametrize(
    ("contract", "rows"),
    [(contract, rows) for contract in ALL for rows in (1, 127, 129)]
    + [(Contract.TE, rows) for rows in (128, 256, 384, 512, 1024)],
)
def test_fr_05_every_row_count_keeps_direction_and_magnitude(contract, rows):
    x = normal(rows, 2048, rows)
    pair = dynamic_pair(x, contract)[0]
    got = quantize_rows(x, pair, contract)
    back = dequantize(got, pair[1])
    assert got.scales.all()
    assert torch.nn.functional.cosine_similarity(x.flatten(), back.flatten(), dim=0) > 0.97
    large = x.abs() > 0.5
    assert abs((back[large] / x[large]).median().item() - 1) < 0.03


def test_fr_06_no_rows():
    got = quantize_rows(torch.zeros(0, 96), ONE, Contract.TE)
    assert got.codes.shape == (0, 48)
    assert got.scales.shape == (0, 6)


@pytest.mark.parametrize(("depth", "scale_columns"), [(352, 22), (464, 29), (704, 44), (1856, 116), (176, 11), (80, 5)])
def test_fr_09_code_pitch_is_zero_filled_and_scales_have_their_count(depth, scale_columns):
    got = quantize_rows(normal(3, depth), ONE, Contract.TE)
    assert got.scales.shape == (3, scale_columns)
    assert got.codes.shape[-1] % 16 == 0
    assert not got.codes[:, depth // 2 :].any()


def test_fr_27_packed_float_dtypes_and_column_slices_read_the_same():
    got = quantize_rows(normal(4, 96), ONE, Contract.TE)
    as_float = got.codes.view(torch.float4_e2m1fn_x2)
    assert torch.equal(e2m1.unpack(as_float, 96), e2m1.unpack(got.codes, 96))
    assert torch.equal(e2m1.unpack(got.codes[:, 16:32], 32), e2m1.unpack(got.codes, 96)[:, 32:64])


@pytest.mark.parametrize("contract", ALL)
def test_sd_03_a_given_second_level_scale_makes_rows_independent(contract):
    x = normal(5, 112)
    pair = dynamic_pair(x, contract)[0]
    together = quantize_rows(x, pair, contract)
    for row in range(5):
        alone = quantize_rows(x[row : row + 1], pair, contract)
        assert torch.equal(alone.codes, together.codes[row : row + 1])
        assert torch.equal(alone.scales, together.scales[row : row + 1])


def test_sd_03_another_second_level_scale_is_reported_by_place():
    x = normal(5, 112)
    pair = dynamic_pair(x, Contract.TE)[0]
    own = dynamic_pair(x[:1], Contract.TE)[0]
    report = compare_codes(quantize_rows(x[:1], own, Contract.TE), quantize_rows(x[:1], pair, Contract.TE), "seed 0")
    assert not report.equal
    assert report.first.startswith("seed 0: row 0, block ")


def cosine_and_ratio(original: torch.Tensor, back: torch.Tensor) -> tuple[float, float]:
    cosine = torch.nn.functional.cosine_similarity(original.flatten().double(), back.flatten().double(), dim=0)
    return cosine.item(), (back.double().norm() / original.double().norm()).item()


@pytest.mark.parametrize("contract", ALL)
def test_sd_06_direct_quantising_keeps_what_requantising_loses(contract):
    weight = normal(256, 512, 6).bfloat16() * 0.02
    pair = dynamic_pair(weight, contract)[0]
    once = quantize_rows(weight, pair, contract)
    cosine, ratio = cosine_and_ratio(weight, dequantize(once, pair[1]))
    # Half steps round twice already.
    assert cosine >= (0.993 if contract is Contract.HALF_STEP else 0.995)
    assert 0.97 <= ratio <= 1.03
    # A second calibration with other head-room moves every block's grid, as requantised exports do.
    bf16 = dequantize(once, pair[1]).bfloat16()
    again_pair = contracts.global_scale_pair(weight.float().abs().max() * 1.3, contract)
    twice = dequantize(quantize_rows(bf16, again_pair, contract), again_pair[1])
    lost, ratio = cosine_and_ratio(weight, twice)
    assert 0.97 <= ratio <= 1.03
    assert 0.989 <= lost < cosine


def test_codes_and_scales_of_a_checkpoint_are_kept_bit_for_bit():
    """Decoding is exact, so nothing on the direct path may touch a byte; requantising is not idempotent."""
    weight = normal(64, 128, 3)
    pair = pair_from_decode(torch.tensor(0.0007))
    once = quantize_rows(weight, pair, Contract.TE)
    values = unscaled_values(once)
    assert torch.equal(values, values.bfloat16().float())
    peak = block_amax(values)
    assert torch.equal(peak[peak > 0] / e4m3.decode(once.scales)[peak > 0] % 0.5, torch.zeros(int((peak > 0).sum())))
