"""Checks that need more than one field: impossible geometry, missing or unused constants, illegal cells."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moegen.core.abi import BLOCK
from moegen.core.enums import ActFormat, ActivationKind, Epilogue, Round, TokenDtype
from moegen.spec.legality import refusal

if TYPE_CHECKING:
    from moegen.spec.models import LayerSpec

#: Constants of each activation: (required, optional).
CONSTANTS: dict[ActivationKind, tuple[frozenset[str], frozenset[str]]] = {
    kind: (frozenset(), frozenset()) for kind in ActivationKind
} | {
    ActivationKind.SWIGLU_OAI: (frozenset({"alpha", "limit", "beta"}), frozenset()),
    ActivationKind.SWIGLU_CLAMP: (frozenset({"limit"}), frozenset()),
    ActivationKind.SWIGLUSTEP: (frozenset({"limit"}), frozenset()),
    ActivationKind.SITU: (frozenset({"beta"}), frozenset({"linear_beta"})),
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a spec. ``field`` is a dotted path from the root."""

    field: str
    reason: str
    fix: str


def contradictions(spec: "LayerSpec") -> list[Problem]:
    """Everything wrong with a spec whose fields are each well-formed, in the order of the file's sections."""
    checks = (_geometry, _activation, _activations, _epilogues, _rounding, _schedules)
    return [problem for check in checks for problem in check(spec)]


def _geometry(spec: "LayerSpec") -> Iterator[Problem]:
    geometry = spec.geometry
    for name in ("hidden", "intermediate"):
        size = getattr(geometry, name)
        if size % BLOCK:
            reason = f"{size} is not a multiple of {BLOCK}, and one NVFP4 block scale covers {BLOCK} elements along K"
            fix = f"use {size - size % BLOCK} or {size + BLOCK - size % BLOCK}; no NVFP4 checkpoint has {size} columns"
            yield Problem(field=f"geometry.{name}", reason=reason, fix=fix)
    if geometry.experts < 1:
        yield Problem(field="geometry.experts", reason=f"experts is {geometry.experts}", fix="a layer has at least 1")
    if geometry.top_k < 1:
        yield Problem(
            field="geometry.top_k", reason=f"top_k is {geometry.top_k}", fix="a token takes at least 1 expert"
        )
    if geometry.top_k > geometry.experts:
        reason = f"top_k is {geometry.top_k} but experts is {geometry.experts}; a token takes different experts"
        yield Problem(field="geometry.top_k", reason=reason, fix="lower top_k or raise geometry.experts")
    if not 1 <= geometry.rank_experts <= max(geometry.experts, 1):
        reason = f"local_experts is {geometry.rank_experts} of {geometry.experts} experts"
        fix = "state how many of the layer's experts one rank holds, or leave it out when it holds all"
        yield Problem(field="geometry.local_experts", reason=reason, fix=fix)


def _activation(spec: "LayerSpec") -> Iterator[Problem]:
    kind = spec.activation.kind
    required, optional = CONSTANTS[kind]
    for name in ("alpha", "beta", "limit", "linear_beta"):
        given = getattr(spec.activation, name) is not None
        if name in required and not given:
            yield Problem(field=f"activation.{name}", reason=f"{kind.value} needs {name}", fix=f"state {name}")
        if given and name not in required | optional:
            yield Problem(field=f"activation.{name}", reason=f"{kind.value} has no {name}", fix=f"remove {name}")
    if kind is ActivationKind.SITU and spec.activation.beta is not None and spec.activation.beta <= 0:
        reason = f"situ divides by beta, which is {spec.activation.beta}"
        yield Problem(field="activation.beta", reason=reason, fix="beta must be positive")


def _activations(spec: "LayerSpec") -> Iterator[Problem]:
    activations = spec.activations
    field = "activations.activation_scale"
    if activations.format is ActFormat.NVFP4 and activations.activation_scale is None:
        fix = "write {gemm1: static, gemm2: static}, or dynamic_tensor where the checkpoint has no input_scale"
        yield Problem(field=field, reason="FP4 rows need a second-level scale for each gemm", fix=fix)
    if activations.format is ActFormat.BF16 and activations.activation_scale is not None:
        yield Problem(
            field=field, reason="bf16 rows have no scale", fix="remove it, or set activations.format to nvfp4"
        )


def _epilogues(spec: "LayerSpec") -> Iterator[Problem]:
    scale = spec.activations.activation_scale
    if spec.activations.format is ActFormat.NVFP4 and scale is None:
        return
    for index, epilogue in enumerate(spec.epilogues):
        why = refusal(spec.activations.format, spec.activation.kind.gated, epilogue, scale.gemm2 if scale else None)
        if why:
            yield Problem(field=f"{why.field}.{index}", reason=why.reason, fix=why.fix)


def _rounding(spec: "LayerSpec") -> Iterator[Problem]:
    numerics = spec.numerics
    stored = [epilogue.value for epilogue in spec.epilogues if epilogue is not Epilogue.FUSED_FP4]
    if spec.activations.dtype is TokenDtype.FP16 and numerics.pre_quant_round is Round.BF16 and stored:
        reason = f"{' and '.join(stored)} round to the token dtype, fp16, when they store rows"
        yield Problem(field="numerics.pre_quant_round", reason=reason, fix="use fp32, or activations.dtype bf16")
    if numerics.gate_round is Round.BF16 and not spec.activation.kind.gated:
        reason = f"{spec.activation.kind.value} has no gate to round"
        yield Problem(field="numerics.gate_round", reason=reason, fix="use fp32")


def _schedules(spec: "LayerSpec") -> Iterator[Problem]:
    for target, choice in spec.schedules.items():
        field = f"schedules.{target.value}"
        if target not in spec.targets:
            yield Problem(field=field, reason="this target is not in targets", fix=f"add {target.value} to targets")
        if isinstance(choice, dict):
            for name, values in choice.items():
                if not values:
                    yield Problem(
                        field=f"{field}.{name}", reason="no value to consider", fix="list values, or remove it"
                    )
                elif name != "tile" and any(isinstance(value, dict) for value in values):
                    fix = "only tile holds mappings; list plain values"
                    yield Problem(field=f"{field}.{name}", reason="a mapping where a value belongs", fix=fix)
