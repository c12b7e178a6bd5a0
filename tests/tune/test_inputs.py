"""Tuning inputs: equal seeds give equal bytes, blocks are real NVFP4, and what a spec does not have is not made."""

from dataclasses import replace

import pytest
import torch

from moegen.core.abi import BLOCK
from moegen.core.enums import TokenDtype
from moegen.numerics import e2m1
from moegen.tune.inputs import LayerShape, make_tokens, make_weights
from moegen.tune.routing import parse_routing

SHAPE = LayerShape(
    experts=7,
    top_k=2,
    hidden=144,
    intermediate=80,
    gated=True,
    bias=False,
    dtype=TokenDtype.BF16,
    w4a4=True,
    static_scales=True,
)


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    first, same, other = make_weights(SHAPE, 1), make_weights(SHAPE, 1), make_weights(SHAPE, 2)
    assert torch.equal(first.up.codes, same.up.codes)
    assert torch.equal(first.down.scales, same.down.scales)
    assert not torch.equal(first.up.codes, other.up.codes)


def test_gate_and_up_are_different_matrices_with_different_scales() -> None:
    weights = make_weights(SHAPE, 1)
    assert weights.gate is not None
    assert not torch.equal(weights.gate.codes, weights.up.codes)
    assert (weights.gate.second != weights.up.second).all()


def test_every_block_uses_its_range() -> None:
    """A block scale is its largest value over 6, so a quantised block holds a 4 or a 6."""
    codes = e2m1.unpack(make_weights(SHAPE, 3).up.codes, SHAPE.hidden).unflatten(-1, (-1, BLOCK))
    assert ((codes & 7) >= 6).any(-1).all()


def test_what_the_spec_lacks_is_not_made() -> None:
    weights = make_weights(replace(SHAPE, gated=False, static_scales=False), 1)
    assert weights.gate is None
    assert weights.up.input is None
    assert weights.up.bias is None
    assert make_weights(replace(SHAPE, bias=True), 1).down.bias is not None


@pytest.mark.parametrize(("dtype", "expected"), [(TokenDtype.BF16, torch.bfloat16), (TokenDtype.FP16, torch.float16)])
def test_tokens_have_the_spec_s_dtype_and_channels_of_different_magnitude(
    dtype: TokenDtype, expected: torch.dtype
) -> None:
    inputs = make_tokens(replace(SHAPE, dtype=dtype), 400, parse_routing("uniform"), 1)
    assert inputs.x.dtype is expected
    deviation = inputs.x.float().std(0)
    assert deviation.max() / deviation.min() > 4
    assert inputs.active_experts(7) == 7


def test_a_rank_sees_ids_of_others_and_counts_its_own_experts() -> None:
    rank = replace(SHAPE, layer_experts=28)
    inputs = make_tokens(rank, 200, parse_routing("uniform"), 1)
    assert int(inputs.topk_ids.max()) > 6
    assert inputs.active_experts(rank.experts) == 7
    assert make_weights(rank, 1).experts == 7


def test_no_tokens() -> None:
    inputs = make_tokens(SHAPE, 0, parse_routing("one_hot"), 1)
    assert inputs.x.shape == (0, 144)
    assert inputs.active_experts(7) == 0
