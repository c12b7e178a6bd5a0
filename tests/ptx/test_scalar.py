"""Scalar instructions against Python integers, fractions and NumPy: results that this module did not compute."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptx.snippets import run

RNG = np.random.default_rng(0)
EDGES = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80000001, 31, 32, 33, 255, 0xDEADBEEF]
A = np.array(EDGES * 12 + RNG.integers(0, 1 << 32, 112).tolist(), np.uint32)
B = np.array([x for x in EDGES for _ in range(12)] + RNG.integers(0, 1 << 32, 112).tolist(), np.uint32)
C = RNG.integers(0, 1 << 32, 256).astype(np.uint32)


def signed(x: int, bits: int = 32) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def apply3(statement: str, a: Any = A, b: Any = B, c: Any = C) -> Any:
    """r8 = f(r5, r6, r7) for 256 threads."""
    source = np.concatenate([a, b, c]).astype(np.uint32)
    body = f"""
    ld.global.b32 %r5, [%rd4];
    ld.global.b32 %r6, [%rd4+1024];
    ld.global.b32 %r7, [%rd4+2048];
    mov.b32 %f5, %r5;
    mov.b32 %f6, %r6;
    mov.b32 %f7, %r7;
    {statement}
    st.global.b32 [%rd5], %r8;"""
    got, _ = run(body, source, out=256, block=128, grid=2)
    return got


def sat(x: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, x))


def quotient(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def field(a: int, start: int, length: int, is_signed: bool) -> int:
    """Bit-by-bit definition of bfe."""
    out, top = 0, min(start + length - 1, 31)
    sign = (a >> top) & 1 if is_signed and length else 0
    for k in range(32):
        bit = (a >> (start + k)) & 1 if k < length and start + k < 32 else sign
        out |= bit << k
    return out


def insert(a: int, b: int, start: int, length: int) -> int:
    for k in range(length):
        if start + k < 32:
            b = (b & ~(1 << (start + k))) | ((a >> k) & 1) << (start + k)
    return b


def permute(a: int, b: int, selector: int) -> int:
    pool = [(a | b << 32) >> (8 * k) & 255 for k in range(8)]
    out = 0
    for k in range(4):
        nibble = selector >> (4 * k) & 15
        byte = pool[nibble & 7]
        out |= ((255 if byte >> 7 else 0) if nibble & 8 else byte) << (8 * k)
    return out


INTEGER: dict[str, Callable[[int, int, int], int]] = {
    "add.s32 %r8, %r5, %r6;": lambda a, b, c: a + b,
    "sub.u32 %r8, %r5, %r6;": lambda a, b, c: a - b,
    "add.sat.s32 %r8, %r5, %r6;": lambda a, b, c: sat(signed(a) + signed(b)),
    "sub.sat.s32 %r8, %r5, %r6;": lambda a, b, c: sat(signed(a) - signed(b)),
    "mul.lo.s32 %r8, %r5, %r6;": lambda a, b, c: a * b,
    "mul.hi.s32 %r8, %r5, %r6;": lambda a, b, c: signed(a) * signed(b) >> 32,
    "mul.hi.u32 %r8, %r5, %r6;": lambda a, b, c: a * b >> 32,
    "mad.lo.u32 %r8, %r5, %r6, %r7;": lambda a, b, c: a * b + c,
    "mad.hi.s32 %r8, %r5, %r6, %r7;": lambda a, b, c: (signed(a) * signed(b) >> 32) + c,
    "mul24.lo.u32 %r8, %r5, %r6;": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "min.s32 %r8, %r5, %r6;": lambda a, b, c: min(signed(a), signed(b)),
    "max.u32 %r8, %r5, %r6;": lambda a, b, c: max(a, b),
    "abs.s32 %r8, %r5;": lambda a, b, c: abs(signed(a)),
    "neg.s32 %r8, %r5;": lambda a, b, c: -a,
    "not.b32 %r8, %r5;": lambda a, b, c: ~a,
    "cnot.b32 %r8, %r5;": lambda a, b, c: int(a == 0),
    "shl.b32 %r8, %r5, %r6;": lambda a, b, c: a << b if b < 32 else 0,
    "shr.u32 %r8, %r5, %r6;": lambda a, b, c: a >> b if b < 32 else 0,
    "shr.s32 %r8, %r5, %r6;": lambda a, b, c: signed(a) >> min(b, 31),
    "shr.s32 %r8, %r5, 5;": lambda a, b, c: signed(a) >> 5,
    "shf.l.wrap.b32 %r8, %r5, %r6, %r7;": lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32,
    "shf.r.clamp.b32 %r8, %r5, %r6, %r7;": lambda a, b, c: (b << 32 | a) >> min(c, 32),
    "popc.b32 %r8, %r5;": lambda a, b, c: bin(a).count("1"),
    "clz.b32 %r8, %r5;": lambda a, b, c: 32 - a.bit_length(),
    "brev.b32 %r8, %r5;": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "bfind.u32 %r8, %r5;": lambda a, b, c: a.bit_length() - 1,
    "bfind.s32 %r8, %r5;": lambda a, b, c: (a ^ (0xFFFFFFFF if a >> 31 else 0)).bit_length() - 1,
    "bfe.u32 %r8, %r7, %r5, %r6;": lambda a, b, c: field(c, a & 255, b & 255, False),
    "bfe.s32 %r8, %r7, %r5, %r6;": lambda a, b, c: field(c, a & 255, b & 255, True),
    "bfi.b32 %r8, %r7, %r1, %r5, %r6;": lambda a, b, c: 0,  # replaced below: needs the thread's index
    "lop3.b32 %r8, %r5, %r6, %r7, 0xE8;": lambda a, b, c: a & b | a & c | b & c,
    "lop3.b32 %r8, %r5, %r6, %r7, 0x96;": lambda a, b, c: a ^ b ^ c,
    "prmt.b32 %r8, %r5, %r6, %r7;": permute,
    "sad.u32 %r8, %r5, %r6, %r7;": lambda a, b, c: abs(a - b) + c,
    "div.u32 %r8, %r5, %r6;": lambda a, b, c: a // b if b else 0xFFFFFFFF,
    "rem.u32 %r8, %r5, %r6;": lambda a, b, c: a % b if b else 0xFFFFFFFF,
    "dp4a.s32.u32 %r8, %r5, %r6, %r7;": lambda a, b, c: (
        c + sum(signed(a >> s & 255, 8) * (b >> s & 255) for s in (0, 8, 16, 24))
    ),
    "{ .reg .u16 x; cvt.u16.u32 x, %r5; cvt.u32.u16 %r8, x; }": lambda a, b, c: a & 0xFFFF,
    "{ .reg .s16 x; cvt.sat.s16.s32 x, %r5; cvt.s32.s16 %r8, x; }": lambda a, b, c: max(-32768, min(32767, signed(a))),
    "cvt.s32.s8 %r8, %r5;": lambda a, b, c: signed(a & 255, 8),
    "{ .reg .b64 x; mul.wide.s32 x, %r5, %r6; shr.s64 x, x, 17; cvt.u32.u64 %r8, x; }": lambda a, b, c: (
        signed(a) * signed(b) >> 17
    ),
    "{ .reg .u32 x; add.cc.u32 x, %r5, %r6; addc.u32 %r8, %r7, 0; }": lambda a, b, c: c + (a + b >> 32),
    "{ .reg .u32 x; sub.cc.u32 x, %r5, %r6; subc.u32 %r8, %r7, 0; }": lambda a, b, c: c - int(a < b),
}
del INTEGER["bfi.b32 %r8, %r7, %r1, %r5, %r6;"]


@pytest.mark.parametrize("statement", INTEGER)
def test_integers(statement: str) -> None:
    want = [
        INTEGER[statement](a, b, c) & 0xFFFFFFFF for a, b, c in zip(A.tolist(), B.tolist(), C.tolist(), strict=True)
    ]
    assert apply3(statement).tolist() == want


def test_bit_field_insert() -> None:
    got = apply3("bfi.b32 %r8, %r7, %r5, %r6, 9;", b=np.tile(np.arange(64, dtype=np.uint32), 4))
    want = [insert(c, a, k % 64, 9) for k, (a, c) in enumerate(zip(A.tolist(), C.tolist(), strict=True))]
    assert got.tolist() == want


def test_signed_division_truncates() -> None:
    b = np.where(B == 0, 3, B)
    got = apply3("div.s32 %r8, %r5, %r6;", b=b)
    rest = apply3("rem.s32 %r8, %r5, %r6;", b=b)
    for k, (x, y) in enumerate(zip(A.tolist(), b.tolist(), strict=True)):
        x, y = signed(x), signed(y)
        q = quotient(x, y)
        assert got[k] == q & 0xFFFFFFFF
        assert rest[k] == (x - q * y) & 0xFFFFFFFF


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_comparisons(name: str, kind: str) -> None:
    python = {"eq": "__eq__", "ne": "__ne__", "lt": "__lt__", "le": "__le__", "gt": "__gt__", "ge": "__ge__"}[name]
    got = apply3(f"setp.{name}.{kind} %p1, %r5, %r6; selp.b32 %r8, 1, 0, %p1;")
    to = signed if kind == "s32" else int
    assert got.tolist() == [int(getattr(to(a), python)(to(b))) for a, b in zip(A.tolist(), B.tolist(), strict=True)]


def test_comparison_with_a_second_predicate_and_combination() -> None:
    got = apply3(
        "setp.ne.u32 %p3, %r7, 0; setp.lt.and.s32 %p1|%p2, %r5, %r6, %p3; "
        "selp.u32 %r8, 2, 0, %p1; @%p2 add.u32 %r8, %r8, 1;"
    )
    want = []
    for a, b, c in zip(A.tolist(), B.tolist(), C.tolist(), strict=True):
        less = signed(a) < signed(b)
        want.append(2 * int(less and c != 0) + int(not less and c != 0))
    assert got.tolist() == want


# -- floating point ----------------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, 0.5, 2.0**24 + 2]
X = np.array([*SPECIAL * 4, *(RNG.standard_normal(204) * np.exp2(RNG.integers(-60, 60, 204)))], np.float32)
Y = np.array([x for x in SPECIAL for _ in range(4)] + (RNG.standard_normal(204) * 8).tolist(), np.float32)
Z = np.array([*np.roll(SPECIAL * 4, 5), *(RNG.standard_normal(204) * np.exp2(RNG.integers(-60, 60, 204)))], np.float32)


def floats(statement: str) -> Any:
    return apply3(statement + " mov.b32 %r8, %f8;", X.view(np.uint32), Y.view(np.uint32), Z.view(np.uint32)).view(
        np.float32
    )


def same(got: Any, want: Any) -> None:
    """Equal values, signed zeros included; NaN equals NaN and is the canonical one."""
    nan = np.isnan(want)
    assert (got.view(np.uint32)[nan] == 0x7FFFFFFF).all()
    assert got.view(np.uint32)[~nan].tolist() == want.astype(np.float32).view(np.uint32)[~nan].tolist()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div.rn"])
def test_float_arithmetic(name: str) -> None:
    with np.errstate(all="ignore"):
        want = {"add": X + Y, "sub": X - Y, "mul": X * Y, "div.rn": X / Y}[name]
    same(floats(f"{name}.f32 %f8, %f5, %f6;"), want)


def exact_fma(x: float, y: float, z: float, mode: str) -> float:
    """Fused multiply-add by fractions."""
    if not all(map(math.isfinite, (x, y, z))):
        return x * y + z  # the product of two f32 values does not overflow f64
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        product_sign = math.copysign(1, x) * math.copysign(1, y)
        negative = product_sign < 0 and math.copysign(1, z) < 0 if (x * y == 0 or Fraction(z) == 0) else False
        if x and y and z:
            negative = mode == "rm"
        elif mode == "rm":
            negative = product_sign < 0 or math.copysign(1, z) < 0
        return -0.0 if negative else 0.0
    return rounded(exact, mode)


def rounded(exact: Fraction, mode: str) -> float:
    """A fraction in f32 by definition: neighbours compared exactly."""
    largest = Fraction(float(np.finfo(np.float32).max))
    scale = max(math.floor(math.log2(abs(exact))) if abs(exact) > Fraction(1, 1 << 1000) else -1000, -126)
    while abs(exact) >= Fraction(2) ** (scale + 1):
        scale += 1
    while scale > -126 and abs(exact) < Fraction(2) ** scale:
        scale -= 1
    unit = Fraction(2) ** (scale - 23)
    steps = exact / unit
    low = math.floor(steps)
    if mode == "rm":
        chosen = low
    elif mode == "rp":
        chosen = math.ceil(steps)
    elif mode == "rz":
        chosen = low if steps > 0 else math.ceil(steps)
    else:
        rest = steps - low
        chosen = low + (1 if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2) else 0)
    value = chosen * unit
    if abs(value) > largest:
        away = mode == "rn" or (mode == "rp" and value > 0) or (mode == "rm" and value < 0)
        return math.copysign(math.inf if away else float(largest), value)
    return math.copysign(float(value), 1 if exact > 0 else -1)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fused_multiply_add(mode: str) -> None:
    want = np.array([exact_fma(*map(float, t), mode) for t in zip(X, Y, Z, strict=True)])
    same(floats(f"fma.{mode}.f32 %f8, %f5, %f6, %f7;"), want)


def exactly(name: str, x: float, y: float) -> Fraction:
    a, b = Fraction(x), Fraction(y)
    return a + b if name == "add" else a * b if name == "mul" else a / b


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_directed_rounding(name: str, mode: str) -> None:
    got = floats(f"{name}.{mode}.f32 %f8, %f5, %f6;")
    for k, (x, y) in enumerate(zip(map(float, X), map(float, Y), strict=True)):
        if not (math.isfinite(x) and math.isfinite(y)) or (name == "div" and y == 0):
            continue
        exact = exactly(name, x, y)
        if exact:
            assert got[k] == np.float32(rounded(exact, mode)), (x, y)
        else:
            assert got[k] == 0


def test_flush_to_zero_and_saturation() -> None:
    tiny = np.where(np.abs(X) < 2.0**-126, np.copysign(0, X), X)
    other = np.where(np.abs(Y) < 2.0**-126, np.copysign(0, Y), Y)
    with np.errstate(all="ignore"):
        total = tiny + other
    same(floats("add.ftz.f32 %f8, %f5, %f6;"), np.where(np.abs(total) < 2.0**-126, np.copysign(0, total), total))
    with np.errstate(all="ignore"):
        product = X * Y
    got = floats("mul.sat.f32 %f8, %f5, %f6;")
    assert got.tolist() == np.where(product > 0, np.minimum(product, 1), 0).tolist()


def test_minimum_and_maximum_rules() -> None:
    low, high = floats("min.f32 %f8, %f5, %f6;"), floats("max.f32 %f8, %f5, %f6;")
    strict = floats("max.NaN.f32 %f8, %f5, %f6;")
    for k, (x, y) in enumerate(zip(map(float, X), map(float, Y), strict=True)):
        numbers = [v for v in (x, y) if not math.isnan(v)]
        if not numbers:
            assert math.isnan(low[k])
            assert math.isnan(high[k])
            continue

        def key(v: float) -> tuple[float, float]:
            return (v, math.copysign(1, v))

        assert key(float(low[k])) == key(min(numbers, key=key))
        assert key(float(high[k])) == key(max(numbers, key=key))
        assert math.isnan(strict[k]) == (len(numbers) < 2)


def test_float_to_integer_saturates() -> None:
    got = apply3("cvt.rzi.s32.f32 %r8, %f5;", X.view(np.uint32)).view(np.int32)
    near = apply3("cvt.rni.u32.f32 %r8, %f6;", b=Y.view(np.uint32))
    for k in range(256):
        x, y = float(X[k]), float(Y[k])
        want = 0 if math.isnan(x) else sat(int(max(min(x, 1e10), -1e10)))
        assert got[k] == want
        want = 0 if math.isnan(y) else max(0, min(0xFFFFFFFF, round(max(min(y, 1e10), -1e10))))
        assert near[k] == want


def test_halves_round_once() -> None:
    x = RNG.integers(0, 1 << 16, 512).astype(np.uint16)
    y = RNG.integers(0, 1 << 16, 512).astype(np.uint16)
    z = RNG.integers(0, 1 << 16, 512).astype(np.uint16)
    packed = [v.view(np.uint32) for v in (x, y, z)]
    for kind, dtype in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        got = apply3(f"fma.rn.{kind} %r8, %r5, %r6, %r7;", *packed).view(np.uint16)
        with np.errstate(invalid="ignore"):
            a, b, c = (v.view(dtype).astype(np.float64) for v in (x, y, z))
        for k in range(512):
            if not all(map(math.isfinite, (a[k], b[k], c[k]))):
                continue
            exact = Fraction(a[k]) * Fraction(b[k]) + Fraction(c[k])
            if exact == 0:
                continue
            # f32 holds the neighbours of any half: round towards odd there, then once to the half.
            down, up = rounded(exact, "rm"), rounded(exact, "rp")
            if down == up:
                want = np.float32(down)
            else:
                bits = np.array([down, up], np.float32)
                odd = bits.view(np.uint32) & 1 == 1
                want = bits[odd][0] if odd.any() else bits[0]
            with np.errstate(over="ignore"):
                assert got[k] == want.astype(dtype).view(np.uint16), (a[k], b[k], c[k])


def test_packed_conversions_put_the_first_source_high() -> None:
    body = """
    cvt.rn.bf16x2.f32 %r8, %f5, %f6;"""
    got = apply3(body, X.view(np.uint32), Y.view(np.uint32))
    with np.errstate(all="ignore"):
        high = X.astype(ml_dtypes.bfloat16).view(np.uint16)
        low = Y.astype(ml_dtypes.bfloat16).view(np.uint16)
    keep = ~(np.isnan(X) | np.isnan(Y))
    assert got[keep].tolist() == (high.astype(np.uint32) << 16 | low)[keep].tolist()


@pytest.mark.parametrize(("kind", "dtype"), [("e4m3x2", ml_dtypes.float8_e4m3fn), ("e5m2x2", ml_dtypes.float8_e5m2)])
def test_fp8_conversions(kind: str, dtype: Any) -> None:
    got = apply3(
        f"{{ .reg .b16 h; cvt.rn.satfinite.{kind}.f32 h, %f5, %f6; cvt.u32.u16 %r8, h; }}",
        X.view(np.uint32),
        Y.view(np.uint32),
    )
    limit = float(ml_dtypes.finfo(dtype).max)
    for shift, values in ((8, X), (0, Y)):
        code = (got >> shift & 255).astype(np.uint8)
        want = np.clip(values.astype(np.float64), -limit, limit).astype(dtype).view(np.uint8)
        keep = ~np.isnan(values)
        assert code[keep].tolist() == want[keep].tolist()
        assert (code[~keep] == 0x7F).all()


def test_fp4_conversion_and_its_inverse() -> None:
    statement = "{ .reg .b8 q; cvt.rn.satfinite.e2m1x2.f32 q, %f5, %f6; cvt.rn.f16x2.e2m1x2 %r8, q; }"
    got = apply3(statement, X.view(np.uint32), Y.view(np.uint32)).view(np.float16).reshape(-1, 2)
    for column, values in ((1, X), (0, Y)):
        want = np.clip(values.astype(np.float64), -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)
        want = np.where(np.isnan(values), 6.0, want)
        assert got[:, column].astype(np.float64).tolist() == want.tolist()


def test_f32x2_pairs() -> None:
    body = """
    mov.b64 %rd10, {%r5, %r6};
    mov.b64 %rd11, {%r6, %r7};
    fma.rn.f32x2 %rd12, %rd10, %rd11, %rd11;
    mov.b64 {_, %r8}, %rd12;"""
    got = apply3(body, X.view(np.uint32), Y.view(np.uint32), Z.view(np.uint32)).view(np.float32)
    want = np.array([exact_fma(float(y), float(z), float(z), "rn") for y, z in zip(Y, Z, strict=True)])
    same(got, want)


@pytest.mark.parametrize(
    ("statement", "a", "b", "want"),
    [
        # Values that an H200 gave; see benchmarks/ptx/h200_proof.
        ("mul24.lo.s32 %r8, %r5, %r6;", 0xFFFFFFFF, 0x7FFFFFFF, 1),
        ("mul24.lo.u32 %r8, %r5, %r6;", 0xFFFFFFFF, 0x7FFFFFFF, 0xFE000001),
        ("rem.s32 %r8, %r5, %r6;", 15, 0, 0xFFFFFFFF),
        ("testp.normal.f32 %p1, %f5; selp.b32 %r8, 1, 0, %p1;", 0x80000000, 0, 1),
        ("testp.normal.f32 %p1, %f5; selp.b32 %r8, 1, 0, %p1;", 1, 0, 0),
        ("cvt.rn.tf32.f32 %r8, %f5;", 0x7FC00000, 0, 0x7FFFE000),
        ("cvt.rna.tf32.f32 %r8, %f5;", 0x7FC00000, 0, 0x7FC00000),
        ("cvt.rna.tf32.f32 %r8, %f5;", 0x7F800001, 0, 0x7F800000),
        ("div.approx.f32 %f8, %f5, %f6; mov.b32 %r8, %f8;", 0x7F7FFFFF, 0x7F7FFFFF, 0),
        ("div.approx.f32 %f8, %f5, %f6; mov.b32 %r8, %f8;", 0xB78027C4, 0x7F5559A0, 0x80000000),
        ("div.approx.f32 %f8, %f5, %f6; mov.b32 %r8, %f8;", 0x7F800000, 0x7F7FFFFF, 0x7FFFFFFF),
        ("div.full.f32 %f8, %f5, %f6; mov.b32 %r8, %f8;", 0x7F7FFFFF, 0x7F7FFFFF, 0x3F800000),
    ],
)
def test_special_values_of_the_hardware(statement: str, a: int, b: int, want: int) -> None:
    a_words, b_words = (np.full(A.size, value, np.uint32) for value in (a, b))
    assert set(apply3(statement, a_words, b_words).tolist()) == {want}


def test_approximate_functions_are_close() -> None:
    x = np.abs(Y).astype(np.float64)
    for name, function in (
        ("rcp", lambda v: 1 / v),
        ("sqrt", np.sqrt),
        ("rsqrt", lambda v: 1 / np.sqrt(v)),
        ("lg2", np.log2),
    ):
        got = apply3(f"abs.f32 %f6, %f6; {name}.approx.f32 %f8, %f6; mov.b32 %r8, %f8;", b=Y.view(np.uint32)).view(
            np.float32
        )
        with np.errstate(all="ignore"):
            want = function(x).astype(np.float32)
        assert np.allclose(got, want, rtol=1e-6, atol=0, equal_nan=True), name
