"""From a spec to the pipelines that a target offers, with a reason for everything that it does not."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product

from moegen.codegen.catalog import Catalog, Choice
from moegen.codegen.incumbents import Incumbents, keep_incumbents
from moegen.codegen.judging import Judge, Judged, mean_log
from moegen.codegen.load import UNIFORM
from moegen.codegen.pipelines import Shape, numerics_class, pipeline_ops
from moegen.codegen.prune import Candidate, Dropped, Kept, default_of, prune, rank
from moegen.codegen.registry import catalog as catalog_of
from moegen.codegen.variant import Variant
from moegen.core.devices import PLANNING_DEVICE, DeviceFacts
from moegen.core.enums import ActFormat, CombineMode, Epilogue, OpKind, RouterWeight, Target
from moegen.core.errors import SpecError
from moegen.core.ops import OpSpec
from moegen.core.package import Pipeline, Step
from moegen.spec.legality import refusal
from moegen.spec.models import LayerSpec, ScaleLayouts

MODEL_TOKENS = tuple(1 << exponent for exponent in range(15))
"""Token counts at which every pipeline's model prediction is recorded, besides those the spec tunes for."""
GEMM_CANDIDATES = 6
"""Schedules of each gemm that enter pipelines: the best overall, and the best at batches that cover the range."""
LISTED_CANDIDATES, LISTED_ROUTES = 20, 2
"""Schedules of each gemm, and of route, where the spec lists tiles itself: as many as it lists, within reason."""


@dataclass(frozen=True, kw_only=True)
class PackChoice:
    """The weight pack that all pipelines share, its bytes for one layer, and what the others would have cost.

    ``considered`` holds (pack, bytes, geometric-mean microseconds of the best gemm; inf when no schedule reads it).
    """

    kind: OpKind
    pack: str
    pack_bytes: int
    considered: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """What a target offers for a spec. ``default`` is empty when it offers no whole pipeline.

    Attributes:
        judged: every op × schedule that was considered, with verdicts.
        kept, dropped: pipelines after pruning, and those the model ranked out.
        loose: variants of ops that the target has although no pipeline uses them.
        rejected: (mode, reason) for everything that is not offered at all.
        notes: facts a user should know (numerics classes).
    """

    target: Target
    device: DeviceFacts
    default: str
    pipelines: tuple[Pipeline, ...]
    packs: tuple[PackChoice, ...]
    judged: tuple[Judged, ...]
    kept: tuple[Kept, ...]
    dropped: tuple[Dropped, ...]
    loose: tuple[Variant, ...]
    rejected: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every distinct variant to generate, in the order of first use."""
        used = [step.variant for kept in self.kept for step in kept.candidate.steps]
        return tuple({variant.name: variant for variant in [*used, *self.loose]}.values())


def plan(
    spec: LayerSpec, target: Target, device: DeviceFacts | None = None, *, incumbents: Incumbents | None = None
) -> TargetPlan:
    """Plans one target of a spec; ``incumbents`` are kept beside what the time model picks.

    Raises:
        SpecError: the target is not in the spec, or the spec's explicit schedules leave nothing legal.
    """
    if target not in spec.targets:
        raise SpecError(f"{target.value} is not in the spec's targets", f"spec {spec.name}", "add it to targets")
    device = device or PLANNING_DEVICE[target]
    catalog = catalog_of(target)
    declared, spec = spec, _with_layouts_of(spec, catalog)
    choice = _choice(spec, target)
    judge = Judge(spec, catalog, device, choice)
    shapes = _shapes(spec, catalog, choice)
    missing = _missing_ops(spec, shapes, judge)
    rejected = [*_refused_modes(spec), *missing]
    if missing:
        return _without_pipelines(judge, shapes, rejected, _notes(spec, declared))
    packs = tuple(_choose_pack(spec, shapes, judge, kind) for kind in (OpKind.GEMM1, OpKind.GEMM2))
    candidates, empty = _candidates(spec, shapes, judge, (packs[0].pack, packs[1].pack))
    rejected += dict.fromkeys(empty)
    _check_modes(spec, target, candidates, empty)
    ranked = rank(candidates)
    default = default_of(ranked, spec.numerics.value())
    picked, ranked_out = prune(ranked, default, spec.tune.pipelines, judge.labels, listed=_is_listed(choice))
    kept = keep_incumbents(incumbents or {}, shapes, (packs[0].pack, packs[1].pack), judge, picked)
    names = {item.candidate.name for item in kept}
    dropped = [item for item in ranked_out if item.candidate.name not in names]
    return TargetPlan(
        target=target,
        device=device,
        default=default.name,
        pipelines=tuple(_pipeline(item.candidate, judge) for item in kept),
        packs=packs,
        judged=judge.all_judged(),
        kept=tuple(kept),
        dropped=tuple(dropped),
        loose=(),
        rejected=tuple(rejected),
        notes=_notes(spec, declared),
    )


def _choice(spec: LayerSpec, target: Target) -> Choice:
    choice = spec.schedules.get(target, "auto")
    return None if isinstance(choice, str) else choice


def _with_layouts_of(spec: LayerSpec, catalog: Catalog) -> LayerSpec:
    """The spec with block scales in the orders that the target's kernels read; no caller of a layer sees them."""
    declared = spec.scale_layout
    read = ScaleLayouts(
        activations=catalog.scale_layout(declared.activations), weights=catalog.scale_layout(declared.weights)
    )
    return spec.model_copy(update={"scale_layout": read})


