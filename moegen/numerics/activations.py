"""The activations, as a gate function G, an up function U, or a function F of one projection.

Gated kinds compute ``z = round_gate(G(gate)) · U(up)``, one fp32 product. Every step is one fp32 operation in the order
written, so a device library can repeat it bit for bit (``device/activations.h``). With silu(g) = g / (1 + exp(-g)),
σ(g) = 1 / (1 + exp(-g)), cap(v, L) = L where v > L else v, clamp(v, L) = cap to [-L, L]; comparisons pass NaN through:

============  ==========================================================  =============================
kind          G(g), or F(x)                                               U(u)
============  ==========================================================  =============================
swiglu        silu(g)                                                     u
swiglu_clamp  silu(cap(g, limit)): the clamp comes before                 clamp(u, limit)
swiglustep    cap(silu(g), limit): the clamp comes after                  clamp(u, limit)
swiglu_oai    c / (1 + exp(-(α·c))) with c = cap(g, limit)                clamp(u, limit) + β
situ          (β · tanh(g / β)) / (1 + exp(-g)): σ sees the raw g         linear_β · tanh(u / linear_β), or u
geglu_tanh    (0.5·g) · (1 + tanh(√(2/π) · (g + 0.044715·((g·g)·g))))     u
relu2         m·m with m = 0 where x < 0 else x                           (not gated)
silu          silu(x)                                                     (not gated)
============  ==========================================================  =============================

Formulas: the models' own code in transformers (qwen3_moe, deepseek_v4, step3p7, gpt_oss, inkling2, gemma4, nemotron_h).
"""

from collections.abc import Callable

from torch import Tensor
from torch import where as select

from moegen.core.enums import ActivationKind, Round
from moegen.core.errors import SpecError
from moegen.core.ops import Activation
from moegen.numerics.elementary import divide, exp, scaled_silu, silu, tanh
from moegen.numerics.rounding import f32, round_at

SQRT_2_OVER_PI = float.fromhex("0x1.988454p-1")
GELU_CUBIC = float.fromhex("0x1.6e4e26p-5")

CONSTANTS: dict[ActivationKind, tuple[str, ...]] = {
    ActivationKind.SWIGLU: (),
    ActivationKind.SWIGLU_CLAMP: ("limit",),
    ActivationKind.SWIGLUSTEP: ("limit",),
    ActivationKind.SWIGLU_OAI: ("alpha", "limit", "beta"),
    ActivationKind.SITU: ("beta",),
    ActivationKind.GEGLU_TANH: (),
    ActivationKind.RELU2: (),
    ActivationKind.SILU: (),
}
"""Constants that a kind must be given (situ may also be given ``linear_beta``)."""


def gate_value(activation: Activation, gate: Tensor) -> Tensor:
    """G(gate), fp32 in and out, any shape.

    Raises:
        SpecError: the kind has no gate, or a constant it needs is missing.
    """
    _require_gated(activation, True)
    return _GATE[activation.kind](activation, gate)


def up_value(activation: Activation, up: Tensor) -> Tensor:
    """U(up), fp32 in and out; raises as :func:`gate_value`."""
    _require_gated(activation, True)
    kind = activation.kind
    if kind is ActivationKind.SWIGLU_OAI:
        return clamp(up, _constant(activation, "limit")) + _constant(activation, "beta")
    if kind in (ActivationKind.SWIGLU_CLAMP, ActivationKind.SWIGLUSTEP):
        return clamp(up, _constant(activation, "limit"))
    if kind is ActivationKind.SITU and activation.linear_beta is not None:
        return soft_bound(up, _constant(activation, "linear_beta"))
    return up


def ungated_value(activation: Activation, x: Tensor) -> Tensor:
    """F(x), fp32 in and out; raises SpecError when the kind has a gate."""
    _require_gated(activation, False)
    return relu2(x) if activation.kind is ActivationKind.RELU2 else silu(x)


def gated_product(activation: Activation, gate: Tensor, up: Tensor, gate_round: Round = Round.FP32) -> Tensor:
    """``round_gate(G(gate)) · U(up)`` in fp32."""
    return round_at(gate_value(activation, gate), gate_round) * up_value(activation, up)


def cap(x: Tensor, limit: float) -> Tensor:
    """min(x, limit); NaN stays."""
    return select(x > limit, limit, x)


def clamp(x: Tensor, limit: float) -> Tensor:
    """x within [-limit, limit]; NaN stays."""
    capped = cap(x, limit)
    return select(capped < -limit, -limit, capped)


def soft_bound(x: Tensor, beta: float) -> Tensor:
    """``β · tanh(x / β)``."""
    return tanh(divide(x, beta)) * beta


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh form of GELU."""
    cubic = (x * x) * x
    inner = (x + cubic * GELU_CUBIC) * SQRT_2_OVER_PI
    return (x * 0.5) * (tanh(inner) + 1.0)


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)²; NaN stays."""
    positive = select(x < 0, 0.0, x)
    return positive * positive


def _situ_gate(activation: Activation, gate: Tensor) -> Tensor:
    return soft_bound(gate, _constant(activation, "beta")) / (exp(-gate) + 1.0)


_GATE: dict[ActivationKind, Callable[[Activation, Tensor], Tensor]] = {
    ActivationKind.SWIGLU: lambda _, g: silu(g),
    ActivationKind.SWIGLU_CLAMP: lambda a, g: silu(cap(g, _constant(a, "limit"))),
    ActivationKind.SWIGLUSTEP: lambda a, g: cap(silu(g), _constant(a, "limit")),
    ActivationKind.SWIGLU_OAI: lambda a, g: scaled_silu(cap(g, _constant(a, "limit")), _constant(a, "alpha")),
    ActivationKind.SITU: _situ_gate,
    ActivationKind.GEGLU_TANH: lambda _, g: gelu_tanh(g),
}


def _constant(activation: Activation, name: str) -> float:
    value = getattr(activation, name)
    if value is None:
        needed = ", ".join(CONSTANTS[activation.kind])
        raise SpecError(
            f"{activation.kind.value} needs {needed}; {name} is not given", "activation", f"set activation.{name}"
        )
    return f32(value)


def _require_gated(activation: Activation, gated: bool) -> None:
    if activation.kind.gated != gated:
        has = "no gate" if gated else "a gate"
        raise SpecError(f"{activation.kind.value} has {has}", "activation.kind", "use the functions of the other kind")
