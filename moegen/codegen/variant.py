"""OpSpec × Schedule, and the canonical name that says everything about it and parses back.

A name is ``<op tokens>--<schedule tokens>``, tokens joined by ``-``. The first op token is the kind; after it come, in
a fixed order, only the fields that differ from ``OpSpec``'s defaults: words for enum members and flags, a tag and a
number for the rest (``gemm1-e8-k2-h256-i160-rt8-w4a4-fused-swiglu-te-wp_rows8--cpu-panel-r8-c32-kc128-u2``).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moegen.codegen.schedule import Schedule, ScheduleFamily
from moegen.core.canonical import digest
from moegen.core.enums import (
    ActFormat,
    ActivationKind,
    ActivationMath,
    ActScale,
    CombineMode,
    Contract,
    Epilogue,
    OpKind,
    Round,
    RouterWeight,
    ScaleLayout,
    Target,
    TokenDtype,
)
from moegen.core.errors import IllegalVariant
from moegen.core.ops import Activation, Numerics, OpSpec

_NUMBERS = {"experts": "e", "top_k": "k", "hidden": "h", "intermediate": "i", "row_tile": "rt"}
_CONSTANTS = {"alpha": "alpha", "beta": "beta", "limit": "limit", "linear_beta": "lbeta"}
_NAMES = {"weight_pack": "wp_", "rows_layout": "rl_"}
#: (owner, field) to the word of each member; the member that is OpSpec's or Numerics' default has no word.
_WORDS: dict[tuple[str, str], dict[Any, str]] = {
    ("op", "dtype"): {TokenDtype.FP16: "fp16"},
    ("op", "act_format"): {ActFormat.NVFP4: "w4a4"},
    ("op", "scale_layout"): {ScaleLayout.SWIZZLE_128X4: "xswz"},
    ("op", "weight_scale_layout"): {ScaleLayout.SWIZZLE_128X4: "wswz"},
    ("op", "epilogue"): {
        Epilogue.INTERLEAVED: "interleaved",
        Epilogue.COMPACT: "compact",
        Epilogue.FUSED_FP4: "fused",
    },
    ("activation", "kind"): {kind: kind.value.replace("_", "") for kind in ActivationKind},
    ("numerics", "contract"): {
        contract: contract.value.replace("compressed_tensors", "ct").replace("_", "") for contract in Contract
    },
    ("numerics", "gate_round"): {Round.BF16: "gatebf16", Round.FP16: "gatefp16"},
    ("numerics", "pre_quant_round"): {Round.BF16: "prebf16", Round.FP16: "prefp16"},
    ("numerics", "router_weight"): {RouterWeight.PRE_QUANT: "wpre", RouterWeight.INPUT: "winput"},
    ("numerics", "activation_math"): {ActivationMath.FAST: "fast"},
    ("op", "bias"): {True: "bias"},
    ("op", "gather"): {True: "gather"},
    ("op", "act_scale"): {ActScale.STATIC: "static", ActScale.DYNAMIC_TENSOR: "dynamic"},
    ("op", "ids_int64"): {False: "ids32"},
    ("op", "combine"): {CombineMode.ORDERED: "ordered", CombineMode.ATOMIC: "atomic"},
    ("op", "fused_combine"): {True: "fusedcombine"},
    ("op", "decoded"): {True: "decoded"},
    ("op", "arranged"): {True: "arranged"},
}
_BY_WORD = {word: (owner, field, member) for (owner, field), words in _WORDS.items() for member, word in words.items()}
_TAGS = {tag: ("op", name) for name, tag in _NUMBERS.items()} | {
    tag: ("activation", name) for name, tag in _CONSTANTS.items()
}
_NUMBER = re.compile(rf"({'|'.join(_TAGS)})(m?\d[\d.]*(?:em?\d+)?)")


def _number_text(value: float) -> str:
    return repr(value).replace("-", "m").replace("+", "")


def _op_tokens(op: OpSpec) -> list[str]:
    owners = {"op": op, "activation": op.activation, "numerics": op.numerics}
    tokens = [op.kind.value]
    tokens += [f"{tag}{getattr(op, name)}" for name, tag in _NUMBERS.items()]
    for (owner, name), words in _WORDS.items():
        if owners[owner] is None:
            continue
        word = words.get(getattr(owners[owner], name))
        tokens += [word] if word else []
        if (owner, name) == ("activation", "kind") and op.activation is not None:
            tokens += _constant_tokens(op.activation)
    return tokens + [prefix + getattr(op, name) for name, prefix in _NAMES.items() if getattr(op, name)]


def _constant_tokens(activation: Activation) -> list[str]:
    constants = {tag: getattr(activation, name) for name, tag in _CONSTANTS.items()}
    return [f"{tag}{_number_text(float(value))}" for tag, value in constants.items() if value is not None]


def op_name(op: OpSpec) -> str:
    """The op half of a canonical name."""
    return "-".join(_op_tokens(op))


def parse_op(text: str) -> OpSpec:
    """Inverse of :func:`op_name`.

    Raises:
        IllegalVariant: not a canonical op name.
    """
    kind, *tokens = text.split("-")
    values: dict[str, dict[str, Any]] = {"op": {}, "activation": {}, "numerics": {}}
    try:
        values["op"]["kind"] = OpKind(kind)
        for token in tokens:
            owner, name, value = _read_token(token)
            values[owner][name] = value
        if values["activation"]:
            values["op"]["activation"] = Activation(**values["activation"])
        if values["numerics"]:
            values["op"]["numerics"] = Numerics(**values["numerics"])
        op = OpSpec(**values["op"])
    except (TypeError, ValueError) as error:
        raise IllegalVariant(f"not an op name ({error})", text, "copy the name from `moegen plan`") from error
    if op_name(op) != text:
        raise IllegalVariant(f"not in canonical form, which is {op_name(op)}", text)
    return op


def _read_token(token: str) -> tuple[str, str, Any]:
    if token in _BY_WORD:
        return _BY_WORD[token]
    for name, prefix in _NAMES.items():
        if token.startswith(prefix):
            return "op", name, token.removeprefix(prefix)
    match = _NUMBER.fullmatch(token)
    if match is None:
        raise ValueError(f"token {token!r}")
    tag, text = match.groups()
    owner, name = _TAGS[tag]
    return owner, name, int(text) if owner == "op" else float(text.replace("m", "-"))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kernel: what it computes and how."""

    op: OpSpec
    schedule: Schedule

    @property
    def target(self) -> Target:
        """The target it is generated for."""
        return self.schedule.family.target

    @property
    def name(self) -> str:
        """Canonical name; equal names mean equal variants."""
        return f"{op_name(self.op)}--{self.schedule.name}"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical name."""
        return digest(self.name, "moegen.variant")


def parse_variant(name: str, families: Callable[[Target, OpKind], tuple[ScheduleFamily, ...]]) -> Variant:
    """Inverse of :attr:`Variant.name`; ``families`` looks schedule families up (``registry.families``).

    Raises:
        IllegalVariant: not a canonical variant name.
    """
    op_text, separator, schedule_text = name.partition("--")
    target_text, *tokens = schedule_text.split("-")
    if not separator or target_text not in {target.value for target in Target} or not tokens:
        raise IllegalVariant("not a variant name", name, "copy the name from `moegen plan`")
    op = parse_op(op_text)
    by_name = {family.name: family for family in families(Target(target_text), op.kind)}
    if tokens[0] not in by_name:
        raise IllegalVariant(f"no schedule family {tokens[0]!r}", name, f"use one of {sorted(by_name)}")
    return Variant(op=op, schedule=by_name[tokens[0]].parse(tokens[1:]))
