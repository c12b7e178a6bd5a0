"""Second-level scales: stored as amax/2688 or as 2688/amax, as a scalar, per expert or per half; read as amax/2688."""

import torch

from moegen.runtime.checkpoint.taker import Taker

UNREAD = float("nan")
"""What a slot holds until its scale is read."""
_ONE: tuple[tuple[int, ...], ...] = ((), (1,))


def decode_scale(taker: Taker, rest: str, *, weight: bool = True) -> float:
    """One scalar in the multiply form; NaN when it is missing or impossible, which the taker then knows."""
    taken = taker.floats(rest, _ONE)
    return UNREAD if taken is None else _multiply_form(taker, rest, taken.reshape(()), weight=weight).item()


def decode_scales(taker: Taker, rest: str, experts: int, halves: int, *, weight: bool = True) -> torch.Tensor:
    """Scales of all experts in the multiply form, fp32 ``[experts, halves]``.

    The tensor may hold one number for everything, one per expert, or one per expert and half. NaN as
    :func:`decode_scale`. ``weight``: a weight's scale, whose form its size gives away; an input's does not.
    """
    taken = taker.floats(rest, ((experts,), (experts, halves), (experts, 1), *_ONE))
    if taken is None:
        return torch.full((experts, halves), UNREAD)
    scale = _multiply_form(taker, rest, taken, weight=weight)
    return (scale.reshape(1, 1) if scale.numel() == 1 else scale.reshape(experts, -1)).expand(experts, halves).clone()


def _multiply_form(taker: Taker, rest: str, value: torch.Tensor, *, weight: bool) -> torch.Tensor:
    """Turns a stored scale into amax / 2688, and refuses what its name cannot mean.

    A weight's multiply form is below 1 (amax < 2688) and its divide form above; a value on the wrong side was written
    in the other form, and using it would scale the layer by a factor of about 10^7.
    """
    dialect = taker.dialect
    shown = value.flatten()[:8].tolist()
    if not bool((value.isfinite() & (value > 0)).all()):
        taker.wrong(rest, f"scale {shown}, expected positive finite numbers")
        return torch.full_like(value, UNREAD)
    inverted = value < 1 if dialect.divides else value > 1
    if weight and bool(inverted.any()):
        form, other = ("2688/amax", "amax/2688") if dialect.divides else ("amax/2688", "2688/amax")
        taker.wrong(rest, f"{shown} looks like {other}, but {dialect.name} stores {form}: the form cannot be told")
        return torch.full_like(value, UNREAD)
    return value.reciprocal() if dialect.divides else value
