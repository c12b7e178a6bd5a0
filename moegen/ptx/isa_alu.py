"""Integer and logic instructions, as tables of expressions."""

import numpy as np

from moegen.ptx.dtypes import TYPES, PtxType
from moegen.ptx.emit import Emit, Lowered, Pure, back, view
from moegen.ptx.program import Imm
from moegen.ptx.registry import instruction
from moegen.ptx.truth_table import logic, permutation

_INTS = "{u16,s16,u32,s32,u64,s64}"


def _elementwise(e: Emit, template: str, kind: PtxType, count: int) -> Pure:
    """``d, s0, s1...`` of one type; ``{0}`` are typed views."""
    dst = e.dst(kind)
    sources = [view(e.src(kind), kind) for _ in range(count)]
    return e.pure(dst, back(template.format(*sources), kind))


# -- integer arithmetic ------------------------------------------------------------------------------------------


@instruction(f"{{add,sub}}.{_INTS}", "add.sat.s32", "sub.sat.s32")
def _add_sub(e: Emit) -> Lowered:
    kind, sign = e.type(), "+" if e.mods[0] == "add" else "-"
    if e.has("sat"):
        exact = "({0}.astype(I8) " + sign + " {1}.astype(I8)).clip(-2147483648, 2147483647).astype(I4)"
        return _elementwise(e, exact, kind, 2)
    # Unsigned wrap-around is the same bits and is silent in NumPy.
    return _elementwise(e, "{0} " + sign + " {1}", TYPES[f"u{kind.bits}"], 2)


@instruction("{add,sub}.cc.{u32,s32,u64,s64}", "{addc,subc}{,.cc}.{u32,s32,u64,s64}")
def _carry(e: Emit) -> Lowered:
    kind = TYPES[f"u{e.type().bits}"]
    bits = f"U{kind.nbytes}"
    dst, a, b = e.dst(kind), e.src(kind), e.src(kind)
    flag = e.slots.slot("sink", "|b1")
    subtract, chained = e.mods[0].startswith("sub"), e.mods[0].endswith("c")
    carry = f"R[{flag}].astype({bits})" if chained else f"{bits}.type(0)"
    if subtract:
        setup = f"t = R[{a}] - R[{b}]\nu = t - {carry}\nq = (R[{a}] < R[{b}]) | (t < {carry})"
    else:
        setup = f"t = R[{a}] + R[{b}]\nu = t + {carry}\nq = (t < R[{a}]) | (u < t)"
    outs = [(dst, "u")]
    if e.has("cc"):
        outs.append((flag, "q"))
    return Pure(outs, setup)


@instruction(
    f"mul.{{lo,hi}}.{_INTS}", "mul.wide.{u16,s16,u32,s32}", f"mad.{{lo,hi}}.{_INTS}", "mad.wide.{u16,s16,u32,s32}"
)
def _multiply(e: Emit) -> Lowered:
    kind, part = e.type(), e.mods[1]
    wide = TYPES[f"{kind.kind}{kind.bits * 2}"] if part == "wide" else kind
    dst = e.dst(wide)
    a, b = e.src(kind), e.src(kind)
    x, y = view(a, kind), view(b, kind)
    if part == "lo":
        value = f"R[{a}] * R[{b}]"
    elif part == "wide":
        letter = "I" if kind.kind == "s" else "U"
        n = wide.nbytes
        value = f"({x}.astype({letter}{n}) * {y}.astype({letter}{n}))" + (f".view(U{n})" if letter == "I" else "")
    else:
        value = _high_part(kind, x, y)
    if e.mods[0] == "mad":
        value = f"{value} + R[{e.src(wide)}]"
    return e.pure(dst, value)


def _high_part(kind: PtxType, x: str, y: str) -> str:
    if kind.bits == 64:
        return f"mulhi8({x}, {y})"
    if kind.bits == 32:
        return f"mulhi4({x}, {y})"
    letter = "I" if kind.kind == "s" else "U"
    return f"(({x}.astype({letter}4) * {y}.astype({letter}4)) >> {letter}4.type(16)).astype({letter}2).view(U2)"


