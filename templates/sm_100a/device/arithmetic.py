"""fp32 operations that keep their own rounding: what ``moegen.numerics`` calls one IEEE operation.

A product that feeds a sum could be contracted by a compiler further down; an explicit rounding mode forbids that.
"""

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32


def mul(a, b):
    """``a · b``, nearest even, never contracted."""
    return _two("mul.rn.f32", a, b)


def add(a, b):
    """``a + b``, nearest even, never contracted."""
    return _two("add.rn.f32", a, b)


def sub(a, b):
    """``a - b``, nearest even, never contracted."""
    return _two("sub.rn.f32", a, b)


def divide(a, b):
    """``a / b``, correctly rounded."""
    return _two("div.rn.f32", a, b)


def fma(a, b, c):
    """``a · b + c``, rounded once."""
    return _of("fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};", a, b, c)


def select(condition, chosen, other):
    """``chosen`` where ``condition`` holds, else ``other``; both fp32, both computed."""
    return Float32(cutlass.select_(condition, Float32(chosen), Float32(other)))


def round_bf16(x):
    """To the nearest bf16, ties to even, and back."""
    return Float32(BFloat16(x))


def _two(opcode, a, b):
    return _of(f"{opcode} {{$w0}}, {{$r0}}, {{$r1}};", a, b)


def _of(text, *values):
    return cute.arch.inline_ptx(text, write_only_types=[Float32], read_only_args=[Float32(value) for value in values])
