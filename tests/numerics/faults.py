"""Faults of numerics, each as somebody has had it; tests that guard against them must fail while one is injected."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from moegen.numerics import activations, contracts, e2m1, e4m3
from moegen.numerics.layouts import GateUpRows, ScaleTensor, Tiled
from moegen.numerics.reference import layer, routing

Fault = AbstractContextManager[Any]


def midpoints_go_away_from_zero() -> Fault:
    """The software rounder rounds every midpoint up."""
    return mock.patch.object(e2m1, "MIDPOINTS", tuple((midpoint, True) for midpoint, _ in e2m1.MIDPOINTS))


def scale_cast_overflows_to_nan() -> Fault:
    """The cast to E4M3 gives NaN above 464 instead of saturating."""
    sound = e4m3.encode

    def encode(x: Tensor) -> Tensor:
        return torch.where(x > 464, e4m3.NAN_BYTE, sound(x)).to(torch.uint8)

    return mock.patch.object(e4m3, "encode", encode)


def reciprocal_of_zero_stays_infinite() -> Fault:
    """A zero scale's reciprocal is infinite, and infinity times zero is NaN."""
    return mock.patch.object(contracts, "finite", lambda x: x)


def limits_are_dropped() -> Fault:
    """The limit of a clamped activation is ignored."""
    return mock.patch.object(activations, "cap", lambda x, limit: x)


def gate_rounding_is_ignored() -> Fault:
    """The declared rounding point of the gate does nothing."""
    return mock.patch.object(activations, "round_at", lambda x, point: x)


def order_is_ignored() -> Fault:
    """Gate always comes first, whatever the file says."""
    sound = GateUpRows.sources
    return mock.patch.object(GateUpRows, "sources", lambda self, rows: sound(replace(self, gate_first=True), rows))


def gates_scale_serves_both() -> Fault:
    """The second-level scale of the gate half is used for the up half too."""
    sound = layer.expert_hidden

    def expert_hidden(rows, weights, activation, expert):
        return sound(rows, replace(weights, w1_alpha=weights.w1_alpha[:, :1].expand(-1, 2)), activation, expert)

    return mock.patch.object(layer, "expert_hidden", expert_hidden)


def input_weight_counts_again_at_the_end() -> Fault:
    """A router weight on the input is multiplied in once more when rows are combined."""
    return mock.patch("moegen.numerics.reference.ops._weight_at_combine", return_value=True)


def foreign_ids_go_to_the_nearest_expert() -> Fault:
    """Ids outside the rank are clamped into it."""
    sound = routing.route

    def route(topk_ids, *, experts, row_tile, first_expert=0):
        clamped = topk_ids.clamp(first_expert, first_expert + experts - 1)
        return sound(clamped, experts=experts, row_tile=row_tile, first_expert=first_expert)

    return mock.patch("moegen.numerics.reference.ops.route", route)


def padding_rows_keep_their_scales() -> Fault:
    """Padding rows are quantised like any other, though some formulas give zeros a scale."""

    def pad_rows(quantized, real, layout):
        from moegen.numerics.layouts import scale_layout

        return quantized.codes, scale_layout(layout).pack(quantized.scales)

    return mock.patch("moegen.numerics.reference.rows.pad_rows", pad_rows)


def second_swizzle_is_let_through() -> Fault:
    """Nobody asks in which layout scales lie."""
    return mock.patch.object(ScaleTensor, "require", lambda self, layout: self.data)


def rows_of_a_tile_are_not_spread() -> Fault:
    """Rows of a 128×4 tile follow each other, as in the 8x4 form."""
    return mock.patch.object(Tiled, "groups", property(lambda self: 1))
