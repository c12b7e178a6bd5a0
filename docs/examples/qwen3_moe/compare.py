"""Compares two models on the same tokens: logits, and greedy continuation."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Comparison:
    """How close a model is to its reference.

    Attributes:
        relative_error: norm of the logits' difference over the reference's norm.
        cosine: of all logits together.
        top1: share of positions with the same most likely token.
        generated, expected: greedily generated token ids.
        margin: smallest lead of the reference's chosen tokens over the runner-up, in units of the largest logit error.
    """

    relative_error: float
    cosine: float
    top1: float
    generated: list[int]
    expected: list[int]
    margin: float

    @property
    def same_tokens(self) -> bool:
        """True when both models generated the same tokens."""
        return self.generated == self.expected


def compare(model: PreTrainedModel, reference: PreTrainedModel, prompt: torch.Tensor, new_tokens: int) -> Comparison:
    """Runs both models on ``prompt [1, length]`` and lets both generate ``new_tokens`` tokens greedily."""
    with torch.inference_mode():
        got, wanted = model(prompt).logits.float(), reference(prompt).logits.float()
        generated, expected = _greedy(model, prompt, new_tokens), _greedy(reference, prompt, new_tokens)
        full = torch.cat((prompt, torch.tensor([expected])), dim=1)
        along, ours = reference(full).logits.float(), model(full).logits.float()
    best = along[0, prompt.shape[1] - 1 : -1].topk(2, dim=-1).values
    error = (ours - along).abs().max()
    return Comparison(
        relative_error=((got - wanted).norm() / wanted.norm()).item(),
        cosine=torch.nn.functional.cosine_similarity(got.flatten(), wanted.flatten(), dim=0).item(),
        top1=(got.argmax(-1) == wanted.argmax(-1)).float().mean().item(),
        generated=generated,
        expected=expected,
        margin=((best[:, 0] - best[:, 1]).min() / error).item(),
    )


def _greedy(model: PreTrainedModel, prompt: torch.Tensor, new_tokens: int) -> list[int]:
    ids = prompt
    for _ in range(new_tokens):
        ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
    return ids[0, prompt.shape[1] :].tolist()
