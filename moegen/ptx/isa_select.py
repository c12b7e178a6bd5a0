"""Comparisons, selections and moves."""

from typing import TYPE_CHECKING

import numpy as np

from moegen.ptx.dtypes import TYPES, Mask, PtxType
from moegen.ptx.emit import Effect, Emit, Lowered, Pure, view
from moegen.ptx.formats import bf16_to_f32
from moegen.ptx.program import Imm, Reg, Sink, Special, SymRef, Vector
from moegen.ptx.registry import instruction

if TYPE_CHECKING:
    from moegen.ptx.warp import Warp

_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_COMPARE |= {f"{name}u": symbol for name, symbol in list(_COMPARE.items())[:6]}
_JOIN = {"and": "&", "or": "|", "xor": "^"}
_SET_INT = "{eq,ne,lt,le,gt,ge}{,.and,.or,.xor}.{u16,s16,u32,s32,u64,s64}"
_SET_BITS = "{eq,ne}{,.and,.or,.xor}.{b16,b32,b64}"
_SET_UNSIGNED = "{lo,ls,hi,hs}{,.and,.or,.xor}.{u16,u32,u64}"
_SET_FLOAT = "{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}{,.and,.or,.xor}"


def comparison(e: Emit, kind: PtxType) -> str:
    """Boolean expression of the comparison modifier over the next two operands, without the combination."""
    a, b = e.src(kind), e.src(kind)
    if kind.name == "bf16":
        to_f32 = e.bind(bf16_to_f32, "bf")
        x, y = f"{to_f32}(R[{a}])", f"{to_f32}(R[{b}])"
    else:
        x, y = view(a, kind), view(b, kind)
        if e.has("ftz") and kind.bits == 32:
            x, y = f"ftz4(R[{a}]).view(F4)", f"ftz4(R[{b}]).view(F4)"
    name = e.mods[1]
    if name == "num":
        return f"(({x} == {x}) & ({y} == {y}))"
    if name == "nan":
        return f"(({x} != {x}) | ({y} != {y}))"
    value = f"({x} {_COMPARE[name]} {y})"
    if kind.kind == "f" and name.endswith("u") and name not in _JOIN:
        value = f"({value} | ({x} != {x}) | ({y} != {y}))"
    elif kind.kind == "f" and name == "ne":
        value = f"({value} & ({x} == {x}) & ({y} == {y}))"
    return value


@instruction(
    f"setp.{_SET_INT}",
    f"setp.{_SET_BITS}",
    f"setp.{_SET_UNSIGNED}",
    f"setp.{_SET_FLOAT}{{,.ftz}}.f32",
    f"setp.{_SET_FLOAT}.{{f64,f16,bf16}}",
)
def _setp(e: Emit) -> Lowered:
    first, second = e.dst_pair("pred", "pred")
    value = comparison(e, e.type())
    join = next((m for m in e.mods[2:] if m in _JOIN), None)
    setup = f"t = {value}"
    yes, no = "t", "~t"
    if join:
        slot, negated = e.pred()
        other = f"~R[{slot}]" if negated else f"R[{slot}]"
        yes, no = f"t {_JOIN[join]} {other}", f"~t {_JOIN[join]} {other}"
    e.done()
    if second is None:
        return Pure([(first, yes)], setup)
    return Pure([(first, yes), (second, no)], setup)


@instruction(
    "set.{eq,ne,lt,le,gt,ge}{,.and,.or,.xor}.u32.{u16,s16,u32,s32,u64,s64}", f"set.{_SET_FLOAT}.{{u32,f32}}.f32"
)
def _set(e: Emit) -> Lowered:
    result = e.type(-2)
    dst = e.dst(result)
    value = comparison(e, e.type())
    join = next((m for m in e.mods[2:] if m in _JOIN), None)
    if join:
        slot, negated = e.pred()
        value = f"({value} {_JOIN[join]} {'~' if negated else ''}R[{slot}])"
    yes = e.const(0x3F800000 if result.kind == "f" else 0xFFFFFFFF, "<u4")
    no = e.const(0, "<u4")
    return e.pure(dst, f"where({value}, R[{yes}], R[{no}])")


@instruction("selp.{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64,f16,bf16}")
def _selp(e: Emit) -> Lowered:
    kind = e.type()
    dst, a, b = e.dst(kind), e.src(kind), e.src(kind)
    slot, negated = e.pred()
    if negated:
        a, b = b, a
    return e.pure(dst, f"where(R[{slot}], R[{a}], R[{b}])")


@instruction("slct.{b32,u32,s32,b64,u64,s64,f32,f64}.s32", "slct{,.ftz}.{b32,u32,s32,f32,b64}.f32")
def _slct(e: Emit) -> Lowered:
    kind, control = e.type(-2), e.type()
    dst, a, b = e.dst(kind), e.src(kind), e.src(kind)
    c = view(e.src(control), control)
    return e.pure(dst, f"where({c} >= 0, R[{a}], R[{b}])")


# -- moves -------------------------------------------------------------------------------------------------------

_CLOCKS = {"clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"}


@instruction("mov.{pred,b16,b32,b64,b128,u16,u32,u64,s16,s32,s64,f16,bf16,f32,f64}")
def _mov(e: Emit) -> Lowered:
    kind = e.type()
    operand = e.item.operands[0] if e.item.operands else None
    if isinstance(operand, Vector):
        return _unpack(e, kind)
    dst = e.dst(kind)
    source = e.peek()
    if isinstance(source, Vector):
        return _pack(e, kind, dst)
    if isinstance(source, Special) and source.name in _CLOCKS:
        e.take()
        return _clock(e, dst, source.name, kind)
    if isinstance(source, Imm | Reg | Special | SymRef):
        return e.pure(dst, f"R[{e.src(kind)}]")
    raise e.fail("mov needs a register, constant, symbol or vector")


def _clock(e: Emit, dst: int, name: str, kind: PtxType) -> Effect:
    def run(w: "Warp", m: Mask) -> None:
        value = w.cta.machine.tick()
        shift = 32 if name.endswith("_hi") else 0
        w.set(dst, np.full(32, (value >> shift) & ((1 << kind.bits) - 1), kind.store), m)

    return Effect(run)


def _part_type(e: Emit, kind: PtxType, count: int) -> PtxType:
    if kind.bits % count or kind.bits // count not in (8, 16, 32, 64):
        raise e.fail(f"{count} parts of .{kind.name}")
    return TYPES[f"b{kind.bits // count}"]


def _unpack(e: Emit, kind: PtxType) -> Pure:
    operand = e.take()
    assert isinstance(operand, Vector)
    part = _part_type(e, kind, len(operand.items))
    source, count = f"R[{e.src(kind)}]", len(operand.items)
    outs = [
        (e.as_dest(item, part), f"part({source}, U{part.nbytes}, {k}, {count})")
        for k, item in enumerate(operand.items)
        if not isinstance(item, Sink)
    ]
    e.done()
    return Pure(outs)


def _pack(e: Emit, kind: PtxType, dst: int) -> Pure:
    operand = e.take()
    assert isinstance(operand, Vector)
    part = _part_type(e, kind, len(operand.items))
    slots = [e.as_source(item, part) for item in operand.items]
    whole = e.bind(np.dtype(kind.store), kind.name)
    return e.pure(dst, f"cat([{', '.join(f'R[{s}]' for s in slots)}], {whole})")