@instruction("mul24.lo.{u32,s32}", "mad24.lo.{u32,s32}")
def _multiply24(e: Emit) -> Lowered:
    kind = e.type()
    dst, a, b = e.dst(kind), e.src(kind), e.src(kind)
    # The low 24 bits of each operand, extended by its sign for .s32; the low 32 bits of the product.
    letter = "I" if kind.kind == "s" else "U"
    x, y = (f"((R[{s}] << U4.type(8)).view({letter}4) >> {letter}4.type(8)).view(U4)" for s in (a, b))
    value = f"{x} * {y}"
    if e.mods[0] == "mad24":
        value += f" + R[{e.src(kind)}]"
    return e.pure(dst, value)


@instruction("madc.{lo,hi}{,.cc}.{u32,s32,u64,s64}", "mad.{lo,hi}.cc.{u32,s32,u64,s64}")
def _mad_carry(e: Emit) -> Lowered:
    kind = e.type()
    bits = f"U{kind.nbytes}"
    dst, a, b, c = e.dst(kind), e.src(kind), e.src(kind), e.src(kind)
    flag = e.slots.slot("sink", "|b1")
    product = f"R[{a}] * R[{b}]" if e.mods[1] == "lo" else _high_part(kind, view(a, kind), view(b, kind))
    carry = f"R[{flag}].astype({bits})" if e.mods[0] == "madc" else f"{bits}.type(0)"
    setup = f"p = {product}\nt = p + R[{c}]\nu = t + {carry}\nq = (t < p) | (u < t)"
    outs = [(dst, "u")] + ([(flag, "q")] if e.has("cc") else [])
    return Pure(outs, setup)


@instruction(f"{{div,rem}}.{_INTS}")
def _divide(e: Emit) -> Lowered:
    kind = e.type()
    dst = e.dst(kind)
    a, b = view(e.src(kind), kind), view(e.src(kind), kind)
    return e.pure(dst, f"{'idiv' if e.mods[0] == 'div' else 'irem'}({a}, {b})")


@instruction("{abs,neg}.{s16,s32,s64}")
def _abs_neg(e: Emit) -> Lowered:
    kind = e.type()
    if e.mods[0] == "neg":
        return _elementwise(e, f"~{{0}} + U{kind.nbytes}.type(1)", TYPES[f"u{kind.bits}"], 1)
    return _elementwise(e, "abs({0})", kind, 1)


@instruction(f"{{min,max}}.{_INTS}", "{min,max}.relu.s32")
def _min_max(e: Emit) -> Lowered:
    kind = e.type()
    name = e.bind(np.minimum if e.mods[0] == "min" else np.maximum, e.mods[0])
    template = f"{name}({{0}}, {{1}})"
    if e.has("relu"):
        template = f"{template}.clip(0)"
    return _elementwise(e, template, kind, 2)


_LOGIC = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}"}


@instruction("{and,or,xor}.{pred,b16,b32,b64}", "not.{pred,b16,b32,b64}")
def _logic(e: Emit) -> Lowered:
    if e.mods[0] == "not":
        return _elementwise(e, "~{0}", e.type(), 1)
    return _elementwise(e, _LOGIC[e.mods[0]], e.type(), 2)


@instruction("cnot.{b16,b32,b64}")
def _cnot(e: Emit) -> Lowered:
    return _elementwise(e, f"({{0}} == 0).astype(U{e.type().nbytes})", e.type(), 1)


@instruction("shl.{b16,b32,b64}", "shr.{b16,u16,s16,b32,u32,s32,b64,u64,s64}")
def _shift(e: Emit) -> Lowered:
    kind = e.type()
    dst = e.dst(kind)
    a, amount = view(e.src(kind), kind), e.peek()
    if isinstance(amount, Imm) and isinstance(amount.value, int) and 0 <= amount.value < kind.bits:
        e.take()
        letter = "I" if kind.kind == "s" else "U"
        symbol = "<<" if e.mods[0] == "shl" else ">>"
        return e.pure(dst, back(f"{a} {symbol} {letter}{kind.nbytes}.type({amount.value})", kind))
    return e.pure(dst, back(f"{e.mods[0]}({a}, R[{e.src('u32')}])", kind))


