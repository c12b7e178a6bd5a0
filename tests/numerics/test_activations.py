"""Every activation: literal values, the models' own formulas in fp64, and the C++ mirror bit for bit."""

import math

import pytest
import torch
from numerics.bits import ALL_BF16, differing, neighbours, random_bits, uniform

from moegen.core.enums import ActivationKind, Round
from moegen.core.errors import SpecError
from moegen.core.ops import Activation
from moegen.numerics import activations as act
from moegen.numerics.rounding import to_bf16

SWIGLU = Activation(kind=ActivationKind.SWIGLU)
CLAMP = Activation(kind=ActivationKind.SWIGLU_CLAMP, limit=10.0)
STEP = Activation(kind=ActivationKind.SWIGLUSTEP, limit=7.0)
OAI = Activation(kind=ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.0, limit=7.0)
SITU = Activation(kind=ActivationKind.SITU, beta=4.0, linear_beta=25.0)
SITU_RAW_UP = Activation(kind=ActivationKind.SITU, beta=4.0)
GEGLU = Activation(kind=ActivationKind.GEGLU_TANH)
RELU2 = Activation(kind=ActivationKind.RELU2)
SILU = Activation(kind=ActivationKind.SILU)
BROAD = torch.cat((ALL_BF16, random_bits(1 << 16), uniform(-30, 30, 1 << 16), neighbours([7.0, 10.0, 0.0, 2.2])))


def sigmoid(x):
    return torch.sigmoid(x)


def soft(x, beta):
    return beta * torch.tanh(x / beta)


EXACT = {
    "swiglu": (SWIGLU, lambda g, u: g * sigmoid(g) * u),
    "swiglu_clamp": (CLAMP, lambda g, u: g.clamp(max=10) * sigmoid(g.clamp(max=10)) * u.clamp(-10, 10)),
    "swiglustep": (STEP, lambda g, u: (g * sigmoid(g)).clamp(max=7) * u.clamp(-7, 7)),
    "swiglu_oai": (OAI, lambda g, u: (u.clamp(-7, 7) + 1) * g.clamp(max=7) * sigmoid(1.702 * g.clamp(max=7))),
    "situ": (SITU, lambda g, u: soft(g, 4) * sigmoid(g) * soft(u, 25)),
    "situ without linear_beta": (SITU_RAW_UP, lambda g, u: soft(g, 4) * sigmoid(g) * u),
    "geglu_tanh": (GEGLU, lambda g, u: torch.nn.functional.gelu(g, approximate="tanh") * u),
}


@pytest.mark.parametrize("name", EXACT)
def test_gated_activations_match_their_formula(name):
    activation, formula = EXACT[name]
    gate, up = uniform(-20, 20, 20_000, 1), uniform(-30, 30, 20_000, 2)
    got = act.gated_product(activation, gate, up).double()
    torch.testing.assert_close(got, formula(gate.double(), up.double()), rtol=2e-6, atol=2e-5)


def test_ungated_activations_match_their_formula():
    x = uniform(-20, 20, 20_000)
    torch.testing.assert_close(act.ungated_value(RELU2, x).double(), x.double().relu() ** 2, rtol=1e-7, atol=0)
    torch.testing.assert_close(act.ungated_value(SILU, x).double(), x.double() * sigmoid(x.double()), rtol=3e-7, atol=0)


MIRRORS = {
    "gate_swiglu": lambda x: act.gate_value(SWIGLU, x),
    "gate_swiglu_clamp": lambda x: act.gate_value(CLAMP, x),
    "up_swiglu_clamp": lambda x: act.up_value(CLAMP, x),
    "gate_swiglustep": lambda x: act.gate_value(STEP, x),
    "up_swiglustep": lambda x: act.up_value(STEP, x),
    "gate_swiglu_oai": lambda x: act.gate_value(OAI, x),
    "up_swiglu_oai": lambda x: act.up_value(OAI, x),
    "gate_situ": lambda x: act.gate_value(SITU, x),
    "up_situ": lambda x: act.up_value(SITU, x),
    "gate_geglu_tanh": lambda x: act.gate_value(GEGLU, x),
    "value_relu2": lambda x: act.ungated_value(RELU2, x),
    "value_silu": lambda x: act.ungated_value(SILU, x),
}


@pytest.mark.parametrize("name", MIRRORS)
def test_mirror_returns_the_same_bits(mirror, name):
    wrong = differing(mirror.map(name, BROAD), MIRRORS[name](BROAD))
    assert wrong.numel() == 0, BROAD[wrong[0]]


@pytest.mark.parametrize("activation", [SWIGLU, CLAMP, STEP, OAI, SITU, GEGLU])
def test_nan_stays_nan(activation):
    nan, one = torch.tensor([math.nan]), torch.ones(1)
    assert act.gated_product(activation, nan, one).isnan().all()
    assert act.gated_product(activation, one, nan).isnan().all()


def test_nan_stays_nan_without_a_gate():
    nan = torch.tensor([math.nan])
    assert act.ungated_value(RELU2, nan).isnan().all()
    assert act.ungated_value(SILU, nan).isnan().all()


def test_gate_rounding_point_changes_the_product_as_declared():
    gate, up = uniform(0.1, 3, 500, 1), uniform(0.1, 3, 500, 2)
    rounded = act.gated_product(SWIGLU, gate, up, Round.BF16)
    assert torch.equal(rounded, to_bf16(act.gate_value(SWIGLU, gate)).float() * up)
    assert not torch.equal(rounded, act.gated_product(SWIGLU, gate, up))


def test_a_missing_constant_is_refused():
    with pytest.raises(SpecError, match="limit is not given"):
        act.gate_value(Activation(kind=ActivationKind.SWIGLU_CLAMP), torch.ones(1))


def test_gated_and_ungated_kinds_do_not_mix():
    with pytest.raises(SpecError, match="no gate"):
        act.gate_value(RELU2, torch.ones(1))
    with pytest.raises(SpecError, match="has a gate"):
        act.ungated_value(SWIGLU, torch.ones(1))


def test_every_kind_lists_its_constants():
    assert set(act.CONSTANTS) == set(ActivationKind)
