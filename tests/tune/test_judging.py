"""Few tokens have a reference; the others are held against a fellow, and the reference says which of two is wrong."""

from collections.abc import Callable

import pytest
import torch

from moegen.tune.gate import gate_tolerance
from moegen.tune.inputs import TokenInputs
from moegen.tune.judging import REFERENCE_TOKENS, Jury

TOKENS, HIDDEN = 101, 80


def truth(x: torch.Tensor) -> torch.Tensor:
    return x.roll(1, -1) * 3 + x


class Bench:
    """A jury over tokens whose output is :func:`truth`, and the number of tokens that it asked the reference for."""

    def __init__(self, whole: bool = False) -> None:
        self.asked: list[int] = []
        x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(3))
        ids = torch.zeros(TOKENS, 1, dtype=torch.int64)
        self.inputs = TokenInputs(x=x, topk_ids=ids, topk_weights=torch.ones(TOKENS, 1), seed=3)
        tolerance = gate_tolerance(w4a4=False, intermediate=48)
        self.jury = Jury(inputs=self.inputs, reference=self._reference, tolerance=tolerance, whole=whole)

    def _reference(self, some: TokenInputs) -> torch.Tensor:
        self.asked.append(len(some.x))
        return truth(some.x)

    def output(self, change: Callable[[torch.Tensor], object] = lambda _: None) -> torch.Tensor:
        made = truth(self.inputs.x).clone()
        change(made)
        return made


@pytest.fixture
def bench() -> Bench:
    return Bench()


def spoil(row: int, value: float | None = None) -> Callable[[torch.Tensor], object]:
    """Another row's values, or one element, in place of a row's own."""

    def change(output: torch.Tensor) -> None:
        if value is None:
            output[row] = output[row - 1]
        else:
            output[row, 17] = value

    return change


def test_few_tokens_are_computed_and_good_pipelines_pass(bench: Bench) -> None:
    assert bench.asked == [REFERENCE_TOKENS]
    for name in ("a", "b", "c"):
        ruling = bench.jury.rule(name, bench.output().to(torch.bfloat16).float())
        assert ruling.verdict.passed
        assert not ruling.withdrawn
    assert bench.asked == [REFERENCE_TOKENS]


def test_a_token_of_the_sample_is_named_by_its_place_in_the_batch(bench: Bench) -> None:
    verdict = bench.jury.rule("a", bench.output(spoil(TOKENS - 1))).verdict
    assert (verdict.passed, verdict.row) == (False, TOKENS - 1)
    assert f"token {TOKENS - 1}" in verdict.reason


def test_a_wrong_token_outside_the_sample_is_found_by_a_fellow(bench: Bench) -> None:
    assert bench.jury.rule("good", bench.output()).verdict.passed
    ruling = bench.jury.rule("bad", bench.output(spoil(40)))
    assert (ruling.verdict.passed, ruling.verdict.row, ruling.withdrawn) == (False, 40, {})


def test_the_first_pipeline_is_withdrawn_when_it_was_the_wrong_one(bench: Bench) -> None:
    assert bench.jury.rule("bad", bench.output(spoil(40))).verdict.passed
    ruling = bench.jury.rule("good", bench.output())
    assert ruling.verdict.passed
    assert ruling.withdrawn.keys() == {"bad"}
    assert "token 40" in ruling.withdrawn["bad"]
    assert not bench.jury.rule("bad again", bench.output(spoil(40))).verdict.passed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_that_is_not_finite_passes_even_first(bench: Bench, value: float) -> None:
    verdict = bench.jury.rule("a", bench.output(spoil(40, value))).verdict
    assert (verdict.passed, verdict.row, verdict.column) == (False, 40, 17)


def test_where_tokens_depend_on_each_other_the_reference_sees_all() -> None:
    bench = Bench(whole=True)
    assert bench.asked == [TOKENS]
    assert not bench.jury.rule("a", bench.output(spoil(40))).verdict.passed
