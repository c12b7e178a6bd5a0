"""cvt and cvta: conversions with exact rounding, packed conversions, address-space casts."""

from typing import Any

import numpy as np

from moegen.ptx.dtypes import TYPES, PtxType
from moegen.ptx.emit import Emit, Lowered, view
from moegen.ptx.formats import FORMATS, bf16_to_f32, decode, f32_to_bf16, round_f64, table
from moegen.ptx.lanes_float import ftz4, nan2
from moegen.ptx.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from moegen.ptx.registry import instruction

_INT8 = "{u8,s8,u16,s16,u32,s32,u64,s64}"
_ROUND_INT = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_F8 = np.dtype("f8")


# -- integers ----------------------------------------------------------------------------------------------------


def _covers(to: str, source: str) -> bool:
    """Whether every value of an integer type fits another one; then .sat is not allowed."""
    wide, narrow = int(to[1:]), int(source[1:])
    if source[0] == "u":
        return wide > narrow or (wide == narrow and to[0] == "u")
    return to[0] == "s" and wide >= narrow


_NAMES = _INT8[1:-1].split(",")
_SATURATING = [f"cvt.sat.{to}.{source}" for to in _NAMES for source in _NAMES if not _covers(to, source)]


@instruction(f"cvt.{_INT8}.{_INT8}", *_SATURATING)
def _int_to_int(e: Emit) -> Lowered:
    to, source = e.type(-2), e.type(-1)
    dst, a = e.dst(to, loose=True), e.src(source, loose=True)
    register = _register_bits(e, 1)
    value = f"R[{a}]"
    if register != source.bits:  # a wider register: the low part counts
        value = f"{value}.astype(U{source.nbytes})"
    if source.kind == "s":
        value = f"{value}.view(I{source.nbytes})"
    target = _register_bits(e, 0)
    if e.has("sat"):
        info = np.iinfo(to.view)  # type: ignore[type-var]
        # Clamping in int64 is exact unless a u64 is involved, which the bounds below treat apart.
        if source.name == "u64":
            value = f"{value}.clip(0, {int(info.max)})"
        elif to.name == "u64":
            value = f"{value}.astype(I8).clip(0)"
        else:
            value = f"{value}.astype(I8).clip({int(info.min)}, {int(info.max)})"
    letter = "I" if to.kind == "s" else "U"
    value = f"{value}.astype({letter}{to.nbytes})"
    if target != to.bits:  # a wider destination register is sign- or zero-extended
        value = f"{value}.astype({letter}{target // 8})"
    if letter == "I":
        value = f"{value}.view(U{target // 8})"
    return e.pure(dst, value)


def _register_bits(e: Emit, index: int) -> int:
    operand = e.item.operands[index]
    kind = getattr(operand, "type", None)
    default = e.type(-2) if index == 0 else e.type(-1)
    return kind.bits if isinstance(kind, PtxType) else default.bits


@instruction("cvt.pack.sat.{u8,s8}.s32.b32", "cvt.pack.sat.{u16,s16}.s32")
def _pack(e: Emit) -> Lowered:
    four = len(e.mods) == 6
    to = e.type(3)
    info = np.iinfo(to.view)  # type: ignore[type-var]
    dst, a, b = e.dst("b32"), e.src("s32"), e.src("s32")
    c = e.src("b32") if four else e.const(0, "<u4")
    shift, mask = to.bits, (1 << to.bits) - 1
    low, high = int(info.min), int(info.max)
    part = "((R[{0}].view(I4).clip({1}, {2})).view(U4) & U4.type({3}))"
    first, second = part.format(a, low, high, mask), part.format(b, low, high, mask)
    rest = f" | (R[{c}] << U4.type({2 * shift}))" if four else ""
    return e.pure(dst, f"({first} << U4.type({shift})) | {second}{rest}")


# -- integers and floats -----------------------------------------------------------------------------------------


