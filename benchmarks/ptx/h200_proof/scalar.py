"""Scalar instructions as kernels: one per opcode, each thread applies the instruction to its own inputs."""

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

COUNT = 4096
BLOCK = 128


def expand(pattern: str) -> list[str]:
    """Literal opcodes of a brace pattern."""
    parts = re.split(r"\{([^{}]*)\}", pattern)
    return ["".join(p) for p in itertools.product(*[x.split(",") if k % 2 else [x] for k, x in enumerate(parts)])]


@dataclass
class Case:
    """One launch, and how its result is judged.

    Attributes:
        text: PTX module text.
        args: arrays are copied in and, where named in ``outputs``, back; integers and bytes are passed by value.
        outputs: indices of the arguments that are results.
        rule: ``bits``, ``ulp:<n>`` (f32 units in the last place), ``rel:<x>`` (of the value or the array's
            root mean square), ``relative:<x>``, ``abs:<x>``, or the bounds that PTX
            documents for ranges of the argument: ``lg2`` (absolute 2^-22 within (0.5, 2), relative outside) and
            ``sincos`` (absolute 2^-20.5 up to 2 pi, 2^-14.7 up to 100 pi, none beyond). NaNs equal NaNs.
        maps: tensor maps: argument index to (index of the array it covers, fields).
    """

    name: str
    text: str
    entry: str
    args: list[Any]
    outputs: list[int]
    grid: tuple[int, int, int] = (COUNT // BLOCK, 1, 1)
    block: tuple[int, int, int] = (BLOCK, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    smem: int = 0
    rule: str = "bits"
    kind: str = "u"
    maps: dict[int, tuple[int, dict[str, Any]]] = field(default_factory=dict)


WIDTH = {"pred": 32, "e4m3x2": 16, "e5m2x2": 16, "f16x2": 32, "bf16x2": 32, "bf16": 16, "f16": 16, "tf32": 32}


def bits_of(kind: str) -> int:
    return WIDTH.get(kind) or int(re.sub(r"\D", "", kind.split("x")[0]) or 32)


_EDGE32 = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80000001, 0x55555555]
# fmt: off
_F32 = [
    0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000,
    0xFF800000, 0x7FC00000, 0x7F800001, 0x3F000000, 0x40200000, 0x43E00000, 0x47800000, 0x477FF000, 0x33800000,
]
# fmt: on


def inputs(kind: str, seed: int, role: str = "") -> Any:
    """Random and edge values of a type, as register bits."""
    rng = np.random.default_rng(seed)
    bits = bits_of(kind)
    dtype = np.dtype(f"u{max(bits, 8) // 8}")
    if role == "shift":
        return rng.integers(0, 70, COUNT).astype(np.uint32)
    if role == "field":
        return rng.integers(0, 40, COUNT).astype(np.uint32)
    raw = rng.integers(0, 1 << 63, COUNT, np.uint64) * 2 + rng.integers(0, 2, COUNT, np.uint64)
    values = (raw & np.uint64((1 << bits) - 1)).astype(dtype)
    if kind == "f32":
        near = (rng.standard_normal(COUNT) * np.exp2(rng.integers(-20, 20, COUNT))).astype(np.float32).view(np.uint32)
        grid = (np.round(rng.standard_normal(COUNT) * 64) / 8).astype(np.float32).view(np.uint32)
        choice = rng.integers(0, 8, COUNT)
        values = np.where(choice < 4, near, np.where(choice < 6, grid, values))
        values[: 20 * 20] = np.repeat(_F32, 20) if seed % 2 else np.tile(_F32, 20)
    elif kind == "f64":
        near = (rng.standard_normal(COUNT) * np.exp2(rng.integers(-60, 60, COUNT))).view(np.uint64)
        values = np.where(rng.integers(0, 4, COUNT) < 3, near, values)
        special = np.array(
            [0, 1 << 63, 1, 0x3FF << 52, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, 0x7FEFFFFFFFFFFFFF], np.uint64
        )
        values[:64] = np.repeat(special, 8) if seed % 2 else np.tile(special, 8)
    elif kind in {"f16", "bf16", "f16x2", "bf16x2"}:
        small = rng.standard_normal((COUNT, 2)).astype(np.float32) * np.exp2(rng.integers(-6, 6, (COUNT, 2))).astype(
            np.float32
        )
        if kind.startswith("bf16"):
            codes = (small.view(np.uint32) >> 16).astype(np.uint16)
        else:
            codes = small.astype(np.float16).view(np.uint16)
        near = codes.view(np.uint32).reshape(COUNT) if bits == 32 else codes[:, 0]
        values = np.where(rng.integers(0, 3, COUNT) < 2, near, values).astype(dtype)
    elif bits >= 16:
        edge = np.array(_EDGE32, np.uint64)
        edge = np.where(edge > 0x7FFFFFF0, edge | np.uint64(0xFFFFFFFF00000000) * (edge >> np.uint64(31)), edge)
        edge = (edge & np.uint64((1 << bits) - 1)).astype(dtype)
        values[:64] = np.repeat(edge, 8) if seed % 2 else np.tile(edge, 8)
        small = rng.integers(0, 20, COUNT).astype(dtype)
        values[64:] = np.where(rng.integers(0, 4, COUNT) == 0, small, values)[64:]
    return values


def kernel(
    opcode: str, out: str, sources: list[str], tail: str = "", version: str = "8.6", reg: dict[str, str] | None = None
) -> str:
    """PTX text of a kernel that applies an instruction elementwise.

    Args:
        opcode: with modifiers.
        out: result type; ``pred`` stores 0 or 1.
        sources: operand types; ``pred`` operands come from bit 0 of a 32-bit input.
        tail: further literal operands.
        reg: register types that differ from the operand types.
    """
    reg = reg or {}

    def store_type(kind: str) -> str:
        return f"b{bits_of(kind)}"

    def register(kind: str) -> str:
        plain = kind if re.fullmatch(r"[usbf]\d+", kind) and kind != "f16" else f"b{bits_of(kind)}"
        return reg.get(kind, plain)

    lines = [f".version {version}", ".target sm_90a", ".address_size 64", "", ".visible .entry k("]
    lines.append(",\n".join(f"  .param .u64 p{k}" for k in range(len(sources) + 1)))
    lines += [") {", "  .reg .b64 %rd<20>;", "  .reg .b32 %t<4>;", "  .reg .pred %q<10>;"]
    lines += ["  mov.u32 %t0, %ctaid.x;", "  mov.u32 %t1, %tid.x;", f"  mad.lo.s32 %t0, %t0, {BLOCK}, %t1;"]
    names = []
    for k, kind in enumerate(sources):
        size = bits_of(kind) // 8
        lines.append(f"  .reg .{register(kind)} %s{k};")
        lines.append(f"  ld.param.u64 %rd{k}, [p{k}];")
        lines.append(f"  mad.wide.u32 %rd{k}, %t0, {size}, %rd{k};")
        lines.append(f"  ld.global.{store_type(kind)} %s{k}, [%rd{k}];")
        if kind == "pred":
            lines += [f"  and.b32 %s{k}, %s{k}, 1;", f"  setp.ne.u32 %q{k}, %s{k}, 0;"]
            names.append(f"%q{k}")
        else:
            names.append(f"%s{k}")
    size = bits_of(out) // 8
    target = "%q9" if out == "pred" else "%d"
    lines.append(f"  .reg .{register(out)} %d;" if out != "pred" else "  .reg .b32 %d;")
    lines.append(f"  {opcode} {', '.join([target, *names])}{tail};")
    if out == "pred":
        lines.append("  selp.b32 %d, 1, 0, %q9;")
    lines += [f"  ld.param.u64 %rd19, [p{len(sources)}];", f"  mad.wide.u32 %rd19, %t0, {size}, %rd19;"]
    lines += [f"  st.global.{store_type(out)} [%rd19], %d;", "  ret;", "}"]
    return "\n".join(lines) + "\n"


def case(
    opcode: str, out: str, sources: list[str], *, roles: tuple[str, ...] = (), tail: str = "", rule: str = "bits"
) -> Case:
    """A scalar case with generated inputs."""
    data = [
        inputs("u32" if s == "pred" else s, 17 * k + 1 + k, roles[k] if k < len(roles) else "")
        for k, s in enumerate(sources)
    ]
    result = np.zeros(COUNT, np.dtype(f"u{bits_of(out) // 8}"))
    kind = out if out.startswith(("f", "b")) and not re.fullmatch(r"b\d+", out) else "u"
    name = opcode + (tail.replace(", ", ":") if tail else "")
    return Case(name, kernel(opcode, out, sources, tail), "k", [*data, result], [len(data)], rule=rule, kind=kind)


_COMPARE = "{eq,ne,lt,le,gt,ge}"
_COMPARE_F = "{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}"


def _covers(to: str, source: str) -> bool:
    """Whether every value of an integer type fits another one: then .sat is illegal."""
    a, b = int(to[1:]), int(source[1:])
    if source[0] == "u":
        return a > b or (a == b and to[0] == "u")
    return to[0] == "s" and a >= b


def cases() -> list[Case]:
    """Every scalar case."""
    found: list[Case] = []

    def add(pattern: str, out: str, sources: str, **more: Any) -> None:
        for opcode in expand(pattern):
            t = opcode.split(".")[-1]
            u = opcode.split(".")[-2] if opcode.count(".") > 1 else ""

            def fill(x: str, t: str = t, u: str = u) -> str:
                return x.replace("$u", u).replace("$t", t)

            found.append(case(opcode, fill(out), [fill(s) for s in sources.split()], **more))

    ints = "{u16,s16,u32,s32,u64,s64}"
    add(f"{{add,sub,min,max}}.{ints}", "$t", "$t $t")
    add("{add,sub}.sat.s32", "$t", "$t $t")
    add(f"mul.{{lo,hi}}.{ints}", "$t", "$t $t")
    add("mul.wide.{u16,s16}", "b32", "$t $t")
    add("mul.wide.{u32,s32}", "b64", "$t $t")
    add(f"mad.{{lo,hi}}.{ints}", "$t", "$t $t $t")
    add("mad.wide.{u32,s32}", "b64", "$t $t b64")
    add("mad.wide.{u16,s16}", "b32", "$t $t b32")
    add("mul24.lo.{u32,s32}", "$t", "$t $t")
    add("mad24.lo.{u32,s32}", "$t", "$t $t $t")
    add(f"{{div,rem}}.{ints}", "$t", "$t $t")
    add("{abs,neg}.{s16,s32,s64}", "$t", "$t")
    add("{and,or,xor}.{b16,b32,b64}", "$t", "$t $t")
    add("{not,cnot}.{b16,b32,b64}", "$t", "$t")
    add("shl.{b16,b32,b64}", "$t", "$t u32", roles=("", "shift"))
    add(f"shr.{ints}", "$t", "$t u32", roles=("", "shift"))
    add("shf.{l,r}.{clamp,wrap}.b32", "b32", "b32 b32 u32", roles=("", "", "shift"))
    add("{popc,clz}.{b32,b64}", "u32", "$t")
    add("brev.{b32,b64}", "$t", "$t")
    add("bfind{,.shiftamt}.{u32,s32,u64,s64}", "u32", "$t")
    add("bfe.{u32,s32,u64,s64}", "$t", "$t u32 u32", roles=("", "shift", "field"))
    add("bfi.{b32,b64}", "$t", "$t $t u32 u32", roles=("", "", "shift", "field"))
    add("bmsk.{clamp,wrap}.b32", "b32", "b32 b32", roles=("shift", "field"))
    add("fns.b32", "b32", "b32 u32 s32", roles=("", "field", "field"))
    for table in (0x96, 0xE8, 0x1B, 0xCA):
        add("lop3.b32", "b32", "b32 b32 b32", tail=f", {table}")
    add("prmt.b32{,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}", "b32", "b32 b32 b32")
    add("sad.{u16,s16,u32,s32,u64,s64}", "$t", "$t $t $t")
    add("dp4a.{u32,s32}.{u32,s32}", "b32", "b32 b32 b32")
    add(f"setp.{_COMPARE}.{ints}", "pred", "$t $t")
    add("setp.{lo,ls,hi,hs}.{u16,u32,u64}", "pred", "$t $t")
    add(f"setp.{_COMPARE_F}{{,.ftz}}.f32", "pred", "f32 f32")
    add(f"setp.{_COMPARE_F}.f64", "pred", "f64 f64")
    add("setp.{lt,ne}.{and,or,xor}.s32", "pred", "s32 s32 pred")
    add("selp.{b16,b32,b64,f32,f64}", "$t", "$t $t pred")
    add("slct.{b32,b64}.s32", "$u", "$u $u s32")
    add("slct.f32.f32", "f32", "f32 f32 f32")
    # floating point
    add("{add,sub,mul}{,.rn,.rz,.rm,.rp}{,.ftz}{,.sat}.f32", "f32", "f32 f32")
    add("{add,sub,mul}.rn.f64", "f64", "f64 f64")
    add("fma.{rn,rz,rm,rp}{,.ftz}{,.sat}.f32", "f32", "f32 f32 f32")
    add("fma.rn.f64", "f64", "f64 f64 f64")
    add("div.{rn,rz,rm,rp}{,.ftz}.f32", "f32", "f32 f32")
    add("div.rn.f64", "f64", "f64 f64")
    add("{rcp,sqrt}.{rn,rz,rm,rp}{,.ftz}.f32", "f32", "f32")
    add("{rcp,sqrt}.rn.f64", "f64", "f64")
    add("div.{approx,full}{,.ftz}.f32", "f32", "f32 f32", rule="ulp:2")
    # Bounds as PTX ISA 9.1 states them, section by section; sqrt and rsqrt (2^-22.9 relative) are within two units.
    add("rcp.approx{,.ftz}.f32", "f32", "f32", rule="ulp:1")  # 9.7.3.13
    add("{sqrt,rsqrt,ex2}.approx{,.ftz}.f32", "f32", "f32", rule="ulp:2")  # 9.7.3.16, 9.7.3.21
    add("lg2.approx{,.ftz}.f32", "f32", "f32", rule="lg2")
    add("{sin,cos}.approx{,.ftz}.f32", "f32", "f32", rule="sincos")
    add("tanh.approx.f32", "f32", "f32", rule=f"relative:{2**-11}")  # 9.7.3.22
    add("{abs,neg}{,.ftz}.f32", "f32", "f32")
    add("{abs,neg}.f64", "f64", "f64")
    add("{abs,neg}.{f16,bf16,f16x2,bf16x2}", "$t", "$t")
    add("{min,max}{,.ftz}{,.NaN}{,.xorsign.abs}.f32", "f32", "f32 f32")
    add("{min,max}.f64", "f64", "f64 f64")
    add("copysign.{f32,f64}", "$t", "$t $t")
    add("testp.{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64}", "pred", "$t")
    add("{add,sub,mul}{,.rn}{,.ftz}{,.sat}.{f16,f16x2}", "$t", "$t $t")
    add("{add,sub,mul}{,.rn}.{bf16,bf16x2}", "$t", "$t $t")
    add("fma.rn{,.ftz}{,.sat,.relu}.{f16,f16x2}", "$t", "$t $t $t")
    add("fma.rn{,.relu}.{bf16,bf16x2}", "$t", "$t $t $t")
    add("{min,max}{,.ftz}{,.NaN}{,.xorsign.abs}.{f16,f16x2}", "$t", "$t $t")
    add("{min,max}{,.NaN}{,.xorsign.abs}.{bf16,bf16x2}", "$t", "$t $t")
    add(f"setp.{_COMPARE_F}.{{f16,bf16}}", "pred", "$t $t")
    add("{add,min,max}.{u16x2,s16x2}", "b32", "b32 b32")
    add("ex2.approx.{f16,f16x2}", "$t", "$t", rule=f"relative:{2**-9.9}")  # 9.7.4.10
    add("tanh.approx.{f16,f16x2}", "$t", "$t", rule=f"abs:{2**-10.987}")  # 9.7.4.9
    add("tanh.approx.{bf16,bf16x2}", "$t", "$t", rule=f"abs:{2**-8}")
    # conversions
    for to in ("u16", "s16", "u32", "s32", "u64", "s64"):
        add(f"cvt.{to}.{ints}", to, "$t")
        saturating = [t for t in ints[1:-1].split(",") if not _covers(to, t)]
        if saturating:
            add(f"cvt.sat.{to}.{{{','.join(saturating)}}}", to, "$t")
        add(f"cvt.{{rni,rzi,rmi,rpi}}.{to}.{{f16,f32,f64}}", to, "$t")
        add(f"cvt.{{rni,rzi}}.{to}.bf16", to, "bf16")
        add(f"cvt.rni.ftz.{to}.f32", to, "f32")
    for to in ("f32", "f64"):
        add(f"cvt.{{rn,rz,rm,rp}}.{to}.{ints}", to, "$t")
    add(f"cvt.rn.f16.{ints}", "f16", "$t")
    add(f"cvt.rn.bf16.{ints}", "bf16", "$t")
    add("cvt{,.ftz}{,.sat}.f32.f16", "f32", "f16")
    add("cvt.f32.bf16", "f32", "bf16")
    add("cvt.f64.f32", "f64", "f32")
    add("cvt{,.ftz}.sat.f32.f32", "f32", "f32")
    add("cvt.{rn,rz,rm,rp}{,.sat}.f32.f64", "f32", "f64")
    add("cvt.rn.f16.f64", "f16", "f64")
    add("cvt.{rn,rz,rm,rp}.f16.f32", "f16", "f32")
    add("cvt.{rn,rz}.relu.f16.f32", "f16", "f32")
    add("cvt.{rn,rz}{,.relu}.bf16.f32", "bf16", "f32")
    add("cvt.rna.tf32.f32", "tf32", "f32")
    add("cvt.{rn,rz}{,.relu}.tf32.f32", "tf32", "f32")
    add("cvt.{rni,rzi,rmi,rpi}.f32.f32", "f32", "f32")
    add("cvt.{rni,rzi,rmi,rpi}.f64.f64", "f64", "f64")
    add("cvt.{rni,rzi,rmi,rpi}.f16.f16", "f16", "f16")
    add("cvt.{rn,rz}{,.relu}.{f16x2,bf16x2}.f32", "$u", "f32 f32")
    add("cvt.rn.satfinite{,.relu}.{e4m3x2,e5m2x2}.f32", "b16", "f32 f32")
    add("cvt.rn.satfinite{,.relu}.{e4m3x2,e5m2x2}.f16x2", "b16", "f16x2")
    add("cvt.rn{,.relu}.f16x2.{e4m3x2,e5m2x2}", "f16x2", "b16")
    add("cvt.pack.sat.{u16,s16}.s32", "b32", "s32 s32")
    add("cvt.pack.sat.{u8,s8}.s32.b32", "b32", "s32 s32 b32")
    return found
