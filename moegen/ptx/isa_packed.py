"""Half precision, packed pairs (f16x2, bf16x2, f32x2, s16x2, u16x2) and their arithmetic."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from moegen.ptx.emit import Emit, Lowered
from moegen.ptx.formats import bf16_to_f32, round_f64
from moegen.ptx.lanes_float import fma4, fmax_, fmin_, ftz4
from moegen.ptx.registry import instruction

_F8 = np.dtype("f8")


def to_f64(bits: Any, name: str) -> Any:
    """f16 or bf16 codes to f64."""
    if name == "bf16":
        return bf16_to_f32(bits).astype(_F8)
    return bits.view(np.float16).astype(_F8)


def half_op(name: str, op: str, flags: frozenset[str], *bits: Any) -> Any:
    """Arithmetic on f16 or bf16 codes (u2 arrays of any shape): computed exactly in f64, rounded once.

    Sums of a product and an addend of these formats fit f64 except where the smaller part is far below half an ulp,
    so one rounding to nearest is exact.
    """
    values = [to_f64(b, name) for b in bits]
    if "ftz" in flags:
        values = [np.where(np.abs(v) < 2.0**-14, np.copysign(0.0, v), v) for v in values]
    if op == "fma":
        result = _exact_fma(values)
    elif op == "add":
        result = values[0] + values[1]
    elif op == "sub":
        result = values[0] - values[1]
    elif op == "mul":
        result = values[0] * values[1]
    else:
        pick = fmin_ if op == "min" else fmax_
        if "abs" in flags:
            values = [np.abs(v) for v in values]
        result = pick(values[0], values[1], "NaN" in flags)
        if "abs" in flags:  # .xorsign.abs
            sign = (bits[0] ^ bits[1]) & np.uint16(0x8000)
            code = round_f64(result, name).astype(np.uint16)
            return (code & np.uint16(0x7FFF)) | sign
    if "relu" in flags:
        result = np.where(np.isnan(result), result, np.where(result > 0, result, 0.0))
    if "sat" in flags:
        result = np.where(result > 0, np.minimum(result, 1.0), 0.0)
    if "ftz" in flags:
        result = np.where(np.abs(result) < 2.0**-14, np.copysign(0.0, result), result)
    return round_f64(result, name).astype(np.uint16)


def _exact_fma(values: list[Any]) -> Any:
    product = values[0] * values[1]
    total = product + values[2]
    # bf16 exponents span more than f64's mantissa: round to odd so that the final rounding is the only one.
    t = total - product
    error = (product - (total - t)) + (values[2] - t)
    bits = total.view(np.uint64)
    even = (error != 0) & np.isfinite(total) & ((bits & np.uint64(1)) == 0)
    moved = np.where((error > 0) == (total > 0), bits + np.uint64(1), bits - np.uint64(1))
    return np.where(even, moved, bits).view(_F8)


def on_pairs(function: Callable[..., Any], *registers: Any) -> Any:
    """Applies a function of u2 arrays to packed u4 registers."""
    parts = [r.view(np.uint16) for r in registers]
    return function(*parts).view(np.uint32)


@cache
def _half_function(name: str, op: str, flags: frozenset[str]) -> Callable[..., Any]:
    """One function object per operation, so that equal instructions have equal expressions."""
    return partial(half_op, name, op, flags)


def _half(e: Emit, op: str, count: int) -> Lowered:
    packed = e.mods[-1].endswith("x2")
    name = e.mods[-1].removesuffix("x2")
    register = "b32" if packed else "b16"
    flags = frozenset(m for m in e.mods if m in {"ftz", "sat", "relu", "NaN", "abs"})
    dst = e.dst(register)
    sources = [e.src(register) for _ in range(count)]

    call = e.bind(_half_function(name, op, flags), "half")
    arguments = ", ".join(f"R[{s}]" for s in sources)
    if packed:
        return e.pure(dst, f"{e.bind(on_pairs, 'on_pairs')}({call}, {arguments})")
    return e.pure(dst, f"{call}({arguments})")


@instruction("{add,sub,mul}{,.rn}{,.ftz}{,.sat}.{f16,f16x2}", "{add,sub,mul}{,.rn}.{bf16,bf16x2}")
def _half_binary(e: Emit) -> Lowered:
    return _half(e, e.mods[0], 2)


@instruction("fma.rn{,.ftz}{,.sat,.relu}.{f16,f16x2}", "fma.rn{,.relu}.{bf16,bf16x2}")
def _half_fma(e: Emit) -> Lowered:
    return _half(e, "fma", 3)


@instruction("{min,max}{,.ftz}{,.NaN}{,.xorsign.abs}.{f16,f16x2}", "{min,max}{,.NaN}{,.xorsign.abs}.{bf16,bf16x2}")
def _half_min_max(e: Emit) -> Lowered:
    return _half(e, e.mods[0], 2)


@instruction("{abs,neg}.{f16x2,bf16x2}")
def _pair_sign(e: Emit) -> Lowered:
    dst, a = e.dst("b32"), e.src("b32")
    if e.mods[0] == "abs":
        return e.pure(dst, f"R[{a}] & U4.type(0x7FFF7FFF)")
    return e.pure(dst, f"R[{a}] ^ U4.type(0x80008000)")


@instruction("{add,sub}.{u16x2,s16x2}", "{min,max}.{u16x2,s16x2}")
def _int_pairs(e: Emit) -> Lowered:
    dst, a, b = e.dst("b32"), e.src("b32"), e.src("b32")
    letter = "I" if e.mods[-1][0] == "s" else "U"
    x, y = f"R[{a}].view({letter}2)", f"R[{b}].view({letter}2)"
    function = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum}[e.mods[0]]
    return e.pure(dst, f"{e.bind(function, 'pairs')}({x}, {y}).view(U4)")


@instruction("{add,sub,mul}{,.rn}{,.ftz}.f32x2", "fma.rn{,.ftz}.f32x2")
def _f32x2(e: Emit) -> Lowered:
    count = 3 if e.mods[0] == "fma" else 2
    dst = e.dst("b64")
    sources = [e.src("b64") for _ in range(count)]
    flush = e.has("ftz")
    call = e.bind(f32_pairs, "f32_pairs")
    return e.pure(dst, f"{call}({e.mods[0]!r}, {flush}, {', '.join(f'R[{s}]' for s in sources)})")


def f32_pairs(op: str, flush: bool, *registers: Any) -> Any:
    """Arithmetic on pairs of f32 in 64-bit registers."""
    parts = [r.view(np.uint32) for r in registers]
    if flush:
        parts = [ftz4(p) for p in parts]
    if op == "fma":
        result = fma4(*parts)
    else:
        x, y = parts[0].view(np.float32), parts[1].view(np.float32)
        value = x + y if op == "add" else x - y if op == "sub" else x * y
        bad = value != value
        result = np.where(bad, np.uint32(0x7FFFFFFF), value.view(np.uint32))
    if flush:
        result = ftz4(result)
    return result.view(np.uint64)


@cache
def _approx_function(name: str, op: str) -> Callable[..., Any]:
    function = np.exp2 if op == "ex2" else np.tanh
    return lambda bits: round_f64(function(to_f64(bits, name)), name).astype(np.uint16)


@instruction("ex2.approx.{f16,f16x2}", "tanh.approx.{f16,f16x2,bf16,bf16x2}", "ex2.approx.ftz.{bf16,bf16x2}")
def _half_approx(e: Emit) -> Lowered:
    packed = e.mods[-1].endswith("x2")
    name = e.mods[-1].removesuffix("x2")
    register = "b32" if packed else "b16"
    dst, a = e.dst(register), e.src(register)
    call = e.bind(_approx_function(name, e.mods[0]), "half_approx")
    return e.pure(dst, f"{e.bind(on_pairs, 'on_pairs')}({call}, R[{a}])" if packed else f"{call}(R[{a}])")


def nan_min_max(values: Any, name: str, absolute: bool, nan: bool) -> Any:
    """f32 minimum or maximum over bits (redux): one u32 result."""
    bits = values & np.uint32(0x7FFFFFFF) if absolute else values
    pick = fmin_ if name == "min" else fmax_
    result = bits[:1].view(np.float32)
    for k in range(1, bits.size):
        result = pick(result, bits[k : k + 1].view(np.float32), nan)
    return np.where(np.isnan(result), np.uint32(0x7FFFFFFF), result.view(np.uint32))[0]
