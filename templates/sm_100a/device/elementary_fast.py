"""The functions of ``elementary`` by approximating instructions: another numerics class."""

import cutlass.cute as cute
from cutlass import Float32
from sm_100a.device.arithmetic import add, mul
from sm_100a.device.elementary import LOG2E, negative


def exp(x):
    """e^x, from 2^(x · log2 e)."""
    return _unit("ex2.approx.ftz.f32", mul(x, LOG2E))


def divide(a, b):
    """``a · (1 / b)``."""
    return mul(a, _unit("rcp.approx.ftz.f32", b))


def silu(x):
    """``x / (1 + exp(-x))``."""
    return divide(x, add(1.0, exp(negative(x))))


def scaled_silu(x, alpha):
    """``x / (1 + exp(-(alpha·x)))``."""
    return divide(x, add(1.0, exp(negative(mul(x, alpha)))))


def tanh(x):
    """tanh(x)."""
    return _unit("tanh.approx.f32", x)


def _unit(opcode, x):
    return cute.arch.inline_ptx(f"{opcode} {{$w0}}, {{$r0}};", write_only_types=[Float32], read_only_args=[Float32(x)])