def _shapes(spec: LayerSpec, catalog: Catalog, choice: Choice) -> list[Shape]:
    w4a16 = spec.activations.format is ActFormat.BF16
    gathers = catalog.gather_forms() if w4a16 else (True,)
    layouts = catalog.rows_layouts(spec.activations.format)
    tiles = catalog.row_tiles(choice, spec.activations.format)
    forms = (False,) if w4a16 else catalog.decoded_forms()
    grid = product(spec.epilogues, spec.combine, tiles, layouts, gathers, forms)
    chains = [
        Shape(epilogue=epilogue, combine=combine, row_tile=tile, rows_layout=layout, fused_gather=gather, decoded=form)
        for epilogue, combine, tile, layout, gather, form in grid
    ]
    if w4a16 and catalog.families(OpKind.ARRANGE) and spec.numerics.router_weight is not RouterWeight.INPUT:
        chains += [replace(shape, arranged=True) for shape in chains if shape.fused_gather]
    offers_blocks = w4a16 and catalog.families(OpKind.BLOCK)
    blocks = [
        replace(shape, block=True, fused_gather=True, arranged=False)
        for shape in chains
        if offers_blocks and _may_be_block(shape)
    ]
    return chains + list(dict.fromkeys(blocks))


def _may_be_block(shape: Shape) -> bool:
    """True for the mode that one kernel can compute whole: compact rows, summed in order."""
    return shape.epilogue is Epilogue.COMPACT and shape.combine is CombineMode.ORDERED


def _missing_ops(spec: LayerSpec, shapes: list[Shape], judge: Judge) -> list[tuple[str, str]]:
    """Kinds of op that a pipeline of every mode needs and the target does not have."""
    kinds = {op.kind for shape in shapes for op in pipeline_ops(spec, shape) if not judge.serves(op)}
    target = judge.catalog.target.value
    return [(kind.value, f"{target} has no {kind.value} kernel") for kind in OpKind if kind in kinds]


def _refused_modes(spec: LayerSpec) -> list[tuple[str, str]]:
    """Epilogue modes the spec does not offer: illegal ones with their reason, the rest as not asked for."""
    scale = spec.activations.activation_scale
    refused: list[tuple[str, str]] = []
    for epilogue in Epilogue:
        if epilogue not in spec.epilogues:
            why = refusal(spec.activations.format, spec.activation.kind.gated, epilogue, scale.gemm2 if scale else None)
            refused.append((epilogue.value, why.reason if why else "legal, but not in the spec's epilogues"))
    return refused


def _without_pipelines(
    judge: Judge, shapes: list[Shape], rejected: list[tuple[str, str]], notes: tuple[str, ...]
) -> TargetPlan:
    """A target that lacks an op still generates the ops that it has, for one row tile, so that they are built."""
    row_tile = max(shape.row_tile for shape in shapes)
    loose: dict[str, Variant] = {}
    for shape in shapes:
        for op in pipeline_ops(judge.spec, shape):
            best = judge.best(op, 1)
            if shape.row_tile == row_tile and judge.serves(op):
                loose |= {judged.name: judged.variant for judged in best}
    return TargetPlan(
        target=judge.catalog.target,
        device=judge.device,
        default="",
        pipelines=(),
        packs=(),
        judged=judge.all_judged(),
        kept=(),
        dropped=(),
        loose=tuple(loose.values()),
        rejected=tuple(rejected),
        notes=notes,
    )


def _choose_pack(spec: LayerSpec, shapes: list[Shape], judge: Judge, kind: OpKind) -> PackChoice:
    """One pack for all pipelines: the one whose best schedules are fastest; the catalog's preference breaks ties."""
    ops = list(dict.fromkeys(op for shape in shapes for op in pipeline_ops(spec, shape) if op.kind is kind))
    offered = [judge.catalog.weight_packs(op) for op in ops]
    considered: list[tuple[str, int, float]] = []
    for pack in offered[0]:
        if all(pack in packs for packs in offered):
            packed = [replace(op, weight_pack=pack) for op in ops]
            considered.append((pack, judge.catalog.pack_bytes(packed[0]), _best_over_modes(packed, judge)))
    if not considered:
        what = f"no weight pack serves every mode of {kind.value}"
        raise SpecError(what, f"schedules.{judge.catalog.target.value}", "ask for fewer epilogues")
    pack, pack_bytes, _ = min(considered, key=lambda item: item[2])
    return PackChoice(kind=kind, pack=pack, pack_bytes=pack_bytes, considered=tuple(considered))


