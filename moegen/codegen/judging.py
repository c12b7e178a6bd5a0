"""Ops × schedules → verdicts and modelled times."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from moegen.codegen.catalog import Catalog, Choice, Verdict
from moegen.codegen.load import Load, RoutingClass, expected_load
from moegen.codegen.variant import Variant
from moegen.core.devices import DeviceFacts
from moegen.core.ops import OpSpec
from moegen.spec.models import EffectiveExperts, LayerSpec, Routing, Zipf


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A variant, its verdict, and, when legal, its modelled microseconds at each of the plan's points."""

    variant: Variant
    verdict: Verdict
    times_us: tuple[float, ...] = ()

    @cached_property
    def name(self) -> str:
        """The variant's canonical name."""
        return self.variant.name


def routing_class(routing: Routing) -> RoutingClass:
    """The spec's routing as the time model reads it."""
    if isinstance(routing, EffectiveExperts):
        return RoutingClass(kind="effective_experts", value=float(routing.effective_experts))
    if isinstance(routing, Zipf):
        return RoutingClass(kind="zipf", value=float(routing.zipf))
    return RoutingClass(kind=routing)


def mean_log(times_us: Iterable[float]) -> float:
    """Mean logarithm: the order of geometric means, in which every point counts alike."""
    values = [math.log(time_us) for time_us in times_us]
    return sum(values) / len(values)


def spread(count: int) -> list[int]:
    """Indices 0 … count-1 so ordered that any first few of them cover the range: the ends, the middle, the quarters."""
    order = [0, count - 1]
    step = count
    while step > 1:
        step = -(-step // 2)
        order += range(step, count, step)
    return list(dict.fromkeys(index for index in order if index < count))


class Judge:
    """Judges ops on one device, each op once.

    Points are (tokens, routing class) pairs: every token count and every routing class that the spec tunes for.
    """

    def __init__(self, spec: LayerSpec, catalog: Catalog, device: DeviceFacts, choice: Choice) -> None:
        self.spec = spec
        self.catalog = catalog
        self.device = device
        self.choice = choice
        self.points = [(tokens, routing_class(routing)) for tokens in spec.tune.tokens for routing in spec.tune.routing]
        self._judged: dict[OpSpec, tuple[Judged, ...]] = {}
        self._loads: dict[tuple[int, int, RoutingClass], Load] = {}

    @property
    def labels(self) -> list[str]:
        """What each point is, for people."""
        return [f"T = {tokens}, {routing}" for tokens, routing in self.points]

    def load(self, tokens: int, row_tile: int, routing: RoutingClass) -> Load:
        """Expected work of a call of the spec's layer."""
        key = (tokens, row_tile, routing)
        if key not in self._loads:
            geometry = self.spec.geometry
            held = geometry.rank_experts
            self._loads[key] = expected_load(tokens, geometry.experts, geometry.top_k, row_tile, routing, held=held)
        return self._loads[key]

    def judged(self, op: OpSpec) -> tuple[Judged, ...]:
        """Every schedule that the catalog proposes for ``op``, in its order."""
        if op not in self._judged:
            schedules = self.catalog.schedules(op, self.device, self.choice)
            self._judged[op] = tuple(self.judge(Variant(op=op, schedule=schedule)) for schedule in schedules)
        return self._judged[op]

    def serves(self, op: OpSpec) -> bool:
        """True when the target has any kernel for this kind of op."""
        return bool(self.catalog.families(op.kind))

    def all_judged(self) -> tuple[Judged, ...]:
        """Everything judged so far."""
        return tuple(judged for group in self._judged.values() for judged in group)

    def time_us(self, variant: Variant, tokens: int, routing: RoutingClass) -> float:
        """Modelled time of one launch."""
        load = self.load(tokens, variant.op.row_tile, routing)
        return self.catalog.time_us(variant.op, variant.schedule, self.device, load)

    def best(self, op: OpSpec, count: int) -> tuple[Judged, ...]:
        """At most ``count`` legal candidates: the best over all points, then the best at single points, then the next
        best over all."""
        legal = [judged for judged in self.judged(op) if judged.verdict.legal]
        overall = sorted(legal, key=lambda judged: (mean_log(judged.times_us), judged.name))
        if not overall:
            return ()
        somewhere = [min(overall, key=lambda judged: judged.times_us[point]) for point in spread(len(self.points))]
        distinct = {judged.name: judged for judged in [overall[0], *somewhere, *overall]}
        return tuple(distinct.values())[:count]

    def judge(self, variant: Variant) -> Judged:
        """One variant, which the catalog need not propose."""
        verdict = self.catalog.verdict(variant.op, variant.schedule, self.device)
        if not verdict.legal:
            return Judged(variant=variant, verdict=verdict)
        times_us = tuple(self.time_us(variant, tokens, routing) for tokens, routing in self.points)
        return Judged(variant=variant, verdict=verdict, times_us=times_us)
