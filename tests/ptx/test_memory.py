"""State spaces, vectors, atomics and faults: hand-written kernels with results worked out here."""

from typing import Any

import numpy as np
import pytest
from ptx.snippets import WORDS, failing, run

from moegen.ptx import Check, Options


def test_widths_signs_and_vectors() -> None:
    body = """
    .shared .align 16 .b8 s[2048];
    .reg .s16 %s<3>;
    mov.u32 %r6, s;
    mad.lo.u32 %r7, %r1, 16, %r6;
    mul.wide.u32 %rd6, %r1, 16;
    add.s64 %rd7, %rd1, %rd6;
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd7];
    st.shared.v2.u32 [%r7], {%r11, %r10};
    st.shared.u16 [%r7+8], %h1;
    st.shared.b32 [%r7+8], %r12;
    ld.shared.s8 %s1, [%r7+9];
    cvt.s32.s16 %r14, %s1;
    ld.shared.u16 %h2, [%r7+10];
    cvt.u32.u16 %r15, %h2;
    ld.shared.s16 %r16, [%r7+2];
    cvt.u64.u32 %rd8, %r7;
    cvta.shared.u64 %rd8, %rd8;
    ld.u64 %rd9, [%rd8];
    shr.u64 %rd9, %rd9, 32;
    cvt.u32.u64 %r17, %rd9;
    mul.wide.u32 %rd6, %r1, 16;
    add.s64 %rd7, %rd2, %rd6;
    st.global.v4.b32 [%rd7], {%r14, %r15, %r16, %r17};"""
    got, _ = run(body, WORDS, block=32, out=128)
    rows, out = WORDS.reshape(-1, 4)[:32].astype(np.int64), got.reshape(32, 4)
    assert out[:, 0].view(np.int32).tolist() == (((rows[:, 2] >> 8 & 255) ^ 128) - 128).tolist()
    assert out[:, 1].tolist() == (rows[:, 2] >> 16).tolist()
    assert out[:, 2].view(np.int32).tolist() == (((rows[:, 1] >> 16) ^ 0x8000) - 0x8000).tolist()
    assert out[:, 3].tolist() == rows[:, 0].tolist()


def test_local_memory_is_private() -> None:
    body = """
    .local .align 8 .b8 depot[64];
    mov.u64 %rd6, depot;
    cvta.local.u64 %rd7, %rd6;
    and.b32 %r5, %r1, 15;
    mul.wide.u32 %rd8, %r5, 4;
    add.s64 %rd9, %rd7, %rd8;
    st.u32 [%rd9], %r1;
    add.s64 %rd9, %rd6, %rd8;
    ld.local.u32 %r6, [%rd9];
    st.global.u32 [%rd5], %r6;"""
    got, _ = run(body, np.zeros(64), block=64)
    assert got.tolist() == list(range(64))


def test_module_variables() -> None:
    extra = ".global .align 4 .u32 counter = 5;\n.const .align 4 .b32 table[4] = {10, 20, 0xFFFFFFFF, -4};"
    body = """
    and.b32 %r5, %r1, 3;
    mul.wide.u32 %rd6, %r5, 4;
    mov.u64 %rd7, table;
    add.s64 %rd7, %rd7, %rd6;
    ld.const.u32 %r6, [%rd7];
    atom.global.add.u32 %r7, [counter], 1;
    add.u32 %r6, %r6, %r7;
    st.global.u32 [%rd5], %r6;"""
    got, _ = run(body, np.zeros(32), extra=extra)
    table = [10, 20, 0xFFFFFFFF, 0xFFFFFFFC]
    assert got.tolist() == [(table[k % 4] + 5 + k) & 0xFFFFFFFF for k in range(32)]