def float_to_int(bits: Any, source: str, to: PtxType, rounding: str, flush: bool) -> Any:
    """Rounds floats to integers with saturation; NaN gives 0 (64-bit and f64 sources: the lowest bound's pattern)."""
    value = decode(ftz4(bits) if flush else bits, source) if source != "f64" else bits.view(_F8)
    nan = np.isnan(value)
    value = np.where(nan, 0.0, _ROUND_INT[rounding](value))
    info = np.iinfo(to.view)  # type: ignore[type-var]
    low, high = float(info.min), float(info.max)
    clipped = np.where(value >= high, 0.0, np.where(value <= low, low, value))
    out = clipped.astype(to.view)
    out = np.where(value >= high, np.array(info.max, to.view), out)
    if nan.any():
        # The device's conversion of NaN: 0 for results up to 32 bits from f32 and narrower, else only the top bit set.
        wide = to.bits == 64 or source == "f64"
        special = np.array(1 << (to.bits - 1) if wide else 0, np.uint64).astype(to.store).view(to.view)
        out = np.where(nan, special, out)
    return out.view(to.store)


@instruction(f"cvt.{{rni,rzi,rmi,rpi}}{{,.ftz}}{{,.sat}}.{_INT8}.{{f16,bf16,f32,f64}}")
def _float_to_int(e: Emit) -> Lowered:
    to, source = e.type(-2), e.type(-1)
    dst, a = e.dst(to, loose=True), e.src(source)
    name, kind = e.bind(float_to_int, "float_to_int"), e.bind(to, "type")
    value = f"{name}(R[{a}], {source.name!r}, {kind}, {e.mods[1]!r}, {e.has('ftz') and source.bits == 32})"
    target = _register_bits(e, 0)
    if target != to.bits:
        letter = "I" if to.kind == "s" else "U"
        value = f"{value}.view({letter}{to.nbytes}).astype({letter}{target // 8})"
        value += f".view(U{target // 8})" if letter == "I" else ""
    return e.pure(dst, value)


def int_to_float(values: Any, to: str, mode: str) -> Any:
    """Rounds integers to a float format once."""
    if to == "f64":
        if mode == "rn":
            return values.astype(_F8).view(np.uint64)
        return _int64_directed(values, mode)
    if values.dtype.itemsize == 8:
        if to == "f32" and mode == "rn":
            return values.astype(np.float32).view(np.uint32)
        values = _odd_from_int(values)
    codes = round_f64(values.astype(_F8), to, mode)
    return codes if to == "f32" else codes.astype(np.uint16)


def _error_sign(values: Any, near: Any) -> Any:
    """Sign of an integer minus its f64 approximation."""
    if values.dtype.itemsize < 8:
        return np.zeros(values.shape)
    # Both split into an upper multiple of 2^32 and a rest that f64 and int64 hold exactly.
    high = np.floor(near * 2.0**-32)
    upper = (values >> values.dtype.type(32)).astype(_F8)
    lower = (values & values.dtype.type(0xFFFFFFFF)).astype(_F8)
    return np.sign((upper - high) * 2.0**32 + (lower - (near - high * 2.0**32)))


def _odd_from_int(values: Any) -> Any:
    """64-bit integers to f64 rounded to odd."""
    near = values.astype(_F8)
    error = _error_sign(values, near)
    bits = near.view(np.uint64)
    even = (error != 0) & ((bits & np.uint64(1)) == 0)
    moved = np.where((error > 0) == (near > 0), bits + np.uint64(1), bits - np.uint64(1))
    return np.where(even, moved, bits).view(_F8)


def _int64_directed(values: Any, mode: str) -> Any:
    """Integers to f64 bits towards zero (``rz``), down or up."""
    near = values.astype(_F8)
    error = _error_sign(values, near)
    down = np.where(error < 0, np.nextafter(near, -np.inf), near)
    up = np.where(error > 0, np.nextafter(near, np.inf), near)
    lower = values > 0 if mode == "rz" else np.full(values.shape, mode == "rm")
    return np.where(lower, down, up).view(np.uint64)


@instruction(f"cvt.{{rn,rz,rm,rp}}{{,.sat}}.{{f16,bf16,f32,f64}}.{_INT8}")
def _int_to_float(e: Emit) -> Lowered:
    to, source = e.type(-2), e.type(-1)
    dst, a = e.dst(to), e.src(source, loose=True)
    value = f"R[{a}]" if _register_bits(e, 1) == source.bits else f"R[{a}].astype(U{source.nbytes})"
    if source.kind == "s":
        value = f"{value}.view(I{source.nbytes})"
    if to.name == "f32" and source.bits <= 32 and e.mods[1] == "rn":
        value = f"{value}.astype(F4).view(U4)"
    else:
        value = f"{e.bind(int_to_float, 'int_to_float')}({value}, {to.name!r}, {e.mods[1]!r})"
    if e.has("sat"):
        value = f"sat{to.nbytes}({value})"
    return e.pure(dst, value)


