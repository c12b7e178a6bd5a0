"""Every contract: independent scalar formulas, the compressed-tensors package, the C++ mirror, and the policy."""

import math

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8, unpack_fp4_from_uint8
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import quantize as ct_quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from hypothesis import given
from hypothesis import strategies as st
from numerics.bits import ALL_BF16, differing, random_bits

from moegen.core.enums import Contract
from moegen.core.errors import TensorError
from moegen.numerics import contracts, e2m1, e4m3
from moegen.numerics.quantize import block_amax, dequantize, dynamic_pair, quantize_rows, tensor_amax, unscaled_values

F = np.float32
ALL = list(Contract)
NAN, INF = math.nan, math.inf
ONE_PAIR = torch.ones(2)


def heavy_tailed(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """fp32 rows whose blocks differ by orders of magnitude, so that all scale exponents occur."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.exp(2 * torch.randn(rows, columns // 16, 1, generator=generator))
    return (torch.randn(rows, columns // 16, 16, generator=generator) * spread).flatten(1)


def e4(x) -> float:
    return e4m3.decode(e4m3.encode(torch.tensor([float(x)], dtype=torch.float32))).item()


def scalar_block(contract: Contract, a: float, g: float, p: float) -> tuple[float, float, bool]:
    """(S, factor, divides) of one block, in NumPy scalars: the table read line by line, no torch."""
    a, g, p, sixth = F(a), F(g), F(p), F(1) / F(6)
    big = np.finfo(np.float32).max
    with np.errstate(all="ignore"):
        if contract in (Contract.TE, Contract.HALF_STEP):
            s = F(e4(a * (g * sixth)))
            return s, min(F(1) / (s * (F(1) / g)), big), False
        if contract is Contract.VLLM_RN:
            s = F(e4(g * (a * sixth)))
            return s, min(F(1) / (s * (F(1) / g)), big) if s else F(0), False
        if contract is Contract.CUTLASS_RN:
            s = F(e4(a * (g * sixth)))
            return s, min(g * (F(1) / s), big), False
        if contract is Contract.TORCHAO:
            s = F(e4(min(max((a / F(6)) / p, F(2.0**-6)), F(448))))
            return s, min((F(1) / p) / s, big), False
        if contract is Contract.MODELOPT:
            ratio = a / (F(6) * p)
            s = F(e4(min(max(ratio if ratio else F(1), F(2.0**-9)), F(448))))
            return s, s * p, True
        observed = a / F(6)
        if contract is Contract.COMPRESSED_TENSORS_BF16:
            observed = (torch.tensor(a).bfloat16() / 6).float().numpy()
        s = F(e4(g * observed)) or F(0.125)
        return s, s / g, True


@pytest.mark.parametrize("contract", ALL)
def test_bytes_equal_the_formula_in_scalar_arithmetic(contract):
    x = heavy_tailed(5, 112)
    pair = dynamic_pair(x, contract)
    got = quantize_rows(x, pair[0], contract)
    g, p = pair[0].tolist()
    codes = e2m1.unpack(got.codes, 112).unflatten(-1, (-1, 16))
    for row, block in np.ndindex(5, 7):
        values = x[row, 16 * block : 16 * block + 16]
        s, factor, divides = scalar_block(contract, values.abs().max().item(), g, p)
        scaled = values.numpy() / factor if divides else values.numpy() * factor
        round_code = e2m1.encode_half_step if contract is Contract.HALF_STEP else e2m1.encode
        assert e4m3.decode(got.scales[row, block : block + 1]).item() == s
        assert torch.equal(codes[row, block], round_code(torch.from_numpy(scaled))), (row, block)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compressed_tensors_package_gives_the_same_bytes(dtype):
    contract = Contract.COMPRESSED_TENSORS if dtype is torch.float32 else Contract.COMPRESSED_TENSORS_BF16
    args = preset_name_to_scheme("NVFP4", ["Linear"]).weights
    assert args is not None
    weight = heavy_tailed(48, 176).to(dtype)
    weight[3, 16:32] = 0
    amax = weight.abs().max()
    global_scale = generate_gparam(-amax, amax)
    peaks = weight.unflatten(-1, (-1, 16)).abs().amax(-1)
    scale, zero_point = calculate_qparams(-peaks, peaks, args, global_scale=global_scale)
    expected = ct_quantize(weight, scale, zero_point, args, global_scale=global_scale)

    pair = contracts.global_scale_pair(amax.float(), contract)
    got = quantize_rows(weight, pair, contract)
    assert pair[0].item() == global_scale.item()
    assert torch.equal(got.scales.view(torch.float8_e4m3fn).float(), scale.float())
    assert torch.equal(got.codes[:, :88] & 0x77, pack_fp4_to_uint8(expected.float()) & 0x77)
    nonzero = expected != 0
    unpacked = unpack_fp4_from_uint8(got.codes[:, :88].contiguous(), 48, 176, dtype=torch.float32)
    assert torch.equal(unpacked, e2m1.decode(e2m1.unpack(got.codes, 176)))
    signs = e2m1.unpack(got.codes, 176) & 8
    assert torch.equal(signs[nonzero] != 0, expected[nonzero] < 0)


@pytest.mark.parametrize("contract", [Contract.COMPRESSED_TENSORS, Contract.COMPRESSED_TENSORS_BF16])
def test_compressed_tensors_package_gives_the_same_second_level_scale(contract):
    dtype = torch.float32 if contract is Contract.COMPRESSED_TENSORS else torch.bfloat16
    amax = heavy_tailed(32, 64).abs().flatten().to(dtype)
    expected = torch.cat([generate_gparam(-value, value) for value in amax])
    assert torch.equal(contracts.global_scale_pair(amax.float(), contract)[:, 0], expected)


@pytest.mark.parametrize("contract", ALL)
def test_mirror_quantises_to_the_same_bytes(mirror, contract):
    special = torch.zeros(8, 16)
    special[0] = 1e-42
    special[1, 3], special[2, 5], special[3, 7] = NAN, INF, -INF
    special[4, ::2], special[5] = -0.0, torch.linspace(-448, 448, 16)
    special[6, 0], special[7, 0] = 1e30, 1e-30
    x = torch.cat(
        (
            heavy_tailed(256, 160).reshape(-1, 16),
            ALL_BF16.reshape(-1, 16),
            random_bits(1 << 14).reshape(-1, 16),
            special,
        )
    )
    for pair in (
        dynamic_pair(heavy_tailed(4, 64), contract)[0],
        contracts.pair_from_decode(torch.tensor(0.0123)),
        torch.ones(2),
    ):
        codes, scales = torch.empty(len(x), 8, dtype=torch.uint8), torch.empty(len(x), dtype=torch.uint8)
        mirror.call(f"quantize_{contract.value}", x, pair.contiguous(), codes, scales, count=len(x))
        expected = quantize_rows(x, pair, contract)
        assert torch.equal(scales, expected.scales[:, 0])
        assert torch.equal(codes, expected.codes[:, :8])


@pytest.mark.parametrize("contract", ALL)
def test_mirror_makes_the_same_second_level_scale(mirror, contract):
    amax = torch.cat((ALL_BF16[ALL_BF16.isfinite()].abs(), heavy_tailed(64, 64).abs().flatten()))
    pairs = torch.empty(len(amax), 2)
    mirror.call(f"pair_{contract.value}", amax, pairs, count=len(amax))
    assert differing(pairs, contracts.global_scale_pair(amax, contract)).numel() == 0


@pytest.mark.parametrize("contract", ALL)
def test_a_nan_marks_its_block_and_no_other(contract):
    x = heavy_tailed(3, 64)
    pair = dynamic_pair(x, contract)[0]
    clean = quantize_rows(x, pair, contract)
    x[1, 20] = NAN
    assert torch.equal(dynamic_pair(x, contract)[0], dynamic_pair(x.nan_to_num(nan=0), contract)[0])
    dirty = quantize_rows(x, pair, contract)
    assert dirty.scales[1, 1] == 0x7F
    assert (dirty.codes[1, 8:16] == 0x77).all()
    assert dequantize(dirty, pair[1])[1, 16:32].isnan().all()
    dirty.scales[1, 1], dirty.codes[1, 8:16] = clean.scales[1, 1], clean.codes[1, 8:16]
    assert torch.equal(dirty.scales, clean.scales)
    assert torch.equal(dirty.codes, clean.codes)


@pytest.mark.parametrize("contract", ALL)
def test_an_infinity_saturates_in_its_block(contract):
    x = heavy_tailed(2, 32)
    x[0, 3] = -INF
    pair = dynamic_pair(x, contract)[0]
    got = quantize_rows(x, pair, contract)
    assert got.scales[0, 0] == 0x7E
    assert e2m1.unpack(got.codes, 32)[0, 3] == 0xF
    assert dequantize(got, pair[1]).isfinite().all()


ZERO_BYTE = {
    Contract.TORCHAO: 0x08,
    Contract.MODELOPT: 0x38,
    Contract.COMPRESSED_TENSORS: 0x20,
    Contract.COMPRESSED_TENSORS_BF16: 0x20,
}


@pytest.mark.parametrize("contract", ALL)
def test_a_zero_block_has_its_declared_byte(contract):
    x = heavy_tailed(2, 48)
    x[1, 16:32] = 0
    got = quantize_rows(x, dynamic_pair(x, contract)[0], contract)
    assert got.scales[1, 1] == ZERO_BYTE.get(contract, 0)
    assert not got.codes[1, 8:16].any()


@pytest.mark.parametrize("contract", ALL)
@given(scale=st.floats(2.0**-120, 2.0**100, width=32), seed=st.integers(0, 1000))
def test_finite_input_never_makes_a_nan(contract, scale, seed):
    x = heavy_tailed(2, 32, seed) * scale
    x[0, :16] *= 2.0**-40
    x = x.clamp(-contracts.FLT_MAX, contracts.FLT_MAX)
    pair = dynamic_pair(x, contract)[0]
    got = quantize_rows(x, pair, contract)
    assert not ((got.scales & 0x7F) == 0x7F).any()
    assert unscaled_values(got).isfinite().all()
    assert (unscaled_values(got).abs() <= 2688).all()


@pytest.mark.parametrize("contract", ALL)
@given(exponent=st.integers(-40, 40), seed=st.integers(0, 1000))
def test_powers_of_two_move_into_the_second_level_scale(contract, exponent, seed):
    x = heavy_tailed(2, 48, seed)
    pair = contracts.pair_from_decode(torch.tensor(0.0123))
    factor = 2.0**exponent
    moved = torch.stack((pair[0] / factor, pair[1] * factor))
    plain, scaled = quantize_rows(x, pair, contract), quantize_rows(x * factor, moved, contract)
    assert torch.equal(plain.codes, scaled.codes)
    assert torch.equal(plain.scales, scaled.scales)


@pytest.mark.parametrize("contract", ALL)
@given(seed=st.integers(0, 1000))
def test_signs_and_order_within_a_block_do_not_matter_to_its_scale(contract, seed):
    x = heavy_tailed(1, 16, seed)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
    plain = quantize_rows(x, ONE_PAIR, contract)
    turned = quantize_rows(-x[:, order], ONE_PAIR, contract)
    assert torch.equal(plain.scales, turned.scales)
    assert torch.equal(e2m1.unpack(plain.codes, 16)[:, order] ^ 8, e2m1.unpack(turned.codes, 16))


@pytest.mark.parametrize("contract", ALL)
def test_subnormal_tensors_stay_finite(contract):
    x = torch.full((1, 32), 1e-40)
    x[0, ::3] = 0
    got = quantize_rows(x, dynamic_pair(x, contract)[0], contract)
    assert (got.scales != 0x7F).all()
    assert not e2m1.unpack(got.codes, 32)[0, ::3].any()


@pytest.mark.parametrize("contract", ALL)
def test_the_tensors_largest_block_uses_the_top_of_the_range(contract):
    x = heavy_tailed(8, 64).bfloat16()
    got = quantize_rows(x, dynamic_pair(x, contract)[0], contract)
    peak = block_amax(x) == tensor_amax(x)
    assert (got.scales[peak] >= 0x7D).all()
    assert got.scales.max() <= 0x7E


@pytest.mark.parametrize("contract", ALL)
def test_dequantised_rows_are_close(contract):
    x = heavy_tailed(16, 128)
    pair = dynamic_pair(x, contract)[0]
    back = dequantize(quantize_rows(x, pair, contract), pair[1])
    # Half of the widest step of E2M1 (2), plus what the rounded block scale may clip (6/16), per sixth of the amax.
    bound = block_amax(x).repeat_interleave(16, dim=-1) * (1 + 6 / 16) / 6 * 1.1 + pair[1] * 2.0**-6 * 6
    assert ((back - x).abs() <= bound).all()


def test_contracts_disagree_on_few_bytes_yet_on_some():
    x = heavy_tailed(256, 512, 3)
    pair = contracts.global_scale_pair(tensor_amax(x), Contract.TE)
    te = quantize_rows(x, pair, Contract.TE)
    for contract in (
        Contract.VLLM_RN,
        Contract.COMPRESSED_TENSORS,
        Contract.MODELOPT,
        Contract.COMPRESSED_TENSORS_BF16,
    ):
        normal = (te.scales >= 0x08) & (te.scales > 0)
        share = (quantize_rows(x, pair, contract).scales != te.scales)[normal].float().mean().item()
        assert share < 0.06
    bf16 = quantize_rows(x, pair, Contract.COMPRESSED_TENSORS_BF16)
    assert not torch.equal(bf16.scales, te.scales)


def test_pairs_from_checkpoint_scales():
    modelopt = contracts.pair_from_decode(torch.tensor([1 / 3584]))
    compressed = contracts.pair_from_encode(torch.tensor([3584.0]))
    assert modelopt.shape == (1, 2)
    torch.testing.assert_close(modelopt, compressed, rtol=2e-7, atol=0)


@pytest.mark.parametrize("bad", [0.0, -1.0, INF, NAN, 1e-45])
def test_a_useless_second_level_scale_is_refused(bad):
    with pytest.raises(TensorError, match=r"not finite and positive.*amax/2688"):
        contracts.pair_from_decode(torch.tensor([1.0, bad]))


def test_ragged_depth_is_refused():
    with pytest.raises(TensorError, match="multiple of 16"):
        quantize_rows(torch.zeros(2, 24), torch.ones(2), Contract.TE)


def test_a_bare_scale_is_refused():
    with pytest.raises(TensorError, match="pairs"):
        quantize_rows(torch.zeros(2, 32), torch.ones(1), Contract.TE)


@pytest.mark.parametrize("contract", ALL)
def test_rows_with_their_own_pair_equal_rows_quantised_alone(contract):
    x = heavy_tailed(3, 80)
    pairs = torch.stack([dynamic_pair(x[row], contract)[0] for row in range(3)])
    together = quantize_rows(x, pairs, contract)
    for row in range(3):
        alone = quantize_rows(x[row], pairs[row], contract)
        assert torch.equal(together.codes[row], alone.codes)
        assert torch.equal(together.scales[row], alone.scales)
    assert together.codes.shape == (3, 48)


def test_zero_rows_quantise_to_zero_rows():
    got = quantize_rows(torch.zeros(0, 80), torch.ones(2), Contract.TE)
    assert got.codes.shape == (0, 48)
    assert got.scales.shape == (0, 5)
    assert dynamic_pair(torch.zeros(0, 80), Contract.TE).tolist() == [[1.0, 1.0]]
