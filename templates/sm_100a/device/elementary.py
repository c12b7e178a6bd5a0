"""exp, tanh and the sigmoid forms: bit for bit ``moegen.numerics.elementary``, which explains and tests each step."""

from cutlass import Float32, Int32
from sm_100a.device.arithmetic import add, divide, fma, mul, select, sub

LOG2E = float.fromhex("0x1.715476p+0")
ROUND_MAGIC = float.fromhex("0x1.8p+23")
MAGIC_BITS = 0x4B400000
LN2_HI = float.fromhex("0x1.62e430p-1")
LN2_LO = float.fromhex("-0x1.05c610p-29")
EXP_MAX = 89.0
EXP_MIN = -104.0
EXP_POLY = ("0x1.6a2434p-10", "0x1.1239e2p-7", "0x1.5558f2p-5", "0x1.555492p-3", "0x1.fffffcp-2", "1", "1")
TANH_SPLIT = float.fromhex("0x1.19999ap-1")
TANH_POLY = ("-0x1.9bba80p-8", "0x1.59568cp-6", "-0x1.b92bbap-5", "0x1.110d3cp-3", "-0x1.55554cp-2")
SIGN = -0x80000000
MAGNITUDE = 0x7FFFFFFF


def horner(x, coefficients):
    """Polynomial with the highest power first, one fma a step."""
    value = Float32(float.fromhex(coefficients[0]))
    for coefficient in coefficients[1:]:
        value = fma(value, x, float.fromhex(coefficient))
    return value


def power_of_two(n):
    """2^n for n in [-126, 127]."""
    return ((n + Int32(127)) << Int32(23)).bitcast(Float32)


def exp(x):
    """e^x."""
    capped = select(x > EXP_MAX, EXP_MAX, x)
    clamped = select(capped < EXP_MIN, EXP_MIN, capped)
    shifted = add(mul(clamped, LOG2E), ROUND_MAGIC)
    n = shifted.bitcast(Int32) - Int32(MAGIC_BITS)
    rounded = sub(shifted, ROUND_MAGIC)
    remainder = fma(rounded, -LN2_LO, fma(rounded, -LN2_HI, clamped))
    half = n >> Int32(1)
    return mul(mul(horner(remainder, EXP_POLY), power_of_two(half)), power_of_two(n - half))


def negative(x):
    """-x, NaN and zeros included."""
    return (x.bitcast(Int32) ^ Int32(SIGN)).bitcast(Float32)


def silu(x):
    """``x / (1 + exp(-x))``."""
    return divide(x, add(1.0, exp(negative(x))))


def scaled_silu(x, alpha):
    """``x / (1 + exp(-(alpha·x)))``."""
    return divide(x, add(1.0, exp(negative(mul(x, alpha)))))


def tanh(x):
    """Odd in the bits: computed on |x|, sign copied."""
    bits = x.bitcast(Int32)
    magnitude = (bits & Int32(MAGNITUDE)).bitcast(Float32)
    square = mul(magnitude, magnitude)
    small = fma(mul(magnitude, square), horner(square, TANH_POLY), magnitude)
    decay = exp(mul(magnitude, -2.0))
    large = divide(sub(1.0, decay), add(1.0, decay))
    result = select(magnitude < TANH_SPLIT, small, large)
    return (result.bitcast(Int32) | (bits & Int32(SIGN))).bitcast(Float32)
