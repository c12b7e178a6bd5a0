"""Routers: from logits to expert ids and weights, as the models' own code has them, in fp32.

Ties go to the lower expert id.
"""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from moegen.core.errors import SpecError
from moegen.numerics.elementary import divide


class Score(str, Enum):
    """How logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    SQRT_SOFTPLUS = "sqrt_softplus"
    LOGITS = "logits"


@dataclass(frozen=True, kw_only=True)
class Router:
    """A routing rule.

    Attributes:
        top_k: experts per token.
        score: scores of all experts; LOGITS keeps them and takes the softmax over the chosen k (GPT-OSS).
        renormalise: chosen scores are divided by (their sum + ``epsilon``).
        scaling_factor: multiplies the weights last (``routed_scaling_factor``).
        groups, keep_groups: experts form ``groups`` equal groups, and only the best ``keep_groups`` may be chosen
        from; a
            group's score is the sum of its two best biased scores (DeepSeek-V3), or its best one when scores are
            softmax (DeepSeek-V2).
        epsilon: guards the division.

    Raises:
        SpecError: on construction, when the numbers contradict each other.
    """

    top_k: int
    score: Score = Score.SOFTMAX
    renormalise: bool = True
    scaling_factor: float = 1.0
    groups: int = 1
    keep_groups: int = 1
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.keep_groups <= self.groups:
            raise SpecError(f"keep_groups {self.keep_groups} of {self.groups} groups", "router", "keep 1 … groups")
        if self.score is Score.LOGITS and self.renormalise:
            raise SpecError("softmax over the chosen logits sums to 1 already", "router", "set renormalise to False")

    def __call__(self, logits: Tensor, correction_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Chooses experts.

        Args:
            logits: ``[T, E]``, any float dtype.
            correction_bias: fp32 ``[E]``, added to the scores for the choice alone, never to the weights.

        Returns:
            ids ``[T, k]`` int64, best first, and weights ``[T, k]`` fp32.

        Raises:
            SpecError: the kept groups hold fewer than k experts, or E is not a whole number of groups.
        """
        experts = logits.shape[-1]
        if experts % self.groups or self.top_k > experts // self.groups * self.keep_groups:
            raise SpecError(
                f"top_k {self.top_k} of {experts} experts, {self.keep_groups} of {self.groups} groups kept",
                "router",
                "choose groups that divide E, and k at most the experts of the kept groups",
            )
        scores = self.scores(logits.float())
        choice = scores if correction_bias is None else scores + correction_bias.float()
        if self.groups > 1:
            choice = self._mask_groups(choice)
        ids = best(choice, self.top_k)
        weights = scores.gather(-1, ids)
        if self.score is Score.LOGITS:
            weights = torch.softmax(weights, dim=-1)
        if self.renormalise:
            weights = divide(weights, (weights.sum(-1, keepdim=True) + self.epsilon).expand_as(weights))
        return ids, weights * self.scaling_factor

    def scores(self, logits: Tensor) -> Tensor:
        """Scores of all experts ``[T, E]``, fp32."""
        if self.score is Score.SOFTMAX:
            return torch.softmax(logits, dim=-1)
        if self.score is Score.SIGMOID:
            return torch.sigmoid(logits)
        if self.score is Score.SQRT_SOFTPLUS:
            return torch.sqrt(torch.nn.functional.softplus(logits))
        return logits

    def _mask_groups(self, choice: Tensor) -> Tensor:
        grouped = choice.unflatten(-1, (self.groups, -1))
        peaks = 1 if self.score is Score.SOFTMAX else min(2, grouped.shape[-1])
        kept = best(grouped.topk(peaks, dim=-1).values.sum(-1), self.keep_groups)
        allowed = torch.zeros(*choice.shape[:-1], self.groups, dtype=torch.bool, device=choice.device)
        allowed.scatter_(-1, kept, True)
        return grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(-2)


def best(values: Tensor, count: int) -> Tensor:
    """Indices of the largest ``count`` values along the last dimension, best first, ties to the lower index."""
    return values.argsort(dim=-1, descending=True, stable=True)[..., :count]


def softmax_router(top_k: int, renormalise: bool = True) -> Router:
    """Qwen3, Mixtral (renormalised); Qwen1.5-MoE, OLMoE (not)."""
    return Router(top_k=top_k, renormalise=renormalise)


def deepseek_v3_router(top_k: int, scaling_factor: float, groups: int = 1, keep_groups: int = 1) -> Router:
    """Sigmoid scores, correction bias, groups by the sum of their two best: DeepSeek-V3, Kimi-K2, GLM, MiniMax."""
    return Router(
        top_k=top_k,
        score=Score.SIGMOID,
        scaling_factor=scaling_factor,
        groups=groups,
        keep_groups=keep_groups,
        epsilon=1e-20,
    )


def deepseek_v4_router(top_k: int, scaling_factor: float) -> Router:
    """Square root of softplus, correction bias, no groups."""
    return Router(top_k=top_k, score=Score.SQRT_SOFTPLUS, scaling_factor=scaling_factor, epsilon=1e-20)


def gpt_oss_router(top_k: int) -> Router:
    """The k largest logits (the router's own bias already added), softmax over those k."""
    return Router(top_k=top_k, score=Score.LOGITS, renormalise=False)


def llama4_router(top_k: int = 1) -> Router:
    """Sigmoid of the chosen logits, not renormalised; the layer multiplies the weight into the expert's input."""
    return Router(top_k=top_k, score=Score.SIGMOID, renormalise=False)