# -- floats ------------------------------------------------------------------------------------------------------


def float_to_float(
    bits: Any, source: str, to: str, mode: str, *, ftz: bool, sat: bool, satfinite: bool, relu: bool
) -> Any:
    """Conversion between f16, bf16, f32, tf32 and f64 with one rounding."""
    if ftz and source == "f32":
        bits = ftz4(bits)
    value = bits.view(_F8) if source == "f64" else decode(bits, source)
    if to == "f64":
        return np.where(np.isnan(value), np.uint64(0x7FFFFFFFFFFFFFFF), value.view(np.uint64))
    if sat:
        value = np.where(value > 0, np.minimum(value, 1.0), 0.0)
    code = round_f64(value, to, mode, satfinite=satfinite, relu=relu)
    if mode == "rna":
        # An H200 cuts NaN bits like any others: a payload below the kept bits becomes an infinity.
        code = np.where(np.isnan(value), bits & np.uint32(0xFFFFE000), code)
    if ftz and to == "f32":
        code = ftz4(code)
    return code.astype(TYPES["b16"].store) if FORMATS[to].bits == 16 else code


@instruction(
    "cvt{,.ftz}{,.sat}.f32.{f16,bf16}",
    "cvt{,.sat}.f64.f32",
    "cvt{,.ftz}{,.sat}.f32.f32",
    "cvt.f64.f16",
    "cvt.{rn,rz,rm,rp}{,.ftz}{,.sat}.f32.f64",
    "cvt.{rn,rz,rm,rp}{,.sat}.f16.f64",
    "cvt.{rn,rz,rm,rp}{,.ftz}{,.sat}.f16.f32",
    "cvt.{rn,rz}{,.relu}{,.satfinite}.{f16,bf16}.f32",
    "cvt.{rm,rp}.bf16.f32",
    "cvt.rna{,.satfinite}.tf32.f32",
    "cvt.{rn,rz}{,.satfinite}{,.relu}.tf32.f32",
    "cvt.rn.{bf16.f16,f16.bf16}",
)
def _float_to_float(e: Emit) -> Lowered:
    source = e.mods[-1]
    to = e.mods[-2]
    mode = next((m for m in e.mods if m in {"rn", "rna", "rz", "rm", "rp"}), "rn")
    dst, a = e.dst(TYPES["b32"] if to == "tf32" else TYPES[to]), e.src(TYPES[source])
    if source == "bf16" and to == "f32" and not e.has("sat"):
        # Only NaN patterns need more than a shift.
        return e.pure(dst, f"nan4(({view(a, TYPES['b16'])}.astype(U4) << U4.type(16)).view(F4))")
    if source == "f16" and to == "f32" and not e.has("sat"):
        return e.pure(dst, f"nan4(R[{a}].view(F2).astype(F4))")
    flags = {name: e.has(name) for name in ("ftz", "sat", "satfinite", "relu")}
    if (source, to, mode) == ("f32", "bf16", "rn") and not any(flags.values()):
        return e.pure(dst, f"{e.bind(f32_to_bf16, 'f32_to_bf16')}(R[{a}].view(F4))")
    if (source, to, mode) == ("f32", "f16", "rn") and not any(flags.values()):
        return e.pure(dst, f"nan2(R[{a}].view(F4).astype(F2))")
    call = f"{e.bind(float_to_float, 'float_to_float')}(R[{a}], {source!r}, {to!r}, {mode!r}"
    return e.pure(dst, call + "".join(f", {name}={value}" for name, value in flags.items()) + ")")


@instruction("cvt.{rni,rzi,rmi,rpi}{,.ftz}{,.sat}.{f32.f32,f64.f64,f16.f16}")
def _round_to_integral(e: Emit) -> Lowered:
    kind = e.type()
    dst, a = e.dst(kind), e.src(kind)
    rounding = e.bind(_ROUND_INT[e.mods[1]], e.mods[1])
    n = kind.nbytes
    source = f"ftz4(R[{a}])" if e.has("ftz") else f"R[{a}]"
    value = f"nan{n}({rounding}({source}.view(F{n})))"
    return e.pure(dst, f"sat{n}({value})" if e.has("sat") else value)


