"""Floating-point instructions on f32 and f64: exact ones correctly rounded, approximate ones as the exact value."""

import numpy as np

from moegen.ptx.dtypes import PtxType
from moegen.ptx.emit import Emit, Lowered, Pure
from moegen.ptx.registry import instruction

_MODE = {"rz", "rm", "rp"}


def _float(e: Emit, value: str, sources: list[int], dst: int, kind: PtxType) -> Pure:
    """Wraps a float expression over register bits with .ftz and .sat; ``{0}`` are register expressions."""
    names = [f"R[{s}]" for s in sources]
    if e.has("ftz"):
        names = [f"ftz4({name})" for name in names]
    text = value.format(*names)
    if e.has("ftz"):
        text = f"ftz4({text})"
    if e.has("sat"):
        text = f"sat{kind.nbytes}({text})"
    return e.pure(dst, text)


@instruction(
    "{add,sub,mul}{,.rn,.rz,.rm,.rp}{,.ftz}{,.sat}.f32", "{add,sub,mul}{,.rn}.f64", "div.rn{,.ftz}.f32", "div.rn.f64"
)
def _float_binary(e: Emit) -> Lowered:
    kind = e.type()
    dst, a, b = e.dst(kind), e.src(kind), e.src(kind)
    n = kind.nbytes
    mode = next((m for m in e.mods if m in _MODE), None)
    if mode:
        flip = " ^ U4.type(0x80000000)" if e.mods[0] == "sub" else ""
        name = "mul_dir" if e.mods[0] == "mul" else "add_dir"
        return _float(e, f"{name}({{0}}, {{1}}{flip}, {mode!r})", [a, b], dst, kind)
    symbol = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[e.mods[0]]
    return _float(e, f"nan{n}({{0}}.view(F{n}) {symbol} {{1}}.view(F{n}))", [a, b], dst, kind)


@instruction("div.{rz,rm,rp}{,.ftz}.f32")
def _float_divide_directed(e: Emit) -> Lowered:
    kind = e.type()
    dst, a, b = e.dst(kind), e.src(kind), e.src(kind)
    return _float(e, f"div_dir({{0}}, {{1}}, {e.mods[1]!r})", [a, b], dst, kind)


@instruction("div.{approx,full}{,.ftz}.f32")
def _float_divide_approx(e: Emit) -> Lowered:
    kind = e.type()
    dst, a, b = e.dst(kind), e.src(kind), e.src(kind)
    if e.has("approx"):
        return _float(e, "div_approx({0}, {1})", [a, b], dst, kind)
    return _float(e, "nan4({0}.view(F4) / {1}.view(F4))", [a, b], dst, kind)


@instruction("{fma,mad}.{rn,rz,rm,rp}{,.ftz}{,.sat}.f32", "{fma,mad}.rn.f64")
def _fma(e: Emit) -> Lowered:
    kind = e.type()
    dst = e.dst(kind)
    sources = [e.src(kind) for _ in range(3)]
    if kind.bits == 64:
        return _float(e, "fma8({0}, {1}, {2})", sources, dst, kind)
    if e.mods[1] in _MODE:
        return _float(e, f"fma_dir({{0}}, {{1}}, {{2}}, {e.mods[1]!r})", sources, dst, kind)
    return _float(e, "fma4({0}, {1}, {2})", sources, dst, kind)


@instruction("{rcp,sqrt}.rn{,.ftz}.f32", "{rcp,sqrt}.rn.f64")
def _exact_unary(e: Emit) -> Lowered:
    kind = e.type()
    dst, a = e.dst(kind), e.src(kind)
    n = kind.nbytes
    if e.mods[0] == "rcp":
        return _float(e, f"nan{n}(F{n}.type(1) / {{0}}.view(F{n}))", [a], dst, kind)
    root = e.bind(np.sqrt, "root")
    return _float(e, f"nan{n}({root}({{0}}.view(F{n})))", [a], dst, kind)


@instruction("{rcp,sqrt}.{rz,rm,rp}{,.ftz}.f32")
def _directed_unary(e: Emit) -> Lowered:
    kind = e.type()
    dst, a = e.dst(kind), e.src(kind)
    if e.mods[0] == "rcp":
        one = e.const(0x3F800000, "<u4")
        return _float(e, f"div_dir({{1}}, {{0}}, {e.mods[1]!r})", [a, one], dst, kind)
    return _float(e, f"sqrt_dir({{0}}, {e.mods[1]!r})", [a], dst, kind)


@instruction("{rcp,sqrt,rsqrt,sin,cos,lg2,ex2}.approx{,.ftz}.f32", "tanh.approx.f32")
def _approx_unary(e: Emit) -> Lowered:
    kind = e.type()
    dst, a = e.dst(kind), e.src(kind)
    return _float(e, f"approx({e.mods[0]!r}, {{0}})", [a], dst, kind)


@instruction("{abs,neg}{,.ftz}.f32", "{abs,neg}.{f64,f16,bf16}")
def _sign(e: Emit) -> Lowered:
    kind = e.type()
    dst, a = e.dst(kind), e.src(kind)
    unsigned = f"U{kind.nbytes}"
    top = 1 << (kind.bits - 1)
    value = f"{{0}} & {unsigned}.type({top - 1})" if e.mods[0] == "abs" else f"{{0}} ^ {unsigned}.type({top})"
    return _float(e, f"({value})", [a], dst, kind)


@instruction("{min,max}{,.ftz}{,.NaN}{,.xorsign.abs,.abs}.f32", "{min,max}.f64")
def _float_min_max(e: Emit) -> Lowered:
    kind = e.type()
    dst = e.dst(kind)
    sources = [e.src(kind), e.src(kind)]
    if e.remaining and kind.bits == 32 and not e.has("xorsign"):
        sources.append(e.src(kind))
    n = kind.nbytes
    name = f"f{e.mods[0]}_"
    three = len(sources) == 3
    mag = e.has("abs")
    args = [f"({{{k}}} & U4.type(0x7FFFFFFF))" if mag else f"{{{k}}}" for k in range(len(sources))]
    views = [f"{arg}.view(F{n})" for arg in args]
    value = f"{name}({views[0]}, {views[1]}, {e.has('NaN')})"
    if three:
        value = f"{name}({value}, {views[2]}, {e.has('NaN')})"
    value = f"nan{n}({value})"
    if e.has("xorsign"):
        value = f"xorsign({value}, {{0}}, {{1}})"
    return _float(e, value, sources, dst, kind)


@instruction("copysign.{f32,f64}")
def _copysign(e: Emit) -> Lowered:
    kind = e.type()
    dst, a, b = e.dst(kind), e.src(kind), e.src(kind)
    return e.pure(dst, f"copysign(R[{a}], R[{b}], {kind.bits - 1})")


@instruction("testp.{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64}")
def _testp(e: Emit) -> Lowered:
    kind = e.type()
    dst, a = e.dst("pred"), e.src(kind)
    return e.pure(dst, f"testp(R[{a}], {e.mods[1]!r}, {kind.bits})")