def _best_over_modes(ops: list[OpSpec], judge: Judge) -> float:
    """Geometric mean over epilogue modes of the best gemm of each, in microseconds; inf when a mode has none."""
    best: dict[Epilogue | None, float] = {op.epilogue: math.inf for op in ops}
    for op in ops:
        for judged in judge.best(op, 1):
            best[op.epilogue] = min(best[op.epilogue], mean_log(judged.times_us))
    return math.exp(sum(best.values()) / len(best))


def _candidates(
    spec: LayerSpec, shapes: list[Shape], judge: Judge, packs: tuple[str, str]
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Every combination of each shape's best schedules, and a reason for each shape that has none."""
    candidates: list[Candidate] = []
    empty: list[tuple[str, str]] = []
    for shape in shapes:
        ops = pipeline_ops(spec, shape, packs)
        options = [judge.best(op, _candidates_of(op, _is_listed(judge.choice))) for op in ops]
        for op, found in zip(ops, options, strict=True):
            if not found:
                mode = f"{shape.epilogue.value}, row tile {shape.row_tile}"
                empty.append((mode, f"no legal schedule for {op.kind.value}: {_usual_reason(judge, op)}"))
                break
        numerics = numerics_class(spec, shape.epilogue)
        candidates += [Candidate(shape=shape, numerics=numerics, steps=steps) for steps in product(*options)]
    return candidates, empty


def _is_listed(choice: Choice) -> bool:
    """True when a spec names joint tiles, and so a short list of schedules, for a target."""
    return choice is not None and "tile" in choice


def _candidates_of(op: OpSpec, listed: bool) -> int:
    """How many schedules of an op enter pipelines."""
    if op.weight_pack:
        return LISTED_CANDIDATES if listed else GEMM_CANDIDATES
    return LISTED_ROUTES if listed and op.kind is OpKind.ROUTE else 1


def _check_modes(spec: LayerSpec, target: Target, candidates: list[Candidate], empty: list[tuple[str, str]]) -> None:
    """Every mode that the spec asks for must have a pipeline: nothing is left out silently."""
    offered = {(candidate.shape.epilogue, candidate.shape.combine) for candidate in candidates}
    for epilogue, combine in product(spec.epilogues, spec.combine):
        if (epilogue, combine) not in offered:
            reasons = "; ".join(dict.fromkeys(reason for mode, reason in empty if mode.startswith(epilogue.value)))
            fix = f"list other values, or take {epilogue.value} or {target.value} out of the spec"
            what = f"no legal pipeline for {epilogue.value}, {combine.value}: {reasons}"
            raise SpecError(what, f"schedules.{target.value}", fix)


def _usual_reason(judge: Judge, op: OpSpec) -> str:
    """The refusal that most schedules of an op got."""
    verdicts = [judged.verdict for judged in judge.judged(op)]
    if not verdicts:
        return "the catalog proposes none"
    (predicate, _), *_ = Counter(verdict.predicate for verdict in verdicts).most_common(1)
    return next(str(verdict) for verdict in verdicts if verdict.predicate == predicate)


def _pipeline(candidate: Candidate, judge: Judge) -> Pipeline:
    tokens = sorted({*MODEL_TOKENS, *judge.spec.tune.tokens})
    variants = [step.variant for step in candidate.steps]
    limits = [judge.catalog.most_tokens(variant.op, variant.schedule) for variant in variants]
    most = min((limit for limit in limits if limit is not None), default=None)
    modelled = [count for count in tokens if most is None or count <= most]
    return Pipeline(
        name=candidate.name,
        target=judge.catalog.target,
        epilogue=candidate.shape.epilogue,
        combine=candidate.shape.combine,
        numerics=candidate.numerics,
        row_tile=candidate.shape.row_tile,
        steps=tuple(_step(variant, judge.catalog) for variant in variants),
        model_us=tuple((t, round(sum(judge.time_us(v, t, UNIFORM) for v in variants), 3)) for t in modelled),
        most_tokens=most,
    )


def _step(variant: Variant, catalog: Catalog) -> Step:
    scratch = catalog.scratch(variant.op, variant.schedule)
    return Step(op=variant.op, variant=variant.name, scratch_fixed=scratch.fixed, scratch_per_row=scratch.per_row)


def _notes(spec: LayerSpec, declared: LayerSpec) -> tuple[str, ...]:
    """What a user should know of a plan that the spec does not say."""
    notes = _numerics_notes(spec)
    if spec.scale_layout != declared.scale_layout:
        notes += ("block scales are kept in 128x4 tiles: rows are quantised so, weights' scales reordered at load",)
    return notes


def _numerics_notes(spec: LayerSpec) -> tuple[str, ...]:
    """Says so when the spec's modes fall into several numerics classes, which the tuner never compares."""
    classes: dict[str, list[str]] = {}
    for epilogue in spec.epilogues:
        rounding = numerics_class(spec, epilogue).pre_quant_round.value
        classes.setdefault(rounding, []).append(epilogue.value)
    if len(classes) < 2:
        return ()
    groups = "; ".join(f"{', '.join(modes)}: {rounding}" for rounding, modes in classes.items())
    return (
        f"pre_quant_round differs between modes ({groups}), since modes that store rows round to the token dtype. "
        "The tuner compares pipelines of one class only; pre_quant_round: bf16 puts all modes into one class.",
    )