# -- packed ------------------------------------------------------------------------------------------------------


def two_to_packed(a: Any, b: Any, to: str, mode: str, satfinite: bool, relu: bool) -> Any:
    """Two f32 registers to a packed pair; a becomes the upper half."""
    high = round_f64(a.view(np.float32).astype(_F8), to, mode, satfinite=satfinite, relu=relu)
    low = round_f64(b.view(np.float32).astype(_F8), to, mode, satfinite=satfinite, relu=relu)
    return (high << np.uint32(FORMATS[to].bits)) | low


def _f32_pair(a: Any, b: Any) -> Any:
    """Two f32 registers side by side, b first: f32 [..., 2]."""
    pair = np.empty((*max(a.shape, b.shape, key=len), 2), np.float32)
    pair[..., 0] = b.view(np.float32)
    pair[..., 1] = a.view(np.float32)
    return pair


def fast_bf16x2(a: Any, b: Any) -> Any:
    """Two f32 registers to bf16x2, nearest even."""
    return f32_to_bf16(_f32_pair(a, b)).view(np.uint32)[..., 0]


def fast_f16x2(a: Any, b: Any) -> Any:
    """Two f32 registers to f16x2, nearest even."""
    with np.errstate(over="ignore"):
        pair = _f32_pair(a, b).astype(np.float16)
    return nan2(pair).view(np.uint32)[..., 0]


@instruction("cvt.{rn,rz}{,.relu}{,.satfinite}.{f16x2,bf16x2}.f32", "cvt.rn.satfinite{,.relu}.{e4m3x2,e5m2x2}.f32")
def _pack_pair(e: Emit) -> Lowered:
    to = e.mods[-2][:-2]
    dst = e.dst("b32" if FORMATS[to].bits == 16 else "b16")
    a, b = e.src("f32"), e.src("f32")
    if e.mods[1] == "rn" and not e.has("relu") and not e.has("satfinite") and FORMATS[to].bits == 16:
        name = e.bind(fast_bf16x2 if to == "bf16" else fast_f16x2, to)
        return e.pure(dst, f"{name}(R[{a}], R[{b}])")
    call = (
        f"{e.bind(two_to_packed, 'pack')}(R[{a}], R[{b}], {to!r}, {e.mods[1]!r}, {e.has('satfinite')}, {e.has('relu')})"
    )
    return e.pure(dst, call if FORMATS[to].bits == 16 else f"{call}.astype(U2)")


@instruction("cvt.rn.satfinite{,.relu}.e2m1x2.f32")
def _pack_fp4(e: Emit) -> Lowered:
    dst, a, b = e.dst("b8"), e.src("f32"), e.src("f32")
    call = f"{e.bind(two_to_packed, 'pack')}(R[{a}], R[{b}], 'e2m1', 'rn', True, {e.has('relu')})"
    return e.pure(dst, f"{call}.astype(U1)")


@instruction("cvt.rn.satfinite{,.relu}.{e2m3x2,e3m2x2}.f32")
def _pack_fp6(e: Emit) -> Lowered:
    dst, a, b = e.dst("b16"), e.src("f32"), e.src("f32")
    to = e.mods[-2][:-2]
    name = e.bind(two_to_bytes, "pack6")
    return e.pure(dst, f"{name}(R[{a}], R[{b}], {to!r}, {e.has('relu')})")


def two_to_bytes(a: Any, b: Any, to: str, relu: bool) -> Any:
    """Two f32 registers to a pair of bytes that hold narrower codes; a becomes the upper byte."""
    high = round_f64(a.view(np.float32).astype(_F8), to, satfinite=True, relu=relu)
    low = round_f64(b.view(np.float32).astype(_F8), to, satfinite=True, relu=relu)
    return ((high << np.uint32(8)) | low).astype(np.uint16)


@instruction("cvt.{rz,rp}{,.satfinite}.ue8m0x2.{f32,bf16x2}")
def _pack_ue8m0(e: Emit) -> Lowered:
    dst = e.dst("b16")
    name = e.bind(to_ue8m0, "to_ue8m0")
    flags = f"{e.mods[1] == 'rp'}, {e.has('satfinite')}"
    if e.mods[-1] == "f32":
        a, b = e.src("f32"), e.src("f32")
        return e.pure(dst, f"{name}(R[{a}].view(F4), R[{b}].view(F4), {flags})")
    a = e.src("bf16x2")
    half = e.bind(bf16_to_f32, "bf")
    return e.pure(dst, f"{name}({half}(R[{a}] >> U4.type(16)), {half}(R[{a}] & U4.type(65535)), {flags})")


