"""Rounding and decoding of every format against ml_dtypes, exhaustively where that is possible."""

import ml_dtypes
import numpy as np
import pytest

from moegen.ptx import formats

FORMATS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
}


@pytest.mark.parametrize("name", FORMATS)
def test_tables(name: str) -> None:
    codes = np.arange(1 << formats.FORMATS[name].bits, dtype=np.uint8)
    want = codes.view(FORMATS[name]).astype(np.float64)
    assert np.array_equal(formats.table(name), want, equal_nan=True)


def test_scale_tables() -> None:
    assert np.array_equal(
        formats.table("ue8m0"),
        np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64),
        equal_nan=True,
    )
    assert np.array_equal(formats.table("ue4m3")[128:], formats.table("e4m3")[:128], equal_nan=True)


def _halves() -> np.ndarray:
    return np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16).astype(np.float64)


@pytest.mark.parametrize("name", FORMATS)
def test_nearest_even_of_every_half(name: str) -> None:
    x = _halves()
    x = x[np.isfinite(x)]
    fmt = formats.FORMATS[name]
    got = formats.table(name)[formats.round_f64(x, name, satfinite=True)]
    want = np.clip(x, -fmt.largest, fmt.largest).astype(FORMATS[name]).astype(np.float64)
    assert np.array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(x))


@pytest.mark.parametrize(
    ("name", "dtype", "bits"), [("f16", np.float16, np.uint16), ("bf16", ml_dtypes.bfloat16, np.uint16)]
)
def test_nearest_even_of_floats(name: str, dtype: type, bits: type) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, 200_000, np.uint64).astype(np.uint32).view(np.float32)
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        want = x.astype(dtype).view(bits)
    assert np.array_equal(formats.round_f64(x.astype(np.float64), name).astype(np.uint16), want)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp", "rn"])
def test_directed_rounding_brackets_the_value(mode: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(20_000) * np.exp2(rng.integers(-140, 120, 20_000))
    got = formats.round_f64(x, "f32", mode).view(np.float32).astype(np.float64)
    up = np.nextafter(got.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    down = np.nextafter(got.astype(np.float32), np.float32(-np.inf)).astype(np.float64)
    if mode == "rm":
        assert ((got <= x) & (x < up)).all()
    elif mode == "rp":
        assert ((got >= x) & (x > down)).all()
    elif mode == "rz":
        assert (np.abs(got) <= np.abs(x)).all()
        assert (np.abs(x) < np.maximum(np.abs(up), np.abs(down))).all()
    else:
        assert np.array_equal(got, x.astype(np.float32).astype(np.float64))


def test_known_codes() -> None:
    x = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 1e9, -0.25, np.nan, np.inf, -np.inf])
    assert formats.round_f64(x, "e2m1", satfinite=True).tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 7, 8, 7, 7, 15]
    y = np.array([247.9, 248, 250, 449, 1e9, 0.001, -0.0, np.nan, np.inf])
    assert formats.round_f64(y, "e4m3", satfinite=True).tolist() == [
        0x77,
        0x78,
        0x78,
        0x7E,
        0x7E,
        0x01,
        0x80,
        0x7F,
        0x7E,
    ]
    assert formats.round_f64(np.array([-3.0, 3.0, np.nan]), "e4m3", satfinite=True, relu=True).tolist() == [
        0,
        0x44,
        0x7F,
    ]


def test_overflow_by_mode() -> None:
    x = np.array([1e39, -1e39])
    assert formats.round_f64(x, "f32", "rn").tolist() == [0x7F800000, 0xFF800000]
    assert formats.round_f64(x, "f32", "rz").tolist() == [0x7F7FFFFF, 0xFF7FFFFF]
    assert formats.round_f64(x, "f32", "rm").tolist() == [0x7F7FFFFF, 0xFF800000]
    assert formats.round_f64(x, "f32", "rp").tolist() == [0x7F800000, 0xFF7FFFFF]
    assert formats.round_f64(np.array([65520.0]), "f16").tolist() == [0x7C00]
    assert formats.round_f64(np.array([65519.9]), "f16").tolist() == [0x7BFF]
