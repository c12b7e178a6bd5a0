"""Arrays of numbered states against dictionaries, and sums of products that f32 keeps exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moegen.ptx import formats, numerics, states
from moegen.ptx.states import Numbered

SIZE = 64
ACCESS = st.one_of(
    st.tuples(st.just("range"), st.integers(0, SIZE - 1), st.integers(1, 20)),
    st.tuples(st.just("lanes"), st.integers(0, SIZE - 1), st.integers(1, 7)),
    st.tuples(st.just("chunks"), st.integers(0, SIZE // 4 - 1), st.integers(1, 4)),
    st.tuples(st.just("box"), st.integers(0, 15), st.integers(1, 3)),
)


def touch(numbered: Numbered, kind: str, first: int, count: int) -> tuple[states.Touched, list[int]]:
    """An access, and its granules."""
    if kind == "range":
        stop = min(first + count, SIZE)
        return numbered.at(slice(first, stop)), list(range(first, stop))
    if kind == "lanes":
        at = [(first + 5 * k) % SIZE for k in range(count)]
        return numbered.at(np.array(at)), at
    if kind == "chunks":
        chunks = [(first + 3 * k) % (SIZE // 4) for k in range(count)]
        return numbered.chunks(np.array(chunks)), [4 * chunk + k for chunk in chunks for k in range(4)]
    return numbered.box(first, (count, 2, 3), (12, 8, 1)), [
        first + 12 * i + 8 * j + k for i in range(count) for j in range(2) for k in range(3)
    ]


@given(st.lists(st.tuples(ACCESS, st.booleans()), max_size=40))
def test_granules_keep_their_states(accesses: list[tuple[tuple[str, int, int], bool]]) -> None:
    """Fills and replacements through every kind of access, with unused states dropped after every few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "_MANY", 3)
        numbered: Numbered[str] = Numbered(SIZE, "untouched")
    wanted = ["untouched"] * SIZE
    for k, (access, fill) in enumerate(accesses):
        touched, granules = touch(numbered, *access)
        assert [numbered.states[n] for n in touched.numbers.reshape(-1).tolist()] == [wanted[g] for g in granules]
        assert touched.distinct == sorted(set(touched.numbers.reshape(-1).tolist()))
        if access[0] == "box":
            number = touched.distinct[-1]
            assert touched.place(number) == granules[touched.numbers.reshape(-1).tolist().index(number)]
        if fill:
            touched.fill(numbered.add(f"fill {k}"))
            for granule in granules:
                wanted[granule] = f"fill {k}"
        else:
            touched.replace([numbered.add(f"{numbered.states[n]}, {k}") for n in touched.distinct])
            for granule in set(granules):
                wanted[granule] = f"{wanted[granule]}, {k}"
    assert [numbered.states[n] for n in numbered.numbers.tolist()] == wanted


@pytest.mark.parametrize("name", ["ue4m3", "ue8m0"])
@given(st.lists(st.integers(0, 255), min_size=1, max_size=8))
def test_scales_are_multiples_of_a_unit(name: str, codes: list[int]) -> None:
    values = formats.table(name)[np.array(codes)]
    spread = formats.spread(np.array(codes, np.uint8), name)
    if spread < 1 << 32:
        assert np.isfinite(values).all()
        if values.max() > 0:
            unit = values.max() / spread  # a power of two
            assert np.frexp(unit)[0] == 0.5
            assert (np.mod(values / unit, 1) == 0).all()
    elif name == "ue4m3":
        assert max(codes) >= 0x7F  # NaN, or a sign bit that is set
    else:
        assert np.isnan(values).any() or values.max() > 2.0**27 or values.min() < 2.0**-27


@pytest.mark.parametrize(("low", "high"), [(0x38, 0x40), (0x30, 0x38), (0x38, 0x3F), (0, 0x0F)])
def test_products_of_narrow_scales_are_exact_in_f32(low: int, high: int) -> None:
    rng = np.random.default_rng(high)
    codes = rng.integers(low, high + 1, (2, 128, 4)).astype(np.uint8)
    assert 144 * 64 * formats.spread(codes[0], "ue4m3") * formats.spread(codes[1], "ue4m3") <= 1 << 24
    elements = formats.table32("e2m1")[rng.integers(0, 16, (2, 128, 64))]
    a, b = elements * formats.table32("ue4m3")[codes].repeat(16, axis=2)
    c = rng.standard_normal((128, 128)).astype(np.float32) * np.float32(1000)
    for accumulator in (None, c):
        single = numerics.accumulate_single(a, b, accumulator)
        assert single.tobytes() == numerics.accumulate_exact(a, b, accumulator).tobytes()