@instruction("shf.{l,r}.{clamp,wrap}.b32")
def _funnel(e: Emit) -> Lowered:
    dst, a, b, c = e.dst("b32"), e.src("b32"), e.src("b32"), e.src("u32")
    return e.pure(dst, f"funnel(R[{a}], R[{b}], R[{c}], {e.has('l')}, {e.has('clamp')})")


@instruction("{popc,clz}.{b32,b64}", "brev.{b32,b64}", "bfind{,.shiftamt}.{u32,s32,u64,s64}")
def _bits(e: Emit) -> Lowered:
    kind = e.type()
    dst = e.dst(kind if e.mods[0] == "brev" else TYPES["u32"])
    a = view(e.src(kind), kind)
    if e.mods[0] == "bfind":
        return e.pure(dst, f"bfind({a}, {e.has('shiftamt')})")
    return e.pure(dst, f"{e.mods[0]}({a})")


@instruction("bfe.{u32,s32,u64,s64}", "bfi.{b32,b64}")
def _field(e: Emit) -> Lowered:
    kind = e.type()
    dst = e.dst(kind)
    if e.mods[0] == "bfe":
        a, b, c = view(e.src(kind), kind), e.src("u32"), e.src("u32")
        return e.pure(dst, f"bfe({a}, R[{b}], R[{c}])")
    a, b, c, d = e.src(kind), e.src(kind), e.src("u32"), e.src("u32")
    return e.pure(dst, f"bfi(R[{a}], R[{b}], R[{c}], R[{d}])")


@instruction("bmsk.{clamp,wrap}.b32")
def _mask(e: Emit) -> Lowered:
    dst, a, b = e.dst("b32"), e.src("u32"), e.src("u32")
    return e.pure(dst, f"bmsk(R[{a}], R[{b}], {e.has('clamp')})")


@instruction("fns.b32")
def _fns(e: Emit) -> Lowered:
    dst, a, b, c = e.dst("b32"), e.src("b32"), e.src("b32"), e.src("s32")
    return e.pure(dst, f"fns(R[{a}], R[{b}], R[{c}])")


@instruction("lop3.b32")
def _lop3(e: Emit) -> Lowered:
    dst, a, b, c = e.dst("b32"), e.src("b32"), e.src("b32"), e.src("b32")
    table = e.integer()
    if not 0 <= table <= 255:
        raise e.fail("a lop3 table must be 0 to 255")
    return e.pure(dst, logic(table, f"R[{a}]", f"R[{b}]", f"R[{c}]"))


@instruction("prmt.b32{,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}")
def _prmt(e: Emit) -> Lowered:
    dst, a, b = e.dst("b32"), e.src("b32"), e.src("b32")
    mode, selector = e.mods[2] if len(e.mods) > 2 else "", e.peek()
    c = e.src("b32")
    if not mode and isinstance(selector, Imm) and isinstance(selector.value, int):
        value = permutation(selector.value, f"R[{a}]", f"R[{b}]")
        if value is not None:
            return e.pure(dst, value)
    return e.pure(dst, f"prmt(R[{a}], R[{b}], R[{c}], {mode!r})")


@instruction("sad.{u32,s32,u16,s16,u64,s64}")
def _sad(e: Emit) -> Lowered:
    kind = e.type()
    dst, a, b, c = e.dst(kind), e.src(kind), e.src(kind), e.src(kind)
    return e.pure(dst, f"sad({view(a, kind)}, {view(b, kind)}, R[{c}])")


@instruction("dp4a.{u32,s32}.{u32,s32}")
def _dp4a(e: Emit) -> Lowered:
    kinds = e.mods[1][0] + e.mods[2][0]
    dst, a, b, c = e.dst("b32"), e.src("b32"), e.src("b32"), e.src("b32")
    return e.pure(dst, f"dp4a(R[{a}], R[{b}], R[{c}], {kinds!r})")
