"""Runs on Python integers and runs without what nobody reads give what the instructions give one by one."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ptx.snippets import SCHEDULES, run
from ptx.test_fuse import CASES, OPERATIONS, kernel_of, run_lines

from moegen.ptx import Options, load, uniform
from moegen.ptx.dtypes import LANES
from moegen.ptx.emit import Pure, slots_in
from moegen.ptx.fuse import joined_lines
from moegen.ptx.kernel import Kernel
from moegen.ptx.program import Instruction, Reg
from moegen.ptx.scalar_code import scalar_lines
from moegen.ptx.simplify import Run, independent, simplified

#: Values at which shifts, comparisons, carries and signs change.
EDGES = (0, 1, 2, 31, 32, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1)
WORD = st.one_of(st.sampled_from(EDGES), st.integers(0, (1 << 64) - 1))


def pure_runs(kernel: Kernel) -> Iterator[Run]:
    for one, item in zip(kernel.lowered, kernel.entry.instructions, strict=True):
        if isinstance(one, Pure) and one.outs:
            yield [(one, item)]


def dtype_of(kernel: Kernel, slot: int) -> np.dtype:
    registers = kernel.entry.registers
    return np.dtype(registers[slot].store if slot < len(registers) else kernel.slots.keys[slot - len(registers)][-1])


def equal_lanes(kernel: Kernel, values: list[int]) -> list[np.ndarray]:
    """Registers with one value in all lanes; constants keep theirs."""
    arrays = []
    for slot in range(len(kernel.entry.registers) + len(kernel.slots.keys)):
        dtype, key = dtype_of(kernel, slot), slot - len(kernel.entry.registers)
        value = values[slot % len(values)]
        if key >= 0 and kernel.slots.keys[key][0] == "const":
            value = kernel.slots.keys[key][1]
        bits = 8 * dtype.itemsize
        arrays.append(uniform.same(np.full(LANES, value & ((1 << min(bits, 64)) - 1), dtype)))
    return arrays


def on_integers(kernel: Kernel, lines: list[str], registers: list[np.ndarray]) -> list[np.ndarray]:
    def refuse(w: object) -> None:
        raise AssertionError("a register is not known to be equal in all lanes")

    scope = kernel.namespace | {"R": list(registers), "w": None, "other": refuse}
    body = "\n ".join(["def step():", *lines, "return None"])
    exec(body, scope)
    scope["step"]()
    return scope["R"]


OPERATION = re.compile(
    r"(add|sub|mul\.(lo|wide)|mad\.(lo|wide))\.[us]\d+|mul\.hi\.[us]32|(and|or|xor|not|shl|selp|mov)\.[bp]\w+"
    r"|shr\.[usb]\d+|(set|setp)\.[a-z]+(\.and|\.or|\.xor)?\.[usb]\d+|cvt\.[us]\d+\.[us]\d+"
)
TRANSLATED = [name for name in CASES if OPERATION.fullmatch(name)]


@pytest.mark.parametrize("name", TRANSLATED)
def test_integers_give_what_equal_lanes_give(name: str) -> None:
    case = CASES[name]
    kernel = load(case.text, name).kernel(case.entry)
    rng, translated = np.random.default_rng(len(name)), 0
    for one_run in pure_runs(kernel):
        lines = scalar_lines(one_run, kernel._kind)
        if lines is None:
            continue
        translated += any(item.opcode.startswith(name.split(".")[0]) for _, item in one_run)
        for _ in range(8):
            words = rng.choice(np.array(EDGES, np.uint64), 16) ^ rng.integers(0, 3, 16).astype(np.uint64)
            start = equal_lanes(kernel, words.tolist())
            vector = joined_lines(
                [one for one, _ in one_run], [item for _, item in one_run], kernel.entry.registers, kernel.slots
            )
            wanted = run_lines(kernel, vector, start)
            given_back = on_integers(kernel, lines, start)
            assert [r.tobytes() for r in given_back] == [r.tobytes() for r in wanted]
            assert all(id(given_back[slot]) in uniform.KNOWN for one, _ in one_run for slot, _ in one.outs)
    assert translated


PACKED = "{{ .reg .b64 %q; mov.b64 %q, {{%r{a}, %r{b}}}; mov.b64 {{_, %r{d}}}, %q; }}"
INTEGER = (
    "add.u32 %r{d}, %r{a}, %r{b};",
    "sub.s32 %r{d}, %r{a}, %r{b};",
    "mul.lo.u32 %r{d}, %r{a}, %r{b};",
    "mul.hi.s32 %r{d}, %r{a}, %r{b};",
    "mad.lo.s32 %r{d}, %r{a}, %r{b}, %r{d};",
    "shr.s32 %r{d}, %r{a}, 5;",
    "shr.u32 %r{d}, %r{a}, %r{b};",
    "shl.b32 %r{d}, %r{a}, %r{b};",
    "setp.lt.s32 %p1, %r{a}, %r{b};",
    "setp.hi.u32 %p2, %r{a}, %r{b};",
    "selp.b32 %r{d}, %r{a}, %r{b}, %p1;",
    "@%p2 xor.b32 %r{d}, %r{a}, %r{b};",
    "@!%p1 not.b32 %r{d}, %r{a};",
    PACKED,
    "mov.u32 %r{d}, %r{a};",
)
PROGRAM = st.lists(st.tuples(st.sampled_from(INTEGER), *[st.integers(1, 12)] * 3), min_size=1, max_size=24)


def loaded(program: list[tuple[str, int, int, int]]) -> tuple[Kernel, list[Pure], list[Instruction]]:
    text = "".join(line.format(d=d, a=a, b=b) for line, d, a, b in program)
    kernel = load(kernel_of(text)).kernel("k")
    lowered = [one for one in kernel.lowered if isinstance(one, Pure)]
    return kernel, lowered, kernel.entry.instructions[: len(lowered)]


@given(PROGRAM, st.lists(WORD, min_size=8, max_size=8))
def test_a_run_on_integers_gives_what_its_instructions_give(program: list, words: list[int]) -> None:
    kernel, lowered, items = loaded(program)
    start = equal_lanes(kernel, words)
    lines = scalar_lines(list(zip(lowered, items, strict=True)), kernel._kind)
    assert lines is not None
    wanted = run_lines(kernel, joined_lines(lowered, items, kernel.entry.registers, kernel.slots), start)
    assert [r.tobytes() for r in on_integers(kernel, lines, start)] == [r.tobytes() for r in wanted]


@given(
    st.lists(st.tuples(st.sampled_from(OPERATIONS + INTEGER), *[st.integers(1, 12)] * 3), min_size=1, max_size=60),
    st.integers(0, (1 << 13) - 1),
)
def test_a_simplified_run_gives_the_live_registers(program: list, chosen: int) -> None:
    """Whatever subset of the registers may be read later; also when taken apart into independent parts."""
    kernel, lowered, items = loaded(program)
    registers = kernel.entry.registers
    live = sum(1 << slot for slot in range(len(registers)) if chosen >> slot % 13 & 1)
    rng = np.random.default_rng(len(program))
    start = [rng.integers(0, 2 if kind.kind == "p" else 256, 32 * max(kind.nbytes, 1), np.uint8) for kind in registers]
    start = [raw.view(np.dtype(kind.store)) for raw, kind in zip(start, registers, strict=True)]
    start += [np.full(LANES, key[1], key[-1]) for key in kernel.slots.keys]
    wanted = run_lines(kernel, joined_lines(lowered, items, registers, kernel.slots), start)
    kept = simplified(lowered, items, live)
    parts = independent(kept)
    assert sum(len(part) for part in parts) == len(kept) <= 2 * len(lowered)
    for order in ([kept], parts, parts[::-1]):
        result = start
        for part in order:
            lines = joined_lines([one for one, _ in part], [item for _, item in part], registers, kernel.slots)
            result = run_lines(kernel, lines, result)
        for slot in range(len(registers)):
            if live >> slot & 1:
                assert result[slot].tobytes() == wanted[slot].tobytes()


def test_packed_words_that_are_taken_apart_again_vanish() -> None:
    _, lowered, items = loaded([(PACKED, 3, 1, 2)])
    pack, part = lowered
    ((slot, expression),) = part.outs
    ((one, _),) = simplified(lowered, items, 1 << slot)
    high = list(slots_in(pack.outs[0][1]))[1]
    assert one.outs == [(slot, f"R[{high}]")]
    assert expression.startswith("part(")
    assert simplified(lowered, items, 0) == []


# Half of the lanes count in a loop that the others skip; all add up two registers that the loop writes, one of which
# only it reads.
DIVERGENT = """
    ld.global.u32 %r10, [%rd4];
    mov.u32 %r11, 100;
    mov.u32 %r12, 7;
    mov.u32 %r14, 0;
    and.b32 %r13, %r1, 1;
    setp.eq.u32 %p1, %r13, 0;
    @%p1 bra JOIN;
