"""Routing profiles: the contract of the ids, the stated skew, and what a spec may say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moegen.core.errors import TuneError
from moegen.tune.routing import (
    Routing,
    RoutingKind,
    busiest_rank_first,
    draw_ids,
    draw_weights,
    effective_experts,
    parse_routing,
)

PROFILES = ["uniform", "one_hot", "zipf=1.2", "effective_experts=0.25"]


@given(
    profile=st.sampled_from(PROFILES),
    tokens=st.integers(0, 40),
    experts=st.integers(1, 60),
    top_k=st.integers(1, 8),
    seed=st.integers(0, 2**40),
)
def test_ids_keep_the_contract(profile: str, tokens: int, experts: int, top_k: int, seed: int) -> None:
    top_k = min(top_k, experts)
    ids = draw_ids(parse_routing(profile), tokens, top_k, experts, seed)
    assert ids.shape == (tokens, top_k)
    assert ids.dtype is torch.int64
    assert all(len(set(row)) == top_k and min(row) >= 0 and max(row) < experts for row in ids.tolist())


@pytest.mark.parametrize("profile", PROFILES)
def test_equal_arguments_give_equal_ids(profile: str) -> None:
    routing = parse_routing(profile)
    assert torch.equal(draw_ids(routing, 33, 3, 40, 5), draw_ids(routing, 33, 3, 40, 5))
    assert not torch.equal(draw_ids(routing, 33, 3, 40, 5), draw_ids(routing, 33, 3, 40, 6))


@pytest.mark.parametrize("share", [0.125, 0.25, 0.5, 0.9])
def test_effective_experts_is_what_was_asked_for(share: float) -> None:
    ids = draw_ids(parse_routing({"effective_experts": share}), 2048, 4, 60, 11)
    assert effective_experts(ids, 60) == pytest.approx(share * 60, rel=0.1)


def test_effective_experts_cannot_go_below_top_k() -> None:
    ids = draw_ids(parse_routing("effective_experts=0.01"), 512, 8, 60, 11)
    assert effective_experts(ids, 60) == pytest.approx(8, rel=0.1)


def test_one_hot_gives_the_same_experts_every_token() -> None:
    ids = draw_ids(parse_routing("one_hot"), 257, 2, 7, 0)
    assert sorted(torch.bincount(ids.flatten(), minlength=7).tolist()) == [0, 0, 0, 0, 0, 257, 257]


def test_the_busiest_rank_comes_first() -> None:
    ids = torch.tensor([[0, 5], [4, 7], [5, 2]])
    assert busiest_rank_first(ids, experts=8, held=2).tolist() == [[4, 1], [0, 3], [1, 6]]
    assert torch.equal(busiest_rank_first(ids, experts=8, held=8), ids)


def test_effective_experts_of_known_loads() -> None:
    assert effective_experts(torch.tensor([[0, 1], [2, 3]]), 4) == pytest.approx(4)
    assert effective_experts(torch.tensor([[5, -1], [5, 99]]), 6) == pytest.approx(1)
    assert effective_experts(torch.empty(0, 2, dtype=torch.int64), 6) == 0


def test_weights_are_positive_and_sum_to_one() -> None:
    weights = draw_weights(33, 4, 2)
    assert weights.dtype is torch.float32
    assert bool((weights > 0).all())
    torch.testing.assert_close(weights.sum(-1), torch.ones(33))


@given(st.sampled_from(PROFILES))
def test_label_reads_back(profile: str) -> None:
    routing = parse_routing(profile)
    assert routing.label == profile
    assert parse_routing(routing.label) == routing
    assert parse_routing(routing) == routing


def test_spec_form_equals_label_form() -> None:
    assert parse_routing({"effective_experts": 0.25}) == Routing(kind=RoutingKind.EFFECTIVE_EXPERTS, value=0.25)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dirichlet", "unknown routing profile"),
        ("uniform=0.5", "takes no parameter"),
        ("zipf", "needs a number"),
        ("effective_experts=1.5", r"\(0, 1\]"),
        ("effective_experts=nan", "needs a number"),
        ("zipf=hot", "not a number"),
        ({"zipf": "hot"}, "not a number"),
    ],
)
def test_bad_profiles_are_refused(text: object, expected: str) -> None:
    with pytest.raises(TuneError, match=expected):
        parse_routing(text)


def test_top_k_beyond_experts_is_refused() -> None:
    with pytest.raises(TuneError, match="top_k 5 of 4 experts"):
        draw_ids(parse_routing("uniform"), 2, 5, 4, 0)
