"""exp, tanh and fma: accuracy, edge cases, and the C++ mirror bit for bit."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numerics.bits import ALL_BF16, differing, neighbours, random_bits, ulp_error, uniform

from moegen.numerics import elementary

BROAD = torch.cat(
    (
        ALL_BF16,
        random_bits(1 << 17),
        uniform(-106, 94, 1 << 17),
        uniform(-1, 1, 1 << 16),
        neighbours([89.0, -104.0, 88.72284, 0.55, 0.34657359, 103.97208, 87.33655]),
    )
)
FLOATS = st.floats(width=32, allow_nan=False)


@pytest.mark.parametrize(
    ("name", "function"), [("exp1", elementary.exp), ("tanh1", elementary.tanh), ("sigmoid1", elementary.sigmoid)]
)
def test_mirror_returns_the_same_bits(mirror, name, function):
    assert differing(mirror.map(name, BROAD), function(BROAD)).numel() == 0


def test_fma_equals_hardware_fma(mirror):
    a, b, c = random_bits(1 << 18, 1), random_bits(1 << 18, 2), random_bits(1 << 18, 3)
    assert differing(mirror.map("fma3", a, b, c), elementary.fma(a, b, c)).numel() == 0


@pytest.mark.parametrize("exponent", [0, -70], ids=["cancelling", "subnormal results"])
def test_fma_rounds_once_where_double_rounding_would_show(mirror, exponent):
    a, b = uniform(1, 2, 1 << 18, 1) * 2.0**exponent, uniform(1, 2, 1 << 18, 2) * 2.0**exponent
    nudge = torch.randint(-4, 4, (1 << 18,), generator=torch.Generator().manual_seed(3))
    c = -(a * b) * (1 + nudge * 2.0**-23)
    assert differing(mirror.map("fma3", a, b, c), elementary.fma(a, b, c)).numel() == 0


def test_fma_where_an_fp64_sum_rounded_to_nearest_gives_the_wrong_float():
    """The product is 2^-24 + 2^-60: with 1 just above a midpoint of fp32, and on it once fp64 has dropped the 2^-60."""
    x = torch.tensor([1 + 2.0**-12])
    y = torch.tensor([(1 - 2.0**-12 + 2.0**-24) * 2.0**-24])
    assert (x.double() * y.double() + 1).float().item() == 1.0
    assert elementary.fma(x, y, 1.0).item() == 1.0 + 2.0**-23


def test_exp_error_is_as_documented():
    x = torch.cat((uniform(-103, 88.7, 1 << 18), ALL_BF16[ALL_BF16.isfinite()]))
    assert ulp_error(elementary.exp(x), x.double().exp()) <= 0.90


def test_tanh_error_is_as_documented():
    x = torch.cat((uniform(-10, 10, 1 << 18), uniform(-0.6, 0.6, 1 << 17), ALL_BF16[ALL_BF16.isfinite()]))
    assert ulp_error(elementary.tanh(x), x.double().tanh()) <= 1.51


def test_silu_and_sigmoid_errors_are_as_documented_above_minus_87():
    x = torch.cat((uniform(-87, 100, 1 << 18), uniform(-2, 2, 1 << 16)))
    assert ulp_error(elementary.silu(x), x.double() * torch.sigmoid(x.double())) <= 2.40
    assert ulp_error(elementary.sigmoid(x), torch.sigmoid(x.double())) <= 2.49


def test_exp_edges():
    infinity = math.inf
    x = torch.tensor([infinity, -infinity, 89.0, 88.73, -104.0, 0.0, -0.0, 1e38, -1e38])
    assert elementary.exp(x).tolist() == [infinity, 0.0, infinity, infinity, 0.0, 1.0, 1.0, infinity, 0.0]
    assert elementary.exp(torch.tensor([-103.9])).item() == 2.0**-149
    assert elementary.exp(torch.tensor([math.nan])).isnan().all()


def test_silu_far_below_zero_is_negative_zero():
    y = elementary.silu(torch.tensor([-89.0, -1e30]))
    assert y.tolist() == [0.0, 0.0]
    assert torch.signbit(y).all()


@given(FLOATS)
def test_tanh_is_odd_and_bounded(x):
    plus, minus = elementary.tanh(torch.tensor([x, -x])).tolist()
    assert plus == -minus
    assert abs(plus) <= 1.0


@given(FLOATS, FLOATS)
def test_exp_never_decreases(x, y):
    low, high = elementary.exp(torch.tensor(sorted((x, y)))).tolist()
    assert low <= high or math.isclose(low, high, rel_tol=2.0**-22)
