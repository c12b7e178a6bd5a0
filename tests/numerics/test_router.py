"""Routers against the models' own code in transformers, and by hand."""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4TopKRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.llama4.modeling_llama4 import Llama4Router
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from moegen.core.errors import SpecError
from moegen.numerics import router
from moegen.numerics.router import Router, Score

TOKENS, EXPERTS, TOP_K = 37, 24, 5


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(0)) * 2


def config(**changes) -> SimpleNamespace:
    """The fields that router classes read; H = E, so that an identity weight hands the logits through."""
    fields = {
        "num_experts_per_tok": TOP_K,
        "num_local_experts": EXPERTS,
        "num_experts": EXPERTS,
        "hidden_size": EXPERTS,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "n_group": 4,
        "topk_group": 2,
        "scoring_func": "sqrtsoftplus",
    }
    return SimpleNamespace(**(fields | changes))


def run(module, logits, bias=None):
    """(weights by expert ``[T, E]``) of a transformers router."""
    with torch.no_grad():
        module.weight.copy_(torch.eye(EXPERTS))
        if bias is not None:
            module.e_score_correction_bias.copy_(bias)
        _, weights, ids = module(logits)
    return torch.zeros(TOKENS, EXPERTS).scatter(1, ids, weights)


def dense(ids, weights):
    assert ids.shape == weights.shape == (TOKENS, TOP_K)
    return torch.zeros(TOKENS, EXPERTS).scatter(1, ids, weights)


def test_deepseek_v3_with_groups_and_bias(logits):
    bias = torch.linspace(-0.3, 0.3, EXPERTS)
    expected = run(DeepseekV3TopkRouter(config()), logits, bias)
    ids, weights = router.deepseek_v3_router(TOP_K, 2.5, groups=4, keep_groups=2)(logits, bias)
    torch.testing.assert_close(dense(ids, weights), expected)
    plain, _ = router.deepseek_v3_router(TOP_K, 2.5, groups=4, keep_groups=2)(logits)
    assert not torch.equal(plain, ids)


def test_deepseek_v4(logits):
    bias = torch.linspace(-0.5, 0.5, EXPERTS)
    expected = run(DeepseekV4TopKRouter(config()), logits, bias)
    torch.testing.assert_close(dense(*router.deepseek_v4_router(TOP_K, 2.5)(logits, bias)), expected)


@pytest.mark.parametrize("renormalise", [True, False])
def test_softmax(logits, renormalise):
    expected = run(Qwen3MoeTopKRouter(config(norm_topk_prob=renormalise)), logits)
    torch.testing.assert_close(dense(*router.softmax_router(TOP_K, renormalise)(logits)), expected)


def test_gpt_oss(logits):
    expected = run(GptOssTopKRouter(config()), logits)
    ids, weights = router.gpt_oss_router(TOP_K)(logits)
    torch.testing.assert_close(dense(ids, weights), expected)
    torch.testing.assert_close(weights, router.softmax_router(TOP_K)(logits)[1])


def test_llama4(logits):
    module = Llama4Router(config(num_experts_per_tok=1))
    with torch.no_grad():
        module.weight.copy_(torch.eye(EXPERTS))
        expected, _ = module(logits)
    ids, weights = router.llama4_router()(logits)
    torch.testing.assert_close(torch.zeros(TOKENS, EXPERTS).scatter(1, ids, weights), expected)


def test_deepseek_v2_takes_the_best_of_each_group(logits):
    expected = run(DeepseekV2TopkRouter(config(topk_method="group_limited_greedy")), logits)
    rule = Router(top_k=TOP_K, renormalise=False, groups=4, keep_groups=2, scaling_factor=2.5)
    torch.testing.assert_close(dense(*rule(logits)), expected)


def test_fr_13_experts_beyond_256_are_chosen():
    logits = torch.zeros(3, 512)
    logits[:, 300:310] = torch.arange(10.0) + 1
    ids, _ = router.softmax_router(10)(logits)
    assert ids.sort(-1).values.tolist() == [list(range(300, 310))] * 3
    assert ids[0, 0] == 309


def test_ties_go_to_the_lower_id():
    ids, weights = router.softmax_router(3)(torch.zeros(1, 7))
    assert ids.tolist() == [[0, 1, 2]]
    torch.testing.assert_close(weights, torch.full((1, 3), 1 / 3))


def test_scaling_factor_is_applied_once():
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    _, weights = router.deepseek_v3_router(3, 2.5)(logits)
    torch.testing.assert_close(weights.sum(-1), torch.full((4,), 2.5))


def test_correction_bias_never_reaches_the_weights():
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    ids, weights = Router(top_k=1, score=Score.SIGMOID, renormalise=False)(logits, torch.tensor([9.0, 0.0, 0.0]))
    assert ids.item() == 0
    assert weights.item() == 0.5


@pytest.mark.parametrize(
    ("rule", "experts"),
    [
        (Router(top_k=5), 4),
        (Router(top_k=2, groups=3), 8),
        (Router(top_k=5, groups=4, keep_groups=1), 16),
    ],
)
def test_fr_14_impossible_rules_name_their_numbers(rule, experts):
    with pytest.raises(SpecError, match=rf"top_k {rule.top_k} of {experts} experts"):
        rule(torch.zeros(2, experts))


def test_contradictory_rules_are_refused():
    with pytest.raises(SpecError, match="keep_groups 3 of 2"):
        Router(top_k=1, groups=2, keep_groups=3)
    with pytest.raises(SpecError, match="sums to 1 already"):
        Router(top_k=1, score=Score.LOGITS)


def test_no_tokens_route_to_no_experts():
    ids, weights = router.softmax_router(2)(torch.zeros(0, 5))
    assert ids.shape == weights.shape == (0, 2)


def test_one_expert():
    ids, weights = router.softmax_router(1)(torch.randn(3, 1))
    assert ids.tolist() == [[0]] * 3
    assert weights.tolist() == [[1.0]] * 3