def test_atomics_return_old_values_and_add_up() -> None:
    body = """
    .shared .align 8 .b64 cell[2];
    mov.u32 %r6, cell;
    mov.b64 %rd6, 0;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.shared.b64 [%r6], %rd6;
    @%p1 st.shared.b64 [%r6+8], %rd6;
    bar.sync 0;
    ld.global.u32 %r5, [%rd4];
    atom.shared.add.u32 %r7, [%r6], %r5;
    atom.shared.max.s32 %r8, [%r6+4], %r5;
    red.shared.xor.b32 [%r6+8], %r5;
    atom.shared.cas.b32 %r9, [%r6+12], 0, %r5;
    bar.sync 0;
    ld.shared.u32 %r10, [%r6];
    ld.shared.u32 %r11, [%r6+4];
    ld.shared.u32 %r12, [%r6+8];
    xor.b32 %r10, %r10, %r11;
    xor.b32 %r10, %r10, %r12;
    st.global.u32 [%rd5], %r10;
    st.global.u32 [%rd5+256], %r7;"""
    got, _ = run(body, WORDS[:64], block=64, out=128, options=Options(races=True))
    total = sum(WORDS[:64].tolist()) & 0xFFFFFFFF
    top = max(0, int(WORDS[:64].view(np.int32).max()))
    assert (got[:64] == (total ^ top ^ np.bitwise_xor.reduce(WORDS[:64]))).all()
    before = sorted(got[64:].tolist())
    assert 0 in before
    assert len(set(before)) == 64


def test_half_atomics_round_each_step() -> None:
    body = """
    .shared .align 4 .b32 cell[1];
    mov.u32 %r6, cell;
    st.shared.u32 [%r6], 0;
    bar.sync 0;
    mov.b32 %r5, 0x3f803f00;
    red.shared.add.noftz.bf16x2 [%r6], %r5;
    bar.sync 0;
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%rd5], %r7;"""
    got, _ = run(body, np.zeros(32))
    # 32 x 0.5 = 16 and 32 x 1.0 = 32, both exact in bf16.
    assert (got == (0x4200 << 16 | 0x4180)).all()


@pytest.mark.parametrize(
    ("body", "check", "text"),
    [
        ("add.s64 %rd4, %rd4, 4096; ld.global.u32 %r5, [%rd4];", Check.OUT_OF_BOUNDS, "lane"),
        ("ld.global.u32 %r5, [%rd4+2];", Check.MISALIGNED, "multiple of 4"),
        ("mov.u32 %r5, 3000; ld.shared.u32 %r6, [%r5];", Check.OUT_OF_BOUNDS, "shared load"),
        ("mov.u32 %r5, 1026; st.shared.u32 [%r5], %r6;", Check.MISALIGNED, "multiple of 4"),
        ("setp.eq.u32 %p1, %r1, 9; @%p1 ld.global.u8 %h1, [8];", Check.OUT_OF_BOUNDS, "no allocation"),
        ("cvta.shared.u64 %rd6, 1024; st.u32 [%rd6], %r1; trap;", Check.OUT_OF_BOUNDS, "shared store"),
        ("trap;", Check.TRAP, "trap"),
        ("bar.sync 0, 48;", Check.BARRIER, "48 threads"),
        ("bar.sync 17;", Check.BARRIER, "17"),
        ("barrier.cluster.wait;", Check.BARRIER, "without an arrive"),
        ("setp.lt.u32 %p1, %r1, 3; @%p1 bra L; bar.sync 1; bra M; L: bar.sync 2; M: ret;", Check.DEADLOCK, "29 lanes"),
        ("setp.lt.u32 %p1, %r1, 3; @%p1 bar.warp.sync 0xF0;", Check.CONVERGENCE, "names 0xf0 only"),
        ("L: bra L;", Check.STEP_LIMIT, "steps"),
        ("mbarrier.arrive.shared.b64 %rd6, [1024];", Check.MBARRIER, "not initialised"),
        ("setp.eq.u32 %p1, %r1, 0; @!%p1 bra L; bar.sync 1, 64; L: ret;", Check.DEADLOCK, "bar.sync 1, 64"),
    ],
)
def test_faults_name_their_place(body: str, check: Check, text: str) -> None:
    directives = ""
    more: dict[str, Any] = {"extra": "", "smem": 0}
    if "shared" in body or "mbarrier" in body:
        body = ".shared .align 8 .b8 room[16];\n" + body
    if "trap" in body and "cvta" in body:
        body = body.replace(".shared .align 8 .b8 room[16];\n", "")
    report = failing(body, check, directives=directives, options=Options(max_steps=2000), **more)
    assert text in report
