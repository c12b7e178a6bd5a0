"""Expected rows, tiles and hit experts against brute force over real routings."""

import itertools
import random
from collections import Counter

import pytest

from moegen.codegen.load import RoutingClass, expected_load, expected_tiles


def test_tiles_of_one_expert_match_the_binomial_sum() -> None:
    """Four tokens, share 1/4, tiles of 2: rows 0…4 with weights C(4, r) 3^(4-r) / 4^4."""
    weights = {0: 81, 1: 108, 2: 54, 3: 12, 4: 1}
    tiles = sum(weight * -(-rows // 2) for rows, weight in weights.items()) / 256
    assert expected_tiles(4, 0.25, 2) == pytest.approx((tiles, 1 - 81 / 256), rel=1e-12)


def test_uniform_load_matches_every_routing_of_two_tokens() -> None:
    """Two tokens, 2 of 4 experts each: all 36 pairs of choices, counted."""
    tiles = hit = 0
    choices = list(itertools.combinations(range(4), 2))
    for pair in itertools.product(choices, repeat=2):
        rows = Counter(itertools.chain.from_iterable(pair))
        tiles += sum(-(-count // 2) for count in rows.values())
        hit += len(rows)
    load = expected_load(2, 4, 2, 2)
    assert (load.tiles, load.hit_experts) == pytest.approx((tiles / 36, hit / 36))
    assert load.rows == 4


def test_large_uniform_load_matches_a_simulation() -> None:
    generator = random.Random(1)
    tokens, experts, top_k, row_tile = 64, 16, 3, 8
    tiles = hit = 0
    for _ in range(400):
        rows = Counter(expert for _ in range(tokens) for expert in generator.sample(range(experts), top_k))
        tiles += sum(-(-count // row_tile) for count in rows.values())
        hit += len(rows)
    load = expected_load(tokens, experts, top_k, row_tile)
    assert load.tiles == pytest.approx(tiles / 400, rel=0.02)
    assert load.hit_experts == pytest.approx(hit / 400, rel=0.02)


def test_one_hot_sends_every_token_to_the_same_experts() -> None:
    load = expected_load(100, 32, 4, 8, RoutingClass(kind="one_hot"))
    assert (load.tiles, load.hit_experts) == (4 * 13, 4)


def test_effective_experts_uses_that_share_and_never_fewer_than_top_k() -> None:
    quarter = expected_load(10_000, 64, 4, 1, RoutingClass(kind="effective_experts", value=0.25))
    assert quarter.hit_experts == pytest.approx(16)
    assert quarter.tiles == pytest.approx(40_000)
    tiny = expected_load(10_000, 64, 4, 1, RoutingClass(kind="effective_experts", value=0.001))
    assert tiny.hit_experts == pytest.approx(4)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_zipf_shares_fall_and_sum_to_top_k(exponent: float) -> None:
    shares = [
        share for share, count in RoutingClass(kind="zipf", value=exponent).inclusion(64, 8) for _ in range(count)
    ]
    assert sum(shares) == pytest.approx(8)
    assert all(a >= b for a, b in itertools.pairwise(shares))
    assert max(shares) <= 1.0
    assert min(shares) > 0.0
    load = expected_load(512, 64, 8, 1, RoutingClass(kind="zipf", value=exponent))
    assert load.tiles == pytest.approx(512 * 8)


@pytest.mark.parametrize("tokens", [1, 7, 64, 513, 16384])
@pytest.mark.parametrize("row_tile", [1, 16, 128])
def test_tiles_hold_the_rows_and_never_more_than_one_ragged_tile_per_hit_expert(tokens: int, row_tile: int) -> None:
    load = expected_load(tokens, 256, 8, row_tile)
    assert load.rows / row_tile <= load.tiles + 1e-6
    assert load.tiles <= load.rows / row_tile + load.hit_experts + 1e-6
    assert load.hit_experts <= min(256, load.rows)


def test_no_tokens_no_work() -> None:
    load = expected_load(0, 16, 2, 8)
    assert (load.rows, load.tiles, load.hit_experts) == (0, 0.0, 0.0)


def test_zipf_over_many_experts_is_binned_and_close_to_the_unbinned_sum() -> None:
    routing = RoutingClass(kind="zipf", value=1.0)
    bins = routing.inclusion(4096, 8)
    assert len(bins) < 80
    assert sum(count for _, count in bins) == 4096
    weights = [1 / (rank + 1) for rank in range(4096)]
    exact = sum(1 - (1 - 8 * share / sum(weights)) ** 64 for share in weights)
    assert expected_load(64, 4096, 8, 1, routing).hit_experts == pytest.approx(exact, rel=0.01)
