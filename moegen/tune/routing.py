"""Named, seeded routing profiles: which experts the tokens of a tuning input go to.

A candidate that wins under balanced routing can lose under skew, so the profile is an axis of every trial. Skew is
stated as a share of *effective experts*: the inverse Simpson index of the slots per expert, over E.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from moegen.core.errors import TuneError

_CALIBRATION_TOKENS = 1024
_BISECTIONS = 24


class RoutingKind(str, Enum):
    """Shape of the distribution of slots over experts."""

    UNIFORM = "uniform"
    EFFECTIVE_EXPERTS = "effective_experts"
    ONE_HOT = "one_hot"
    ZIPF = "zipf"


_LARGEST = {RoutingKind.EFFECTIVE_EXPERTS: 1.0, RoutingKind.ZIPF: 4.0}


@dataclass(frozen=True, kw_only=True)
class Routing:
    """A routing profile.

    Attributes:
        kind: ``uniform``: every token draws k distinct experts, all alike; ``one_hot``: the same k experts serve every
            token, the worst that distinct ids allow; ``effective_experts``: geometric skew with that share of
            effective experts (never below k of E); ``zipf``: expert of rank r has weight r**-value.
        value: the share in (0, 1], or the exponent in (0, 4]; None for the other kinds.
    """

    kind: RoutingKind
    value: float | None = None

    @property
    def label(self) -> str:
        """The name that trials, tables and plots carry, for example ``effective_experts=0.25``."""
        return self.kind.value if self.value is None else f"{self.kind.value}={self.value:g}"


def parse_routing(text: Any) -> Routing:
    """Reads a profile: ``"uniform"``, ``"zipf=1.2"`` (as :attr:`Routing.label` writes it) or ``{"zipf": 1.2}`` (as a
    spec does).

    Raises:
        TuneError: unknown kind, missing, superfluous or out-of-range parameter.
    """
    name, value = _split(text)
    try:
        kind = RoutingKind(name)
    except ValueError:
        known = ", ".join(kind.value for kind in RoutingKind)
        raise TuneError(f"unknown routing profile {name!r}", "routing", f"use one of: {known}") from None
    largest = _LARGEST.get(kind)
    if largest is None:
        if value is not None:
            raise TuneError(f"{name} takes no parameter, found {value}", "routing", f"write {name}")
        return Routing(kind=kind)
    if value is None or not 0 < value <= largest:
        what = f"{name} needs a number in (0, {largest:g}], found {value}"
        raise TuneError(what, "routing", f"for example {name}=0.5")
    return Routing(kind=kind, value=value)


def _split(text: Any) -> tuple[str, float | None]:
    if isinstance(text, Routing):
        return text.kind.value, text.value
    if isinstance(text, dict) and len(text) == 1:
        ((name, value),) = text.items()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(name), float(value)
        raise TuneError(f"parameter of {name} is {value!r}, not a number", "routing", f"for example {name}=0.5")
    name, _, tail = str(text).partition("=")
    if not tail:
        return name, None
    try:
        return name, float(tail)
    except ValueError:
        raise TuneError(
            f"parameter of {name} is {tail!r}, not a number", "routing", f"for example {name}=0.5"
        ) from None


def draw_ids(routing: Routing, tokens: int, top_k: int, experts: int, seed: int) -> torch.Tensor:
    """Expert ids ``[tokens, top_k]`` int64: all in ``[0, experts)``, distinct within a token, equal for equal
    arguments.

    Raises:
        TuneError: ``top_k`` exceeds ``experts``, so distinct ids cannot exist.
    """
    if not 0 < top_k <= experts:
        raise TuneError(f"top_k {top_k} of {experts} experts", "routing", "choose 1 <= top_k <= experts")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(experts, generator=generator)
    log_weights = _log_weights(routing, top_k, experts, generator)
    noise = _gumbel(tokens, experts, generator)
    if routing.kind is RoutingKind.ONE_HOT:
        noise[:, :top_k] = torch.inf
    return order[(log_weights + noise).topk(top_k, dim=-1).indices]


def busiest_rank_first(ids: torch.Tensor, experts: int, held: int) -> torch.Tensor:
    """Renumbers the experts of a layer so that the rank with most slots, of ranks that hold ``held`` each, comes first.

    Args:
        ids: expert ids in ``[0, experts)``.
        experts: experts of the layer.
        held: experts of one rank; the last rank may hold fewer.
    """
    if held >= experts:
        return ids
    slots = torch.bincount((ids // held).flatten(), minlength=1)
    return (ids - int(slots.argmax()) * held) % experts


def effective_experts(ids: torch.Tensor, experts: int) -> float:
    """Inverse Simpson index of the slots per expert: E when balanced, 1 when one expert has them all; 0 without a slot.

    Ids outside ``[0, experts)`` are routes of other ranks and do not count.
    """
    flat = ids.flatten()
    counts = torch.bincount(flat[(flat >= 0) & (flat < experts)], minlength=experts).double()
    total = counts.sum()
    return float(total**2 / (counts**2).sum()) if total > 0 else 0.0


def draw_weights(tokens: int, top_k: int, seed: int) -> torch.Tensor:
    """Router weights ``[tokens, top_k]`` fp32: positive, descending, summing to 1 in each token."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, top_k, generator=generator).sort(dim=-1, descending=True).values
    return logits.softmax(dim=-1)


def _gumbel(tokens: int, experts: int, generator: torch.Generator) -> torch.Tensor:
    """Gumbel noise: the k largest of ``log p + noise`` are k draws from p without replacement (Efraimidis, Spirakis
    2006)."""
    uniform = torch.rand(tokens, experts, generator=generator, dtype=torch.float64).clamp_min(1e-300)
    return -torch.log((-torch.log(uniform)).clamp_min(1e-300))


def _log_weights(routing: Routing, top_k: int, experts: int, generator: torch.Generator) -> torch.Tensor:
    rank = torch.arange(experts, dtype=torch.float64)
    if routing.kind is RoutingKind.ZIPF:
        assert routing.value is not None
        return -routing.value * torch.log(rank + 1)
    if routing.kind is RoutingKind.EFFECTIVE_EXPERTS:
        assert routing.value is not None
        return -_decay(max(routing.value * experts, float(top_k)), top_k, experts, generator) * rank
    return torch.zeros(experts, dtype=torch.float64)


def _decay(wanted: float, top_k: int, experts: int, generator: torch.Generator) -> float:
    """Decay per rank whose realised effective experts come nearest to ``wanted``.

    Found by bisection on one sample, since drawing without replacement flattens any closed form.
    """
    noise = _gumbel(_CALIBRATION_TOKENS, experts, generator)
    rank = torch.arange(experts, dtype=torch.float64)
    low, high = 0.0, 64.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        ids = (noise - middle * rank).topk(top_k, dim=-1).indices
        if effective_experts(ids, experts) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2
