"""Covering sets: every two values of two axes occur together in some case, as far as cases are allowed."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

Row = dict[str, Any]
_TRIES = 60


def covering(axes: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], seed: int = 1) -> list[Row]:
    """A small list of allowed rows that covers every pair of values which some sampled allowed row holds.

    Greedy: of some random allowed rows around an uncovered pair, the one that covers most new pairs is taken.
    """
    random = Random(seed)
    names = list(axes)
    missing = {
        (a, i, b, j) for a, b in combinations(names, 2) for i in range(len(axes[a])) for j in range(len(axes[b]))
    }
    rows: list[Row] = []
    while missing:
        pair = min(missing)
        best: dict[str, int] | None = None
        gain = 0
        for _ in range(_TRIES):
            picks = {name: random.randrange(len(axes[name])) for name in names} | {pair[0]: pair[1], pair[2]: pair[3]}
            if allowed({name: axes[name][pick] for name, pick in picks.items()}):
                new = len(missing & _pairs(picks, names))
                if new > gain:
                    best, gain = picks, new
        if best is None:
            missing.discard(pair)
            continue
        missing -= _pairs(best, names)
        rows.append({name: axes[name][pick] for name, pick in best.items()})
    return rows


def _pairs(picks: Mapping[str, int], names: Sequence[str]) -> set[tuple[str, int, str, int]]:
    return {(a, picks[a], b, picks[b]) for a, b in combinations(names, 2)}
