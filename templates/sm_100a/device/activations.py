"""The activations: bit for bit ``moegen.numerics.activations``, which holds the table of formulas.

A kernel makes one value of the class it needs and calls ``gate`` and ``up``, or ``value``. ``math`` is the module with
the elementary functions, ``elementary`` or ``elementary_fast``; constants are rounded to fp32.
"""

from dataclasses import dataclass
from typing import Any

from sm_100a.device.arithmetic import add, mul, select
from sm_100a.device.elementary import negative

GELU_CUBIC = float.fromhex("0x1.6e4e26p-5")
SQRT_2_OVER_PI = float.fromhex("0x1.988454p-1")


def cap(x, limit):
    """min(x, limit); NaN stays."""
    return select(x > limit, limit, x)


def clamp(x, limit):
    """x within [-limit, limit]; NaN stays."""
    capped = cap(x, limit)
    return select(capped < -limit, -limit, capped)


def soft_bound(math, x, beta):
    """``β · tanh(x / β)``."""
    return mul(math.tanh(math.divide(x, beta)), beta)


@dataclass(frozen=True)
class _Gated:
    """Leaves the up half as it is."""

    math: Any

    def up(self, u):
        """U(up)."""
        return u


@dataclass(frozen=True)
class Swiglu(_Gated):
    """``silu(g) · u``."""

    def gate(self, g):
        """G(gate)."""
        return self.math.silu(g)


@dataclass(frozen=True)
class SwigluClamp(_Gated):
    """Both halves clamped before the product."""

    limit: float

    def gate(self, g):
        """G(gate)."""
        return self.math.silu(cap(g, self.limit))

    def up(self, u):
        """U(up)."""
        return clamp(u, self.limit)


@dataclass(frozen=True)
class Swiglustep(_Gated):
    """The activated gate capped, up clamped."""

    limit: float

    def gate(self, g):
        """G(gate)."""
        return cap(self.math.silu(g), self.limit)

    def up(self, u):
        """U(up)."""
        return clamp(u, self.limit)


@dataclass(frozen=True)
class SwigluOai(_Gated):
    """A scaled sigmoid and a shifted up half."""

    alpha: float
    limit: float
    beta: float

    def gate(self, g):
        """G(gate)."""
        return self.math.scaled_silu(cap(g, self.limit), self.alpha)

    def up(self, u):
        """U(up)."""
        return add(clamp(u, self.limit), self.beta)


@dataclass(frozen=True)
class Situ(_Gated):
    """A bounded gate times its sigmoid."""

    beta: float

    def gate(self, g):
        """G(gate)."""
        return self.math.divide(soft_bound(self.math, g, self.beta), add(self.math.exp(negative(g)), 1.0))


@dataclass(frozen=True)
class SituBounded(Situ):
    """The same with a bounded up half."""

    linear_beta: float

    def up(self, u):
        """U(up)."""
        return soft_bound(self.math, u, self.linear_beta)


@dataclass(frozen=True)
class GegluTanh(_Gated):
    """The tanh form of GELU."""

    def gate(self, g):
        """G(gate)."""
        cubic = mul(mul(g, g), g)
        inner = mul(add(g, mul(cubic, GELU_CUBIC)), SQRT_2_OVER_PI)
        return mul(mul(g, 0.5), add(self.math.tanh(inner), 1.0))


@dataclass(frozen=True)
class Relu2:
    """max(x, 0)², without a gate."""

    math: Any

    def value(self, x):
        """F(x)."""
        positive = select(x < 0.0, 0.0, x)
        return mul(positive, positive)


@dataclass(frozen=True)
class Silu:
    """silu, without a gate."""

    math: Any

    def value(self, x):
        """F(x)."""
        return self.math.silu(x)
