"""Which schedules the benchmark tries at which token count, per shape. All of them are built before a run."""

from __future__ import annotations

from benchmarks.hopper.ours import Config, Geometry

SHAPES = {
    "dsv3": Geometry(experts=256, top_k=8, hidden=7168, intermediate=2048),
    "qwen3": Geometry(experts=128, top_k=8, hidden=2048, intermediate=768),
    "gptoss": Geometry(experts=128, top_k=4, hidden=2880, intermediate=2880),
}
Schedule = tuple[str, int, int]
"""Ladder, consumer warpgroups, m64 tiles of each: the fields of the sm_90a ladder family."""

DECODE: tuple[Schedule, ...] = (("n8", 4, 1), ("n8", 2, 1), ("n8", 4, 2))
SMALL: tuple[Schedule, ...] = (("n8_16_32", 4, 1), ("n8_16_32", 4, 2))
SKEWED: tuple[Schedule, ...] = (("n8_16_32_64_128", 4, 1), ("n8_16_24_32_64_128", 4, 2))
MIDDLE: tuple[Schedule, ...] = (("n16_32_48_64_96_128", 4, 1), ("n16_24_32_48_64_96_128", 4, 2))
LARGE: tuple[Schedule, ...] = (("n32_48_64_80_96_128_192_256", 4, 1),)
HUGE: tuple[Schedule, ...] = (("n96_128_144_160_192_208_224_240_256", 4, 1), ("n128_256", 4, 1))
ODD: tuple[Schedule, ...] = (("n8_16_32", 5, 1), ("n8_16_32", 3, 1))

BY_TOKENS: dict[int, tuple[Schedule, ...]] = {
    1: DECODE,
    8: (DECODE[0], DECODE[2]),
    32: (*SMALL, SKEWED[0]),
    128: (*SMALL, *SKEWED),
    512: (*SKEWED, *MIDDLE),
    2048: (*MIDDLE, *LARGE),
    8192: (*LARGE, *HUGE),
}
GATHERING: dict[int, tuple[Schedule, ...]] = {
    1: (DECODE[0], DECODE[1]),
    8: (DECODE[0],),
    32: (SMALL[0],),
    128: (SMALL[0],),
}


def schedules(shape: str, tokens: int) -> tuple[Schedule, ...]:
    """Ladders to try for either gemm."""
    odd = ODD if shape == "gptoss" and tokens <= 512 else ()
    return (*BY_TOKENS[tokens], *odd)


def configs(shape: str, tokens: int) -> list[Config]:
    """Every ladder once, for both gemms alike; then the gathering forms."""
    plain = [Config(gemm1=schedule, gemm2=schedule) for schedule in schedules(shape, tokens)]
    gathers = [
        Config(gemm1=schedule, gemm2=schedule, gather=True) for schedule in GATHERING.get(tokens, ())
    ]
    return plain + gathers
