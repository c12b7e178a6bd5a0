"""tcgen05 by hand-written kernels: descriptors, scale factors, formats, tensor-memory access, and its misuse."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptx.snippets import aligned, module

from moegen.ptx import Check, ExecutionError, Numerics, Options, Policy, numerics
from moegen.ptx.swizzle import swizzle

SCHEDULES = [
    Options(seed=1, races=True),
    Options(seed=2, policy=Policy.LAZY),
    Options(seed=3, policy=Policy.TENSOR_EARLY),
]
DESC_SW128 = 1 << 46 | 1 << 16 | 64 << 32 | 2 << 61
DESC_SCALE = 1 << 46 | 1 << 16 | 8 << 32

#: Four warps: copy A, B, SFA, SFB images to shared memory, multiply, read back. {cp}, {mma} and {read} vary.
KERNEL = """
    .shared .align 1024 .b8 a[16384];
    .shared .align 1024 .b8 b[16384];
    .shared .align 128 .b8 sf[2048];
    .shared .align 8 .b64 bar;
    .shared .align 4 .b32 base;
    mov.u32 %r6, a;
    mov.u32 %r7, %r1;
    FILL:
    mul.wide.u32 %rd10, %r7, 16;
    add.s64 %rd11, %rd1, %rd10;
    ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd11];
    shl.b32 %r14, %r7, 4;
    add.u32 %r15, %r6, %r14;
    st.shared.v4.u32 [%r15], {{%r10, %r11, %r12, %r13}};
    add.u32 %r7, %r7, 128;
    setp.lt.u32 %p1, %r7, 2176;
    @%p1 bra FILL;
    fence.proxy.async.shared::cta;
    shr.u32 %r8, %r1, 5;
    setp.ne.u32 %p2, %r8, 0;
    @%p2 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [base], 256;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra ALLOCATED;
    mbarrier.init.shared.b64 [bar], 1;
    fence.mbarrier_init.release.cluster;
    ALLOCATED:
    bar.sync 0;
    ld.shared.u32 %r20, [base];
    @%p2 bra WAIT;
    elect.sync %r21|%p4, -1;
    @!%p4 bra WAIT;
    shr.u32 %r22, %r6, 4;
    cvt.u64.u32 %rd12, %r22;
    or.b64 %rd13, %rd12, {desc};
    add.s64 %rd14, %rd13, 1024;
    add.u32 %r23, %r22, 2048;
    cvt.u64.u32 %rd15, %r23;
    or.b64 %rd15, %rd15, {desc_scale};
    add.s64 %rd16, %rd15, 64;
    add.u32 %r24, %r20, 128;
    add.u32 %r25, %r20, 132;
    {issue}
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];
    WAIT:
    mbarrier.try_wait.parity.shared.b64 %p5, [bar], 0;
    @!%p5 bra WAIT;
    shl.b32 %r26, %r8, 21;
    add.u32 %r27, %r20, %r26;
    mul.wide.u32 %rd17, %r1, 512;
    add.s64 %rd18, %rd2, %rd17;
    mov.u32 %r28, 0;
    READ:
    tcgen05.ld.sync.aligned.32x32b.x4.b32 {{%r30, %r31, %r32, %r33}}, [%r27];
    tcgen05.wait::ld.sync.aligned;
    st.global.v4.u32 [%rd18], {{%r30, %r31, %r32, %r33}};
    add.s64 %rd18, %rd18, 16;
    add.u32 %r27, %r27, 4;
    add.u32 %r28, %r28, 4;
    setp.lt.u32 %p6, %r28, 128;
    @%p6 bra READ;
    bar.sync 0;
    @%p2 bra END;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 256;
    END:"""

CP = """
    tcgen05.cp.cta_group::1.32x128b.warpx4 [%r24], %rd15;
    tcgen05.cp.cta_group::1.32x128b.warpx4 [%r25], %rd16;"""


def body(issue: str) -> str:
    return KERNEL.format(desc=DESC_SW128, desc_scale=DESC_SCALE, issue=issue)


def image(codes: Any) -> Any:
    """K-major operand bytes [128, 128] in 128-byte swizzle."""
    out = np.zeros(16384, np.uint8)
    r, c = np.meshgrid(np.arange(128), np.arange(codes.shape[1]), indexing="ij")
    out[swizzle(r // 8 * 1024 + r % 8 * 128 + c, 128)] = codes
    return out


def scale_image(codes: Any) -> Any:
    """Scale factors [128, 4] as a 512-byte block, in 1 KiB of room."""
    out = np.zeros(1024, np.uint8)
    r, k = np.meshgrid(np.arange(128), np.arange(4), indexing="ij")
    out[r % 32 * 16 + r // 32 * 4 + k] = codes
    return out


def execute(text: str, a: Any, b: Any, sfa: Any, sfb: Any, options: Options | None = None) -> Any:
    source = aligned(2176 * 16)
    source[:] = np.concatenate([image(a), image(b), scale_image(sfa), scale_image(sfb)])
    target = aligned(128 * 512).view(np.uint32)
    module(body(text)).launch("k", grid=1, block=128, args=[source.view(np.uint32), target], options=options)
    return target.reshape(128, 128)


def idesc(n: int = 128, *, a: int = 1, b: int = 1, scale: int = 0, sfa: int = 0, sfb: int = 0, negate: int = 0) -> int:
    return sfb << 4 | a << 7 | b << 10 | negate << 13 | (n >> 3) << 17 | scale << 23 | 8 << 24 | sfa << 29


def mma(kind: str, bits: int, enable: str = "0", extra_a: int = 0) -> str:
    return f"""
    mov.b32 %r29, {bits};
    setp.ne.u32 %p7, {enable}, 0;
    add.s64 %rd20, %rd13, {extra_a};
    add.s64 %rd21, %rd14, {extra_a};
    tcgen05.mma.cta_group::1.kind::{kind} [%r20], %rd20, %rd21, %r29, [%r24], [%r25], %p7;"""


def e2m1(codes: Any) -> Any:
    return (
        np.stack([codes & 15, codes >> 4], -1)
        .reshape(len(codes), -1)
        .astype(np.uint8)
        .view(ml_dtypes.float4_e2m1fn)
        .astype(float)
    )


@pytest.mark.parametrize("options", SCHEDULES)
def test_nvfp4_with_k_steps_inside_the_swizzle(options: Options) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (128, 64)).astype(np.uint8) for _ in range(2))
    sfa, sfb = (rng.choice([0x38, 0x40, 0x3C], (128, 4)).astype(np.uint8) for _ in range(2))
    kind = "mxf4nvf4.block_scale.block16"
    got = execute(CP + mma(kind, idesc()) + mma(kind, idesc(), "1", 2), a, b, sfa, sfb, options).view(np.float32)

    def dequantised(codes: Any, scales: Any) -> Any:
        values = e2m1(codes)[:, :128].reshape(128, 2, 4, 16)
        return (values * scales.view(ml_dtypes.float8_e4m3fn).astype(float)[:, None, :, None]).reshape(128, 128)

    assert np.array_equal(got, (dequantised(a, sfa) @ dequantised(b, sfb).T).astype(np.float32))


def test_negation_and_scale_ids_of_mxfp4() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 256, (128, 32)).astype(np.uint8) for _ in range(2))
    sfa, sfb = (rng.integers(124, 131, (128, 4)).astype(np.uint8) for _ in range(2))
    bits = idesc(scale=1, sfa=2, sfb=0, negate=1)
    got = execute(CP + mma("mxf4nvf4.block_scale.block32", bits), a, b, sfa, sfb).view(np.float32)
    left = e2m1(a) * np.repeat(np.exp2(sfa[:, 2:4].astype(float) - 127), 32, axis=1)
    right = e2m1(b) * np.repeat(np.exp2(sfb[:, 0:2].astype(float) - 127), 32, axis=1)
    assert np.array_equal(got, (-left @ right.T).astype(np.float32))


@pytest.mark.parametrize(
    ("a_code", "a_type"), [(0, ml_dtypes.float8_e4m3fn), (1, ml_dtypes.float8_e5m2), (5, ml_dtypes.float4_e2m1fn)]
)
def test_mxf8f6f4_with_mixed_formats(a_code: int, a_type: Any) -> None:
    rng = np.random.default_rng(2)
    a = rng.choice(np.array([0x00, 0x01, 0x02, 0x05] if a_code == 5 else [0x00, 0x38, 0x3C, 0xB8], np.uint8), (128, 32))
    b = rng.choice(np.array([0x00, 0x38, 0x40, 0xB8], np.uint8), (128, 32))
    sfa, sfb = (rng.integers(125, 130, (128, 4)).astype(np.uint8) for _ in range(2))
    got = execute(
        CP + mma("mxf8f6f4.block_scale.block32", idesc(a=a_code, b=0, scale=1, sfa=3, sfb=1)), a, b, sfa, sfb
    ).view(np.float32)
    left = a.view(a_type).astype(float) * np.exp2(sfa[:, 3:4].astype(float) - 127)
    right = b.view(ml_dtypes.float8_e4m3fn).astype(float) * np.exp2(sfb[:, 1:2].astype(float) - 127)
    assert np.array_equal(got, (left @ right.T).astype(np.float32))


@pytest.mark.parametrize(
    ("kind", "codes", "dtype", "depth"),
    [
        ("f16", 0, np.float16, 16),
        ("f16", 1, ml_dtypes.bfloat16, 16),
        ("tf32", 2, np.float32, 8),
        ("f8f6f4", 0, ml_dtypes.float8_e4m3fn, 32),
        ("i8", 1, np.int8, 32),
    ],
)
def test_dense_kinds(kind: str, codes: int, dtype: Any, depth: int) -> None:
    rng = np.random.default_rng(3)
    values = [rng.integers(-4, 5, (128, depth)).astype(dtype) for _ in range(2)]
    raw = [v.view(np.uint8).reshape(128, -1) for v in values]
    bits = (2 if kind == "i8" else 1) << 4 | codes << 7 | codes << 10 | 16 << 17 | 8 << 24
    issue = f"""
    mov.b32 %r29, {bits};
    setp.ne.u32 %p7, 0, 0;
    tcgen05.mma.cta_group::1.kind::{kind} [%r20], %rd13, %rd14, %r29, %p7;"""
    zero = np.zeros((128, 4), np.uint8)
    got = execute(issue, raw[0], raw[1], zero, zero, SCHEDULES[0])
    want = values[0].astype(float) @ values[1].astype(float).T
    assert np.array_equal(
        got.view(np.int32 if kind == "i8" else np.float32), want.astype(np.int32 if kind == "i8" else np.float32)
    )


def test_mma_sim_model_against_its_scalar_definition() -> None:
    rng = np.random.default_rng(4)
    a, b = (
        rng.choice([0, 0.5, 1, 1.5, 2, 3, 4, 6, -1, -3], (6, 64)),
        rng.choice([0, 0.5, 1, -1.5, 2, 3, -4, 6], (5, 64)),
    )
    sfa, sfb = (
        np.exp2(rng.integers(-7, 8, (6, 4))) * rng.choice([1, 1.125, 1.75], (6, 4)),
        np.exp2(rng.integers(-7, 8, (5, 4))),
    )
    c = (rng.standard_normal((6, 5)) * 100).astype(np.float32)
    got = numerics.accumulate_mma_sim(a, b, sfa, sfb, c, block=16, fraction_bits=35)
    from fractions import Fraction
    from math import floor, frexp

    for i in range(6):
        for j in range(5):
            terms, exponents = [Fraction(float(c[i, j]))], [frexp(float(c[i, j]))[1] - 1]
            for k in range(4):
                dot = sum(
                    Fraction(x) * Fraction(y)
                    for x, y in zip(a[i, 16 * k : 16 * k + 16], b[j, 16 * k : 16 * k + 16], strict=True)
                )
                terms.append(dot * Fraction(sfa[i, k]) * Fraction(sfb[j, k]))
                exponents.append(frexp(sfa[i, k])[1] + frexp(sfb[j, k])[1] - 2)
            unit = Fraction(2) ** (max(exponents) - 35)
            total = sum((1 if t > 0 else -1) * floor(abs(t) / unit) for t in terms) * unit
            want = np.float32(float(total))
            if abs(Fraction(float(want))) > abs(total):
                want = np.nextafter(want, np.float32(0))
            assert got[i, j] == want


def test_the_models_agree_where_sums_are_exact_and_differ_elsewhere() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 256, (128, 64)).astype(np.uint8) for _ in range(2))
    one = np.full((128, 4), 0x38, np.uint8)
    kind = "mxf4nvf4.block_scale.block16"
    issue = CP + mma(kind, idesc())
    exact, model = (execute(issue, a, b, one, one, Options(numerics=n)) for n in Numerics)
    assert np.array_equal(exact, model)
    wide = rng.integers(8, 0x70, (128, 4)).astype(np.uint8)
    exact, model = (execute(issue, a, b, wide, wide, Options(numerics=n)).view(np.float32) for n in Numerics)
    assert not np.array_equal(exact, model)
    assert np.abs(exact - model).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("shape", ["16x256b.x2", "16x128b.x4"])
def test_other_load_shapes_round_trip_through_stores(shape: str) -> None:
    count = 8
    registers = ", ".join(f"%r{k}" for k in range(30, 30 + count))
    text = (
        """
    .shared .align 4 .b32 base;
    mov.u32 %r20, base;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r20], 32;
    ld.shared.u32 %r21, [%r20];
    ld.global.v4.u32 {%r30, %r31, %r32, %r33}, [%rd1];
    mad.lo.u32 %r30, %r1, 100, 0;
