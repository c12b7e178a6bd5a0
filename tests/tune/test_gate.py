"""Faults that a norm over the whole output would hide must be found and placed."""

import pytest
import torch

from moegen.tune.gate import Tolerance, gate_tolerance, judge

TOLERANCE = gate_tolerance(w4a4=False, intermediate=48)
ROWS, HIDDEN = 257, 80


@pytest.fixture
def reference() -> torch.Tensor:
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(7))


def spoil(reference: torch.Tensor, row: int, column: int, value: float) -> torch.Tensor:
    output = reference.clone()
    output[row, column] = value
    return output


def test_rounded_output_passes(reference: torch.Tensor) -> None:
    verdict = judge(reference.to(torch.bfloat16), reference, TOLERANCE, seed=7)
    assert verdict.passed
    assert 0 < verdict.layer_error < 3e-3
    assert verdict.row is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_non_finite_element_fails_and_is_named(reference: torch.Tensor, value: float) -> None:
    verdict = judge(spoil(reference, 200, 37, value), reference, TOLERANCE, seed=7)
    assert not verdict.passed
    assert (verdict.row, verdict.block, verdict.column) == (200, 2, 37)
    assert "seed 7, row 200, block 2, column 37" in verdict.reason


def test_one_wrong_row_of_many_fails(reference: torch.Tensor) -> None:
    output = reference.clone()
    output[101] = reference[102]
    verdict = judge(output, reference, Tolerance(layer=1.0, row=2e-2, element=5e-2), seed=3)
    assert not verdict.passed
    assert verdict.row == 101
    assert "1 of 257 rows" in verdict.reason


def test_one_wrong_block_of_one_row_fails(reference: torch.Tensor) -> None:
    output = reference.clone()
    output[5, 64:80] = 0
    verdict = judge(output, reference, TOLERANCE, seed=3)
    assert (verdict.passed, verdict.row, verdict.block) == (False, 5, 4)


def test_small_error_everywhere_fails_on_the_layer_bound(reference: torch.Tensor) -> None:
    verdict = judge(reference * 1.01, reference, TOLERANCE, seed=3)
    assert not verdict.passed
    assert "whole output" in verdict.reason


def test_row_without_local_expert_must_be_exactly_zero(reference: torch.Tensor) -> None:
    reference[9] = 0
    assert judge(reference.clone(), reference, TOLERANCE, seed=3).passed
    verdict = judge(spoil(reference, 9, 1, 1e-30), reference, TOLERANCE, seed=3)
    assert (verdict.passed, verdict.row) == (False, 9)


def test_wrong_shape_fails(reference: torch.Tensor) -> None:
    assert "shape (256, 80)" in judge(reference[:-1], reference, TOLERANCE, seed=3).reason


def test_no_token_passes() -> None:
    assert judge(torch.empty(0, 80), torch.empty(0, 80), TOLERANCE, seed=3).passed


def test_quantised_activations_get_room_for_one_step_only() -> None:
    loose, tight = gate_tolerance(w4a4=True, intermediate=48), gate_tolerance(w4a4=True, intermediate=4096)
    assert loose.row == pytest.approx(48**-0.5)
    assert tight.row == 2e-2
    assert loose.layer == tight.layer == 5e-3
