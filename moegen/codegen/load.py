"""How many rows, tiles and experts a batch makes: the routing side of the time model."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

RoutingKind = Literal["uniform", "effective_experts", "one_hot", "zipf"]


@dataclass(frozen=True, kw_only=True)
class RoutingClass:
    """How tokens choose experts: every token takes k different ones.

    ``value``: share of experts in use (effective_experts), or the exponent s of p ~ rank^-s (zipf); 0 elsewhere.
    """

    kind: RoutingKind = "uniform"
    value: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.value}" if self.kind in ("effective_experts", "zipf") else self.kind

    def inclusion(self, experts: int, top_k: int) -> tuple[tuple[float, int], ...]:
        """(probability that a token takes an expert, number of such experts); the products sum to ``top_k``."""
        if self.kind == "one_hot":
            return ((1.0, top_k),)
        if self.kind == "effective_experts":
            used = min(experts, max(top_k, math.ceil(self.value * experts)))
            return ((top_k / used, used),)
        if self.kind == "zipf":
            weights = [(rank + 1.0) ** -self.value for rank in range(experts)]
            return _binned(_fill(weights, top_k))
        return ((top_k / experts, experts),)


UNIFORM = RoutingClass()


def _fill(weights: list[float], top_k: int) -> list[float]:
    """Shares proportional to ``weights`` (falling), capped at 1, that sum to ``top_k``."""
    capped = 0
    total = sum(weights)
    while capped < top_k and weights[capped] * (top_k - capped) >= total:
        total -= weights[capped]
        capped += 1
    rest = top_k - capped
    return [1.0] * capped + [weight * rest / total for weight in weights[capped:]]


def _binned(shares: list[float]) -> tuple[tuple[float, int], ...]:
    """Falling shares in bins that widen with rank, each share replaced by its bin's mean; the sum stays the same."""
    bins: list[tuple[float, int]] = []
    start = 0
    while start < len(shares):
        group = shares[start : start + 1 + start // 8]
        bins.append((sum(group) / len(group), len(group)))
        start += len(group)
    return tuple(bins)


@lru_cache(maxsize=4096)
def expected_tiles(tokens: int, share: float, row_tile: int) -> tuple[float, float]:
    """(expected tiles, probability of any row) of one expert whose row count is Binomial(tokens, share)."""
    if share >= 1.0:
        return float(-(-tokens // row_tile)), float(tokens > 0)
    if tokens == 0 or share <= 0.0:
        return 0.0, 0.0
    mean, deviation = tokens * share, math.sqrt(tokens * share * (1.0 - share))
    low, high = max(0, int(mean - 8 * deviation) - 1), min(tokens, int(mean + 8 * deviation) + 16)
    tiles = 0.0
    log_choose = math.lgamma(tokens + 1)
    for rows in range(max(low, 1), high + 1):
        log_p = log_choose - math.lgamma(rows + 1) - math.lgamma(tokens - rows + 1)
        log_p += rows * math.log(share) + (tokens - rows) * math.log1p(-share)
        tiles += math.exp(log_p) * -(-rows // row_tile)
    return tiles, -math.expm1(tokens * math.log1p(-share))


@dataclass(frozen=True, kw_only=True)
class Load:
    """Expected work of one call.

    Attributes:
        tokens: T.
        rows: valid slots: T·k, or this rank's part of them.
        tiles: tiles of ``row_tile`` rows over all experts held.
        hit_experts: experts held that have at least one row; only their weights are read.
    """

    tokens: int
    rows: int
    tiles: float
    hit_experts: float


def expected_load(
    tokens: int,
    experts: int,
    top_k: int,
    row_tile: int,
    routing: RoutingClass = UNIFORM,
    *,
    held: int | None = None,
) -> Load:
    """Expected rows, tiles and hit experts of ``tokens`` tokens under a routing class.

    ``held``: experts of this rank, all by default; a rank with fewer holds every (experts / held)-th by popularity, the
    most popular among them, as the busiest ranks do.
    """
    held = experts if held is None else held
    tiles = hit = slots = 0.0
    passed = 0
    for share, count in routing.inclusion(experts, top_k):
        own = -(-(passed + count) * held // experts) - -(-passed * held // experts)
        passed += count
        expert_tiles, expert_hit = expected_tiles(tokens, share, row_tile)
        tiles += own * expert_tiles
        hit += own * expert_hit
        slots += own * share
    return Load(tokens=tokens, rows=round(tokens * slots), tiles=tiles, hit_experts=hit)
