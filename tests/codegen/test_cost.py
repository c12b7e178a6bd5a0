"""Bytes, flops and the roofline, against numbers worked out by hand for the quickstart's sizes."""

import math
from dataclasses import replace

import pytest
from codegen.specs import W4A16, spec

from moegen.codegen.catalogs.sm90_forms import LADDER
from moegen.codegen.catalogs.sm90_time import gemm_us, tiles_of
from moegen.codegen.cost import (
    fp4_bytes,
    gemm_bytes,
    gemm_flops,
    roofline_us,
    stream_bytes,
    wave_occupancy,
    weight_bytes,
)
from moegen.codegen.load import Load, expected_load
from moegen.codegen.pipelines import Shape, pipeline_ops
from moegen.core.devices import H200
from moegen.core.enums import CombineMode, Epilogue, OpKind
from moegen.core.ops import OpSpec

LOAD = Load(tokens=16, rows=48, tiles=20.0, hit_experts=9.0)


def ops(epilogue: Epilogue, combine: CombineMode = CombineMode.ORDERED, **changes: object) -> dict[OpKind, OpSpec]:
    """The last op of each kind of a pipeline with H 256, I 160, row tile 4."""
    chain = pipeline_ops(spec(**changes), Shape(epilogue=epilogue, combine=combine, row_tile=4))
    return {op.kind: op for op in chain}


def test_weights_of_one_expert() -> None:
    """gemm1: 320 rows of 128 B codes and 16 B scales; gemm2: 256 rows of 80 B and 10 B."""
    chain = ops(Epilogue.COMPACT)
    assert weight_bytes(chain[OpKind.GEMM1]) == 320 * 144
    assert weight_bytes(chain[OpKind.GEMM2]) == 256 * 90
    assert fp4_bytes(80) == 48 + 5


@pytest.mark.parametrize(
    ("epilogue", "written"), [(Epilogue.INTERLEAVED, 640), (Epilogue.COMPACT, 320), (Epilogue.FUSED_FP4, 90)]
)
def test_gemm1_moves_hit_weights_and_what_its_mode_writes(epilogue: Epilogue, written: int) -> None:
    assert gemm_bytes(ops(epilogue)[OpKind.GEMM1], LOAD) == 9 * 320 * 144 + 48 * (144 + written)


def test_gemm2_moves_more_when_it_combines_in_fp32() -> None:
    plain = gemm_bytes(ops(Epilogue.COMPACT)[OpKind.GEMM2], LOAD)
    fused = gemm_bytes(ops(Epilogue.COMPACT, CombineMode.ATOMIC)[OpKind.GEMM2], LOAD)
    assert plain == 9 * 256 * 90 + 48 * (90 + 512)
    assert fused - plain == 48 * 512


def test_w4a16_rows_are_two_bytes_an_element() -> None:
    chain = ops(Epilogue.COMPACT, **W4A16)
    assert gemm_bytes(chain[OpKind.GEMM1], LOAD) == 9 * 320 * 144 + 48 * (512 + 320)


def test_flops_count_whole_tiles() -> None:
    assert gemm_flops(ops(Epilogue.COMPACT)[OpKind.GEMM1], LOAD) == 2 * 20 * 4 * 320 * 256


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (OpKind.QUANTIZE, 48 * (320 + 90)),
        (OpKind.DEINTERLEAVE_QUANTIZE, 48 * (640 + 90)),
        (OpKind.COMBINE, 48 * 512 + 16 * 512),
        (OpKind.ROUTE, 48 * 24),
    ],
)
def test_streams(kind: OpKind, expected: int) -> None:
    mode = Epilogue.INTERLEAVED if kind is OpKind.DEINTERLEAVE_QUANTIZE else Epilogue.COMPACT
    assert stream_bytes(ops(mode)[kind], LOAD) == expected


def test_roofline_is_the_longer_of_the_two_plus_a_launch() -> None:
    device = replace(H200, read_bytes_s=1e12, flops_s=1e15, launch_us=2.0)
    assert roofline_us(device, 1e9, 0.0) == pytest.approx(1002.0)
    assert roofline_us(device, 1e6, 1e12) == pytest.approx(1002.0)
    assert roofline_us(device, 1e6, 1e12, occupancy=0.5) == pytest.approx(2002.0)


@pytest.mark.parametrize(
    ("tasks", "slots", "expected"), [(132, 132, 1.0), (133, 132, 133 / 264), (1, 132, 1 / 132), (0, 8, 1.0)]
)
def test_a_last_partial_wave_wastes_the_rest(tasks: float, slots: int, expected: float) -> None:
    assert wave_occupancy(tasks, slots) == pytest.approx(expected)


@pytest.mark.parametrize(("rows", "width"), [(3.0, 8), (60.0, 64), (128.0, 128), (120.0, 64), (500.0, 152)])
def test_tiles_of_an_expert_are_those_of_poisson_rows(rows: float, width: int) -> None:
    """Against the sum over the distribution; experts without a row are not among those modelled."""
    terms = {n: math.exp(n * math.log(rows) - rows - math.lgamma(n + 1)) for n in range(1, int(4 * rows) + 40)}
    exact = sum(p * -(-n // width) for n, p in terms.items()) / sum(terms.values())
    assert tiles_of(rows, width) == pytest.approx(exact, rel=0.03)


def test_a_ladder_that_ends_at_the_mean_is_modelled_slower_than_one_that_ends_beyond() -> None:
    op = replace(ops(Epilogue.COMPACT, **W4A16)[OpKind.GEMM1], hidden=2048, intermediate=768, experts=128, row_tile=8)
    load = expected_load(2048, 128, 8, 8)
    at_mean, beyond = (
        gemm_us(op, LADDER.make(ladder=ladder, warpgroups=4, tiles=1, blocks=1), H200, load)
        for ladder in ("n64_96_128", "n136_152")
    )
    assert beyond < at_mean