LOOP:
    mul.lo.u32 %r15, %r14, 3;
    add.u32 %r11, %r11, %r15;
    mov.u32 %r12, 9;
    add.u32 %r14, %r14, 1;
    setp.lt.u32 %p2, %r14, 5;
    @%p2 bra LOOP;
JOIN:
    add.u32 %r16, %r11, %r12;
    add.u32 %r16, %r16, %r10;
    st.global.u32 [%rd5], %r16;
"""


@pytest.mark.parametrize("options", SCHEDULES)
def test_lanes_elsewhere_keep_the_registers_that_they_read(options: Options) -> None:
    words = np.arange(32, dtype=np.uint32)
    out, _ = run(DIVERGENT, words, options=options)
    odd = words & 1 == 1
    assert np.array_equal(out[:32], np.where(odd, 100 + 3 * (0 + 1 + 2 + 3 + 4) + 9, 107) + words)


def test_liveness_follows_branches_and_loops() -> None:
    body = DIVERGENT.replace("ld.global.u32 %r10, [%rd4];", "").replace("st.global.u32 [%rd5], %r16;", "")
    text = ".version 8.0 .target sm_90a .address_size 64 .visible .entry k() { .reg .pred %p<9>; .reg .b32 %r<40>; "
    kernel = load(text + body.replace("[%rd4]", "").replace("%r10", "%r1") + " ret; }").kernel("k")
    names = [item.text for item in kernel.entry.instructions]
    loop, join = names.index("mul.lo.u32 %r15, %r14, 3"), names.index("add.u32 %r16, %r11, %r12")

    def live(at: int) -> set[int]:
        return {slot for slot in range(len(kernel.entry.registers)) if kernel.live[at] >> slot & 1}

    def register(name: str) -> int:
        operands = (operand for item in kernel.entry.instructions for operand in item.operands)
        return next(operand.index for operand in operands if isinstance(operand, Reg) and operand.name == name)

    assert live(loop) == {register(f"%r{k}") for k in (1, 11, 14)}
    assert live(join) == {register(f"%r{k}") for k in (1, 11, 12)}
    assert live(len(names)) == set()


def test_tables_take_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform, "_FULL", len(uniform.KNOWN) + 2)
    arrays = [uniform.TABLES["u4"][value] for value in range(7_654_321, 7_654_325)]
    assert [id(array) in uniform.KNOWN for array in arrays] == [True, True, False, False]
    assert all((array == value).all() for value, array in enumerate(arrays, 7_654_321))
    uniform.begin()
    assert set(uniform.KNOWN.values()) == {0, 1}
