"""Joined instructions give what they give one by one, over every scalar opcode that the GPU comparison covers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ptx.h200_proof import scalar
from moegen.ptx import load
from moegen.ptx.dtypes import LANES
from moegen.ptx.emit import Pure
from moegen.ptx.fuse import joined_lines
from moegen.ptx.kernel import Kernel
from moegen.ptx.truth_table import logic, permutation

ROWS = 3
CASES = {case.name: case for case in scalar.cases()}


def kernel_of(body: str) -> str:
    head = ".version 8.0 .target sm_90a .address_size 64 .visible .entry k() "
    return head + "{ .reg .pred %p<9>; .reg .b32 %r<40>; .reg .f32 %f<40>; " + body + " ret; }"


def _random(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
    raw = rng.integers(0, 256, ROWS * LANES * dtype.itemsize, np.uint8)
    return (raw & 1).astype(np.bool_).reshape(ROWS, -1) if dtype.kind == "b" else raw.view(dtype).reshape(ROWS, -1)


@pytest.mark.parametrize("name", CASES)
def test_an_expression_of_many_registers_is_that_of_each(name: str) -> None:
    """Every expression of the case's kernel, of [3, 32] arrays and of their rows."""
    case = CASES[name]
    kernel = load(case.text, name).kernel(case.entry)
    rng = np.random.default_rng(1)
    widths = [np.dtype(kind.store) for kind in kernel.entry.registers]
    widths += [np.dtype(key[-1]) for key in kernel.slots.keys]
    registers = [_random(rng, width) for width in widths]
    constants = [k for k, key in enumerate(kernel.slots.keys, len(kernel.entry.registers)) if key[0] == "const"]
    for slot in constants:
        registers[slot][:] = kernel.slots.keys[slot - len(kernel.entry.registers)][1]
    checked = 0
    with np.errstate(all="ignore"):
        for lowered in kernel.lowered:
            if not isinstance(lowered, Pure) or len(lowered.outs) != 1 or lowered.setup:
                continue
            code = compile(lowered.outs[0][1], name, "eval")
            wide = eval(code, kernel.namespace | {"R": registers})
            for row in range(ROWS):
                alone = eval(code, kernel.namespace | {"R": [register[row] for register in registers]})
                assert wide[row].dtype == alone.dtype
                assert wide[row].tobytes() == np.ascontiguousarray(alone).tobytes()
            checked += 1
    assert checked


def run_lines(kernel: Kernel, lines: list[str], registers: list[np.ndarray]) -> list[np.ndarray]:
    scope = kernel.namespace | {"R": list(registers)}
    with np.errstate(all="ignore"):
        exec("\n".join(lines), scope)
    return scope["R"]


OPERATIONS = (
    "add.u32 %r{d}, %r{a}, %r{b};",
    "mul.lo.u32 %r{d}, %r{a}, %r{b};",
    "add.f32 %f{d}, %f{a}, %f{b};",
    "fma.rn.f32 %f{d}, %f{a}, %f{b}, %f{d};",
    "cvt.rn.bf16x2.f32 %r{d}, %f{a}, %f{b};",
    "prmt.b32 %r{d}, %r{a}, %r{b}, 0x5410;",
    "mov.b32 %r{d}, %f{a};",
    "@%p1 xor.b32 %r{d}, %r{a}, %r{b};",
    "setp.lt.u32 %p1, %r{a}, %r{b};",
)


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), *[st.integers(1, 12)] * 3), min_size=4, max_size=120))
def test_a_run_gives_what_its_instructions_give_in_order(program: list[tuple[str, int, int, int]]) -> None:
    """Any mixture of dependencies: results of a joined run equal those of its text, instruction by instruction."""
    text = "".join(line.format(d=d, a=a, b=b) for line, d, a, b in program)
    kernel = load(kernel_of(text)).kernel("k")
    entry = kernel.entry
    lowered = [one for one in kernel.lowered if isinstance(one, Pure)]
    items = entry.instructions[: len(lowered)]
    rng = np.random.default_rng(len(program))
    start = [_random(rng, np.dtype(kind.store))[0] for kind in entry.registers]
    start += [np.full(LANES, key[1], key[-1]) for key in kernel.slots.keys]
    joined = run_lines(kernel, joined_lines(lowered, items, entry.registers, kernel.slots), start)
    stepwise = start
    for one, item in zip(lowered, items, strict=True):
        stepwise = run_lines(kernel, joined_lines([one], [item], entry.registers, kernel.slots), stepwise)
    assert [r.tobytes() for r in joined] == [r.tobytes() for r in stepwise]


def test_unrolled_instructions_are_joined() -> None:
    text = "".join(f"mul.f32 %f{k}, %f{k + 16}, %f{k + 16};" for k in range(1, 9))
    kernel = load(kernel_of(text)).kernel("k")
    lowered = [one for one in kernel.lowered if isinstance(one, Pure)]
    lines = joined_lines(lowered, kernel.entry.instructions[:8], kernel.entry.registers, kernel.slots)
    assert len(lines) == 3
    assert "reshape(8, 32)" in lines[0]


@pytest.mark.parametrize("table", range(256))
def test_logic_functions_follow_their_truth_table(table: int) -> None:
    a, b, c = np.uint8(0xF0), np.uint8(0xCC), np.uint8(0xAA)
    assert int(eval(logic(table, "a", "b", "c"), {"a": a, "b": b, "c": c})) & 0xFF == table


@given(st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_constant_permutations_pick_their_bytes(selector: int, a: int, b: int) -> None:
    expression = permutation(selector, "a", "b")
    if selector & 0x8888:
        assert expression is None
        return
    assert expression is not None
    pool = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    wanted = bytes(pool[selector >> 4 * k & 7] for k in range(4))
    names = {"a": np.full(1, a, np.uint32), "b": np.full(1, b, np.uint32), "U4": np.dtype("u4")}
    assert eval(expression, names).tobytes() == wanted
