"""Bad text is refused with a typed error that names the place."""

import contextlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ptx.snippets import module, ptx, run

from moegen.ptx import (
    OperandError,
    ParameterError,
    PtxError,
    PtxSyntaxError,
    UnknownInstruction,
    UnsupportedTarget,
    load,
)
from moegen.ptx.lexer import tokenize

GOOD = ptx("    ld.global.u32 %r5, [%rd4];\n    st.global.u32 [%rd5], %r5;")


def test_every_truncation_is_a_typed_error() -> None:
    count = len(tokenize(GOOD))
    lines = GOOD.splitlines()
    assert count > 100
    for length in [*range(GOOD.index(".entry"), len(GOOD) - 2, 7), 0, 5, 11, 20]:
        with pytest.raises(PtxError):
            load(GOOD[:length])
    first = next(k for k, line in enumerate(lines) if ".entry" in line)
    for number in range(first + 1, len(lines) - 1):
        with pytest.raises(PtxError):
            load("\n".join(lines[:number]))


@given(st.integers(0, 400), st.sampled_from(list("{}[];,@!|#$\\")))
def test_a_stray_character_never_escapes_the_error_types(at: int, character: str) -> None:
    text = GOOD[:at] + character + GOOD[at:]
    with contextlib.suppress(PtxError):
        load(text)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (".version 8.8", ".version 99.0", "version"),
        (".version 8.8", ".version 5.0", "version"),
        (".target sm_100a", ".target sm_52", "sm_52"),
        (".target sm_100a", ".target gfx942", "gfx942"),
        (".address_size 64", ".address_size 32", "address_size"),
    ],
)
def test_unsupported_targets(old: str, new: str, what: str) -> None:
    with pytest.raises(UnsupportedTarget, match=what):
        load(GOOD.replace(old, new))


def test_an_unknown_opcode_names_line_and_text() -> None:
    text = ptx("    wmma.load.a.sync.aligned.row.m16n16k16.global.f16 %r5, [%rd4];")
    line = next(k for k, row in enumerate(text.splitlines(), 1) if "wmma" in row)
    with pytest.raises(UnknownInstruction, match=re.escape(f"some.ptx:{line}: wmma.load.a.sync.aligned")):
        load(text, "some.ptx")


@pytest.mark.parametrize(
    "opcode",
    [
        "add.s32.sat",
        "add.u8",
        "mul.u32",
        "cvt.sat.u64.u32",
        "ld.global.u128",
        "cvt.rn.e4m3x2.f32",
        "tcgen05.mma.cta_group::3.kind::f16",
        "max.NaN.f32x2",
        "bar.sync.aligned",
    ],
)
def test_a_modifier_that_does_not_exist_is_unknown(opcode: str) -> None:
    with pytest.raises(UnknownInstruction):
        module(f"    {opcode} %r5, %r5, %r6;")


@pytest.mark.parametrize(
    "statement",
    [
        "add.s32 %r5, %r5;",
        "add.s32 %r5, %r5, %r6, %r7;",
        "add.s32 %rd5, %r5, %r6;",
        "add.f32 %r1, %rd5, %f2;",
        "add.f32 %f1, %f1, 1;",
        "add.s32 %r5, %f1, %r6;",
        "add.s32 5, %r5, %r6;",
        "and.b32 %r5, %p1, %r6;",
        "setp.eq.s32 %r5, %r5, %r6;",
        "mov.b32 %r5, {%h1, %h2, %h3};",
        "mov.b64 {%r1, %h2}, %rd5;",
        "ld.global.v2.u32 %r5, [%rd4];",
        "ld.global.v4.u32 {%r5, %r6}, [%rd4];",
        "ld.global.v8.u64 {%rd6, %rd7, %rd8, %rd9, %rd10, %rd11, %rd12, %rd13}, [%rd4];",
        "st.global.u32 %r5, [%rd4];",
        "lop3.b32 %r5, %r5, %r6, %r7, 256;",
        "mov.u32 %r5, %nosuch;",
        "mov.u32 %r5, nosuch;",
        "max.NaN.f32 %f1, %f2, %f3, %f4, %f5;",
        "min.xorsign.abs.f32 %f1, %f2, %f3, %f4;",
        "add.u16 %h1, %h2, 70000;",
        "elect.sync %r5, -1;",
        "bra 17;",
        "setmaxnreg.inc.sync.aligned.u32 33;",
        "cp.async.cg.shared.global [%r5], [%rd4], 8;",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {%r5}], [%r6];",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r5}, [%r6];",
    ],
)
def test_wrong_operands(statement: str) -> None:
    with pytest.raises((OperandError, PtxSyntaxError)):
        module(f"    {statement}")


