"""Which schedules the benchmark tries at which token count, per shape. All of them are built before a run."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.hopper.ours import Config, Geometry
from moegen.core.enums import Epilogue

SHAPES = {
    "dsv3": Geometry(experts=256, top_k=8, hidden=7168, intermediate=2048),
    "qwen3": Geometry(experts=128, top_k=8, hidden=2048, intermediate=768),
    "gptoss": Geometry(experts=128, top_k=4, hidden=2880, intermediate=2880),
    "dsv4f": Geometry(experts=256, top_k=6, hidden=4096, intermediate=2048),
}
FULL_FORM = "gptoss"
"""The shape whose model has biases and a clamped activation: timed in that form too, which no peer here computes."""
Schedule = tuple[str, int, int, int, bool]
"""Ladder, consumer warpgroups, m64 tiles of each, blocks a multiprocessor: the fields of the sm_90a ladder family; and
whether blocks claim their items from a counter."""


def _one(ladder: str, warpgroups: int = 4, tiles: int = 1, blocks: int = 1, claims: bool = False) -> Schedule:
    return (ladder, warpgroups, tiles, blocks, claims)


FINE, HALF, WHOLE, FIVE = _one("n8", 1, 1, 4), _one("n8", 2, 1, 2), _one("n8"), _one("n8", 5)
SMALL, SMALL_FIVE = _one("n8_16_32"), _one("n8_16_32", 5)
SKEWED, SKEWED_CLAIMS = _one("n8_16_32_64_128"), _one("n8_16_32_64_128", claims=True)
WIDE_SKEW = _one("n16_32_48_64_80_96_112_128_144_152", claims=True)
#: Ladders around 64 or 128 rows an expert: steps of 8 where the counts lie, even shares of what exceeds the widest.
AROUND_64 = _one("n48_56_64_72_80_96", tiles=2)
AROUND_128 = _one("n120_128_136_144_152", claims=True)

FAST_FROM = 512
"""Token counts from which the fast activation class is timed beside the exact one: below, no difference shows."""
BY_TOKENS: dict[str, dict[int, tuple[Schedule, ...]]] = {
    "dsv3": {
        1: (HALF, WHOLE),
        8: (WHOLE,),
        32: (SMALL, WHOLE),
        128: (SMALL, SKEWED),
        512: (_one("n16_24_32", claims=True),),
        2048: (AROUND_64,),
        8192: (AROUND_128,),
    },
    "qwen3": {
        1: (FINE, HALF),
        8: (FINE, WHOLE),
        32: (WHOLE, HALF, _one("n16", 2, 1, 2)),
        128: (_one("n16"), _one("n16_64"), _one("n16", 2, 1, 2)),
        512: (_one("n40_64"),),
        2048: (_one("n136_152"),),
        8192: (_one("n128_136_144"),),
    },
    "gptoss": {
        1: (FINE, HALF),
        8: (FIVE, WHOLE),
        32: (FIVE, SMALL_FIVE),
        128: (_one("n8_16", 5), SMALL_FIVE),
        512: (_one("n16_24_32", 5), _one("n24_32", 5)),
        2048: (AROUND_64, _one("n56_64_72_80", tiles=2)),
        8192: (AROUND_128, _one("n120_128_136_144")),
    },
    "dsv4f": {
        1: (HALF, WHOLE),
        8: (WHOLE,),
        32: (SMALL, WHOLE),
        128: (SMALL, SKEWED),
        512: (SKEWED, _one("n16_24_32_64")),
        2048: (_one("n40_48_56_64", tiles=2), _one("n40_48_56_64"), WIDE_SKEW),
        8192: (_one("n88_96_104_112", claims=True), _one("n88_96_104_112", tiles=2, claims=True), WIDE_SKEW),
    },
}
GATHERING: dict[str, dict[int, tuple[Schedule, ...]]] = {
    "qwen3": {1: (_one("n8", 2),)},
    "gptoss": {},
    "dsv3": {},
    "dsv4f": {},
}
#: Ladders whose gemm1 gathers from tokens in the private column order: what is gained where each token goes to many
#: experts (dsv3, qwen3; nothing for gptoss, nothing below 512 tokens). Of qwen3's, the last is for skewed routing: few
#: widths, since each is a kernel whose start costs a good part of a tile.
ARRANGED: dict[str, dict[int, tuple[Schedule, ...]]] = {
    "dsv3": {
        512: (_one("n16_24_32", claims=True), SKEWED_CLAIMS),
        2048: (AROUND_64, WIDE_SKEW),
        8192: (AROUND_128, WIDE_SKEW),
    },
    "qwen3": {
        512: (_one("n40_48", tiles=2, claims=True), _one("n40_48", claims=True), _one("n16_40_88", claims=True)),
        2048: (_one("n136_152"), _one("n136_152", claims=True), _one("n48_96_144", claims=True)),
        8192: (_one("n128_136_144"), _one("n120_136_152", claims=True)),
    },
    "gptoss": {},
    "dsv4f": {
        512: (_one("n16_24_32", claims=True), SKEWED_CLAIMS),
        2048: (_one("n40_48_56_64", tiles=2), WIDE_SKEW),
        8192: (_one("n88_96_104_112", claims=True), WIDE_SKEW),
    },
}
#: Where the last items of both gemms are cut into parts as well: what is gained where an item is long (K = 2880).
EVEN = {("gptoss", 8), ("gptoss", 32), ("gptoss", 128)}
#: Token width, consumer warpgroups, weight tiles and slots of the kernel that computes the whole layer, by token count.
BLOCKS: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    1: ((8, 5, 1, 256), (8, 4, 1, 256), (8, 4, 2, 256)),
    8: ((8, 4, 2, 256),),
}


def route_of(slots: int) -> tuple[int, int]:
    """Threads and blocks of the routing cluster."""
    return (256, 1) if slots <= 1024 else (256, 8) if slots <= 8192 else (512, 8) if slots <= 32768 else (1024, 8)


def configs(shape: str, tokens: int, *, fast: bool = False) -> list[Config]:
    """Every ladder once, for both gemms alike; then the forms that gather; then the whole layer in one kernel."""
    route = route_of(tokens * SHAPES[shape].top_k)
    plain = [Config(gemm1=s, gemm2=s, route=route, fast=fast) for s in BY_TOKENS[shape][tokens]]
    gathering = GATHERING[shape].get(tokens, ())
    blocks = BLOCKS.get(tokens, ())
    forms = [Config(gemm1=s, gemm2=s, gather=True, route=route, fast=fast) for s in gathering]
    arranged = ARRANGED[shape].get(tokens, ())
    forms += [Config(gemm1=s, gemm2=s, arranged=True, route=route, fast=fast) for s in arranged]
    forms += [replace(plain[0], even=True)] if (shape, tokens) in EVEN else []
    return plain + forms + [replace(plain[0], block=block) for block in blocks]


def full_config(shape: str, tokens: int) -> Config | None:
    """The first ladder in the form with biases and a clamped activation; None for shapes without it."""
    return replace(configs(shape, tokens)[0], full=True) if shape == FULL_FORM else None


MODE_TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
MODES: dict[str, tuple[bool, Epilogue]] = {
    "w4a16 compact": (False, Epilogue.COMPACT),
    "w4a16 interleaved": (False, Epilogue.INTERLEAVED),
    "w4a4 compact": (True, Epilogue.COMPACT),
    "w4a4 interleaved": (True, Epilogue.INTERLEAVED),
    "w4a4 fused_fp4": (True, Epilogue.FUSED_FP4),
}


def mode_ladder(tokens: int) -> Schedule:
    """One ladder that every mode can use: token producers of W4A4 stop at 128."""
    return _one("n8_16" if tokens <= 32 else "n8_16_32_64" if tokens <= 512 else "n64_96_128")


def mode_configs(shape: str, tokens: int) -> dict[str, Config]:
    """Every mode with the same schedules."""
    schedule = mode_ladder(tokens)
    base = Config(gemm1=schedule, gemm2=schedule, route=route_of(tokens * SHAPES[shape].top_k))
    return {name: replace(base, w4a4=w4a4, epilogue=epilogue) for name, (w4a4, epilogue) in MODES.items()}