def to_ue8m0(a: Any, b: Any, up: bool, satfinite: bool) -> Any:
    """Two f32 arrays to a pair of power-of-two codes (exponent only), rounded towards zero or up; a is the upper
    byte.
    """
    codes = []
    for x in (a, b):
        bits = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
        exponent, fraction = bits >> np.uint32(23), bits & np.uint32(0x7FFFFF)
        # Subnormals: 2^-127 has code 0 and the fraction 0x400000.
        bump = np.where(exponent == 0, fraction > 0x400000, fraction != 0) & up
        code = exponent + bump.astype(np.uint32)
        limit = 0xFE if satfinite else 0xFF
        code = np.minimum(code, limit)
        codes.append(np.where(np.isnan(x), np.uint32(0xFF), code))
    return ((codes[0] << np.uint32(8)) | codes[1]).astype(np.uint16)


@instruction("cvt.rn{,.relu}.f16x2.{e4m3x2,e5m2x2,e2m1x2,e2m3x2,e3m2x2}", "cvt.rn.bf16x2.ue8m0x2")
def _unpack_pair(e: Emit) -> Lowered:
    source = e.mods[-1][:-2]
    dst, a = e.dst("b32"), e.src("b8" if source == "e2m1" else "b16")
    name = e.bind(packed_to_halves, "unpack")
    return e.pure(dst, f"{name}(R[{a}], {source!r}, {e.has('relu')})")


def packed_to_halves(bits: Any, source: str, relu: bool) -> Any:
    """A packed pair of narrow codes to f16x2 (bf16x2 for ue8m0)."""
    width = 4 if source == "e2m1" else 8
    used = 8 if source == "ue8m0" else FORMATS[source].bits
    values = table(source)
    low = values[bits & bits.dtype.type((1 << used) - 1)]
    high = values[(bits >> bits.dtype.type(width)) & bits.dtype.type((1 << used) - 1)]
    to = "bf16" if source == "ue8m0" else "f16"
    return (round_f64(high, to, relu=relu) << np.uint32(16)) | round_f64(low, to, relu=relu)


@instruction("cvt.rn.satfinite{,.relu}.{e4m3x2,e5m2x2}.f16x2")
def _halves_to_fp8(e: Emit) -> Lowered:
    to = e.mods[-2][:-2]
    dst, a = e.dst("b16"), e.src("b32")
    return e.pure(dst, f"{e.bind(halves_to_packed, 'halves')}(R[{a}], {to!r}, {e.has('relu')})")


def halves_to_packed(bits: Any, to: str, relu: bool) -> Any:
    """f16x2 to a packed FP8 pair."""
    values = bits.view(np.uint16).view(np.float16).astype(_F8)
    codes = round_f64(values, to, satfinite=True, relu=relu).reshape(*bits.shape, 2)
    return (codes[..., 0] | (codes[..., 1] << np.uint32(8))).astype(np.uint16)


# -- addresses ---------------------------------------------------------------------------------------------------

_BASES = {"shared": SHARED_WINDOW, "shared@cta": SHARED_WINDOW, "shared@cluster": SHARED_WINDOW, "local": LOCAL_WINDOW}


@instruction("cvta.{global,shared,shared::cta,shared::cluster,local,const,param,param::entry}.u64")
def _to_generic(e: Emit) -> Lowered:
    dst = e.dst("u64")
    space = e.mods[1]
    a = e.src("u64")
    base = _BASES.get(space, 0)
    if space.startswith("param"):
        base = PARAM_WINDOW  # symbol addresses of parameters carry it already
    return e.pure(dst, f"R[{a}] | U8.type({base})" if base else f"R[{a}]")


@instruction("cvta.to.{global,shared,shared::cta,shared::cluster,local,const,param,param::entry}.u64")
def _from_generic(e: Emit) -> Lowered:
    dst, a = e.dst("u64"), e.src("u64")
    space = e.mods[2]
    if space in {"global", "const"} or space.startswith("param"):
        return e.pure(dst, f"R[{a}]")
    return e.pure(dst, f"R[{a}] & U8.type({(1 << 56) - 1})")