"""
        + "".join(f"    add.u32 %r{30 + k}, %r30, {k};\n" for k in range(1, count))
        + f"""
    tcgen05.st.sync.aligned.{shape}.b32 [%r21], {{{registers}}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{", ".join(f"%r{k}" for k in range(50, 66))}}}, [%r21];
    tcgen05.wait::ld.sync.aligned;
    mul.wide.u32 %rd10, %r1, 64;
    add.s64 %rd11, %rd2, %rd10;
"""
        + "".join(f"    st.global.u32 [%rd11+{4 * k}], %r{50 + k};\n" for k in range(16))
        + """
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r21, 32;"""
    )
    out = np.zeros(512, np.uint32)
    module(text).launch("k", grid=1, block=32, args=[np.zeros(64, np.uint32), out])
    got = out.reshape(32, 16)
    width = 8 if shape.startswith("16x256b") else 4
    for lane in range(32):
        for register in range(count):
            if width == 8:
                block, part = register // 4, register % 4
                row, column = lane // 4 + 8 * (part // 2), 8 * block + 2 * (lane % 4) + part % 2
            else:
                block, part = register // 2, register % 2
                row, column = lane // 4 + 8 * part, 4 * block + lane % 4
            assert got[row, column] == lane * 100 + register


NV = "mxf4nvf4.block_scale.block16"


@pytest.mark.parametrize(
    ("issue", "check"),
    [
        (CP + mma(NV, idesc() | 1 << 31), Check.DESCRIPTOR),
        (CP + mma(NV, idesc(a=0)), Check.DESCRIPTOR),
        (CP + mma(NV, idesc(n=0)), Check.DESCRIPTOR),
        (CP + mma(NV, idesc(sfa=1)), Check.DESCRIPTOR),
        (CP.replace("%rd15", "%rd12") + mma(NV, idesc()), Check.DESCRIPTOR),
        (
            CP + mma(NV, idesc()).replace("[%r20]", "[%r25]").replace("%r29, [%r24], [%r25]", "%r29, [%r24], [%r24]"),
            Check.TMEM_ACCESS,
        ),
        (CP.replace("[%r24]", "[%r25]") + mma(NV, idesc()), Check.UNINITIALISED),
        (mma(NV, idesc()), Check.UNINITIALISED),
        (CP + mma(NV, idesc(), "1"), Check.UNINITIALISED),
    ],
)
def test_misuse(issue: str, check: Check) -> None:
    zero, scale = np.zeros((128, 64), np.uint8), np.zeros((128, 4), np.uint8)
    with pytest.raises(ExecutionError) as caught:
        execute(issue, zero, zero, scale, scale, Options(races=True))
    assert caught.value.report is not None
    assert caught.value.report.check is check, str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("    fence.proxy.async.shared::cta;\n", "", Check.PROXY_FENCE_OPERAND),
        ("    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 256;\n", "", Check.TMEM_LEAK),
        (
            "dealloc.cta_group::1.sync.aligned.b32 %r20, 256",
            "dealloc.cta_group::1.sync.aligned.b32 %r20, 128",
            Check.TMEM_ACCESS,
        ),
        ("shl.b32 %r26, %r8, 21", "shl.b32 %r26, %r8, 20", Check.TMEM_ACCESS),
        ("add.u32 %r27, %r20, %r26;", "add.u32 %r27, %r26, 256;", Check.TMEM_ACCESS),
        ("shared::cta.b32 [base], 256", "shared::cta.b32 [base], 96", Check.TMEM_ACCESS),
        ("    @!%p4 bra WAIT;\n", "", Check.CONVERGENCE),
        ("    bar.sync 0;\n    ld.shared.u32 %r20", "    ld.shared.u32 %r20", Check.UNINITIALISED),
        ("    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];\n", "", Check.DEADLOCK),
        ("    fence.mbarrier_init.release.cluster;\n", "", Check.PROXY_FENCE),
        ("    bar.sync 0;\n    @%p2 bra END;", "    @%p2 bra END;", Check.RACE),
        (
            "    WAIT:\n    mbarrier.try_wait.parity.shared.b64 %p5, [bar], 0;\n    @!%p5 bra WAIT;\n",
            "    WAIT:\n",
            Check.RACE,
        ),
    ],
)
def test_missing_guards(old: str, new: str, check: Check) -> None:
    good = body(CP + mma(NV, idesc()))
    assert old in good
    source = aligned(2176 * 16).view(np.uint32)
    found = set()
    for seed in range(6):
        target = aligned(128 * 512).view(np.uint32)
        try:
            options = Options(seed=seed, races=True, stop_at_error=False, slice_steps=20)
            result = module(good.replace(old, new)).launch(
                "k", grid=1, block=128, args=[source, target], options=options
            )
            found |= {report.check for report in result.reports}
        except ExecutionError as error:
            found |= {report.check for report in error.reports}
    assert check in found, found
