"""Why a plan is what it is, as plain data: what ``moegen plan --why`` prints and ``--json`` emits."""

import math
from collections import Counter
from typing import Any

from moegen.codegen.judging import Judged, mean_log
from moegen.codegen.planning import PackChoice, TargetPlan
from moegen.codegen.variant import op_name


def explain_plan(plan: TargetPlan) -> dict[str, Any]:
    """Everything a plan decided, JSON-ready. Times are modelled microseconds and rank candidates only.

    Keys: ``target``, ``device``, ``default``, ``notes``, ``rejected`` (mode, reason), ``packs``, ``pipelines`` (kept,
    and why), ``dropped`` (name, times slower than the best), ``ops`` (counts, and every schedule's verdict).
    """
    return {
        "target": plan.target.value,
        "device": plan.device.name,
        "default": plan.default,
        "notes": list(plan.notes),
        "rejected": [{"mode": mode, "reason": reason} for mode, reason in plan.rejected],
        "packs": [_pack(choice) for choice in plan.packs],
        "pipelines": [
            {
                "name": item.candidate.name,
                "kept": item.reason,
                "mean_us": _mean_us(item.candidate.times_us),
                "variants": [step.name for step in item.candidate.steps],
            }
            for item in plan.kept
        ],
        "dropped": [{"name": item.candidate.name, "slower": _times(item.slower)} for item in plan.dropped],
        "ops": _ops(plan),
    }


def _pack(choice: PackChoice) -> dict[str, Any]:
    considered = [
        {"pack": pack, "bytes": size, "mean_us": round(time_us, 2) if math.isfinite(time_us) else None}
        for pack, size, time_us in choice.considered
    ]
    return {"op": choice.kind.value, "pack": choice.pack, "bytes": choice.pack_bytes, "considered": considered}


def _ops(plan: TargetPlan) -> list[dict[str, Any]]:
    used = {variant.name for variant in plan.variants}
    groups: dict[str, list[Judged]] = {}
    for judged in plan.judged:
        groups.setdefault(op_name(judged.variant.op), []).append(judged)
    return [
        {
            "op": name,
            "legal": sum(judged.verdict.legal for judged in group),
            "refused": dict(Counter(judged.verdict.predicate for judged in group if not judged.verdict.legal)),
            "schedules": sorted((_schedule(judged, used) for judged in group), key=_rank),
        }
        for name, group in groups.items()
    ]


def _schedule(judged: Judged, used: set[str]) -> dict[str, Any]:
    return {
        "schedule": judged.variant.schedule.name,
        "legal": judged.verdict.legal,
        "verdict": str(judged.verdict),
        "mean_us": _mean_us(judged.times_us) if judged.verdict.legal else None,
        "used": judged.name in used,
    }


def _rank(schedule: dict[str, Any]) -> tuple[bool, float, str]:
    """Legal schedules first, fastest first; equal ones in the order of names."""
    return (not schedule["legal"], schedule["mean_us"] or 0.0, schedule["schedule"])


def _times(slower: float) -> float | None:
    """Times slower than the best; None when some batch cannot be served at all."""
    return round(math.exp(slower), 3) if math.isfinite(slower) else None


def _mean_us(times_us: tuple[float, ...]) -> float | None:
    """Geometric mean; None when some batch cannot be served at all."""
    mean = mean_log(times_us)
    return round(math.exp(mean), 2) if math.isfinite(mean) else None
