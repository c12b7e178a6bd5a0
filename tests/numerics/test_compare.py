"""The report on two quantised tensors."""

import pytest
import torch

from moegen.core.enums import Contract
from moegen.core.errors import TensorError
from moegen.numerics import Quantized, quantize_rows
from moegen.numerics.compare import compare_codes


@pytest.fixture
def rows() -> Quantized:
    x = torch.randn(5, 80, generator=torch.Generator().manual_seed(0))
    return quantize_rows(x, torch.ones(2), Contract.TE)


def changed(rows: Quantized, row: int, byte: int, by: int) -> Quantized:
    codes = rows.codes.clone()
    codes[row, byte] = by
    return Quantized(codes=codes, scales=rows.scales)


def test_equal_tensors_are_equal(rows):
    report = compare_codes(rows, rows)
    assert report.equal
    assert report.within(0.0)
    assert str(report) == "400 codes and 25 scales equal"


def test_the_first_differing_element_is_named(rows):
    rows.codes[3, 9] = 0x21
    report = compare_codes(changed(rows, 3, 9, 0x31), rows, "seed 7")
    assert report.first == "seed 7: row 3, block 1, element 3: code 0x3, expected 0x2"
    assert (report.codes, report.scales, report.widest) == (1, 0, 1)
    assert report.within(1 / 400)
    assert not report.within(1 / 401)


def test_two_steps_are_one_too_many(rows):
    rows.codes[0, 0] = 0x01
    report = compare_codes(changed(rows, 0, 0, 0x09), rows)
    assert report.widest == 2
    assert not report.within(1.0)


def test_a_differing_scale_is_named(rows):
    scales = rows.scales.clone()
    scales[2, 4] = 0x11
    report = compare_codes(Quantized(codes=rows.codes, scales=scales), rows)
    assert "row 2, block 4: scale 0x11" in str(report)


def test_other_shapes_are_refused(rows):
    with pytest.raises(TensorError, match="expected"):
        compare_codes(Quantized(codes=rows.codes[:4], scales=rows.scales[:4]), rows)


def test_no_rows_are_equal():
    empty = Quantized(codes=torch.zeros(0, 16, dtype=torch.uint8), scales=torch.zeros(0, 2, dtype=torch.uint8))
    assert compare_codes(empty, empty).equal
