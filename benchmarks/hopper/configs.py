"""Which schedules the benchmark tries at which token count, per shape. All of them are built before a run."""

from __future__ import annotations

from benchmarks.hopper.ours import Config, Geometry

SHAPES = {
    "dsv3": Geometry(experts=256, top_k=8, hidden=7168, intermediate=2048),
    "qwen3": Geometry(experts=128, top_k=8, hidden=2048, intermediate=768),
    "gptoss": Geometry(experts=128, top_k=4, hidden=2880, intermediate=2880),
}
Schedule = tuple[str, int, int, int]
"""Ladder, consumer warpgroups, m64 tiles of each, blocks a multiprocessor: the fields of the sm_90a ladder family."""

FINE: Schedule = ("n8", 1, 1, 4)
HALF: Schedule = ("n8", 2, 1, 2)
WHOLE: Schedule = ("n8", 4, 1, 1)
SMALL: Schedule = ("n8_16_32", 4, 1, 1)
DOUBLE: Schedule = ("n8_32", 4, 2, 1)
SKEWED: Schedule = ("n8_16_32_64_128", 4, 1, 1)
SIXTEEN: Schedule = ("n16", 4, 1, 1)
PAIR: Schedule = ("n16_64", 4, 1, 1)
MIDDLE: Schedule = ("n32_64", 4, 1, 1)
BROAD: Schedule = ("n48_128", 4, 1, 1)
STEPS: Schedule = ("n16_32_48_64_96_128", 4, 1, 1)
LARGE: Schedule = ("n64_128", 4, 1, 1)
LADDER: Schedule = ("n64_80_96_128_256", 4, 1, 1)
HUGE: Schedule = ("n128_256", 4, 1, 1)
FULL: Schedule = ("n96_128_144_160_192_208_224_240_256", 4, 1, 1)

BY_TOKENS: dict[str, dict[int, tuple[Schedule, ...]]] = {
    "dsv3": {
        1: (FINE, HALF, WHOLE),
        8: (FINE, HALF, WHOLE),
        32: (SMALL, DOUBLE, SKEWED),
        128: (SMALL, DOUBLE, SKEWED),
        512: (SKEWED, MIDDLE, STEPS),
        2048: (STEPS, LARGE, LADDER),
        8192: (LADDER, HUGE, FULL),
    },
    "qwen3": {
        1: (FINE, HALF, WHOLE),
        8: (FINE, HALF, WHOLE),
        32: (HALF, WHOLE, SMALL, SIXTEEN),
        128: (SMALL, SIXTEEN, PAIR),
        512: (MIDDLE, BROAD, STEPS, PAIR),
        2048: (STEPS, BROAD, LADDER),
        8192: (LADDER, HUGE, FULL),
    },
    "gptoss": {
        1: (FINE, HALF, WHOLE),
        8: (FINE, HALF, WHOLE),
        32: (HALF, SMALL, ("n8_16_32", 5, 1, 1)),
        128: (SMALL, SKEWED, ("n8_16_32", 5, 1, 1)),
        512: (SKEWED, STEPS, PAIR),
        2048: (STEPS, LADDER),
        8192: (LADDER, HUGE, FULL),
    },
}
GATHERING: dict[int, tuple[Schedule, ...]] = {1: (FINE, HALF), 8: (HALF, WHOLE), 32: (SMALL,), 128: (SMALL,)}


def configs(shape: str, tokens: int) -> list[Config]:
    """Every ladder once, for both gemms alike; then the gathering forms."""
    plain = [Config(gemm1=schedule, gemm2=schedule) for schedule in BY_TOKENS[shape][tokens]]
    gathers = [Config(gemm1=schedule, gemm2=schedule, gather=True) for schedule in GATHERING.get(tokens, ())]
    return plain + gathers