def test_the_third_input_of_max_is_used() -> None:
    body = """
    ld.global.b32 %f1, [%rd4];
    max.NaN.f32 %f2, %f1, 0f3F800000, 0f40400000;
    st.global.b32 [%rd5], %f2;"""
    source = np.array([0.0, 2.0, 5.0, np.nan], np.float32)
    got, _ = run(body, np.resize(source, 32).view(np.uint32))
    assert got.view(np.float32)[:3].tolist() == [3.0, 3.0, 5.0]
    assert np.isnan(got.view(np.float32)[3])


def test_scopes_hide_registers_and_labels() -> None:
    body = """
    mov.u32 %r5, 0;
    {
    .reg .b32 %r<3>;
    mov.u32 %r1, 7;
    AGAIN:
    add.u32 %r1, %r1, 1;
    .reg .pred P1;
    setp.lt.u32 P1, %r1, 10;
    @P1 bra AGAIN;
    mov.u32 %r2, %r1;
    add.u32 %r5, %r5, %r2;
    }
    {
    .reg .pred P1;
    AGAIN:
    add.u32 %r5, %r5, 1;
    setp.lt.u32 P1, %r5, 20;
    @P1 bra AGAIN;
    bra OUT;
    }
    add.u32 %r5, %r5, 1000;
    OUT:
    add.u32 %r5, %r5, %r1;
    st.global.u32 [%rd5], %r5;"""
    got, _ = run(body, np.zeros(32))
    assert got.tolist() == [20 + k for k in range(32)]


def test_a_label_defined_twice_or_never() -> None:
    with pytest.raises(PtxSyntaxError, match="twice"):
        module("    A: add.u32 %r5, %r5, 1;\n    A: add.u32 %r5, %r5, 1;")
    with pytest.raises(OperandError, match="NOWHERE"):
        module("    bra NOWHERE;")


def test_launch_shapes_and_parameters() -> None:
    loaded = load(GOOD)
    data = np.zeros(32, np.uint32)
    with pytest.raises(ParameterError, match="no entry"):
        loaded.launch("nope", grid=1, block=32)
    with pytest.raises(ParameterError, match="takes 2 parameters"):
        loaded.launch("k", grid=1, block=32, args=[data])
    with pytest.raises(ParameterError, match="4 bytes for a parameter of 8"):
        loaded.launch("k", grid=1, block=32, args=[data, np.float32(1)])
    with pytest.raises(ParameterError, match="does not fit"):
        loaded.launch("k", grid=1, block=32, args=[data, 1 << 64])
    with pytest.raises(ParameterError, match="1024"):
        loaded.launch("k", grid=1, block=(64, 32), args=[data, data])
    with pytest.raises(ParameterError, match="positive"):
        loaded.launch("k", grid=0, block=32, args=[data, data])
    with pytest.raises(ParameterError, match="multiple of cluster"):
        loaded.launch("k", grid=3, block=32, cluster=2, args=[data, data])
    with pytest.raises(ParameterError, match="limit 232448"):
        loaded.launch("k", grid=1, block=32, dynamic_smem=240000, args=[data, data])
    with pytest.raises(ParameterError, match="reqntid"):
        module("", directives=".reqntid 64").launch("k", grid=1, block=32, args=[data, data])
    with pytest.raises(ParameterError, match="maxntid"):
        module("", directives=".maxntid 64").launch("k", grid=1, block=128, args=[data, data])


def test_debug_directives_are_read_over() -> None:
    body = """
    .loc 1 10 5
    .pragma "nounroll";
    ld.global.u32 %r5, [%rd4]; // comment
    /* block
       comment */
    st.global.u32 [%rd5], %r5;"""
    got, _ = run(body, np.arange(32), extra='.file 1 "a.cu"\n.section .debug_str { .b8 0 }')
    assert got.tolist() == list(range(32))
