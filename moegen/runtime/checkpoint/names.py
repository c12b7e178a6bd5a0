"""How checkpoints name expert tensors, as data: one row per convention, one function that finds the row of a layer.

A tensor's full name is ``<prefix>layers.<L>.<block>.<rest>``; ``rest`` depends on the convention's form.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from moegen.core.enums import GateUpOrder


class Form(str, Enum):
    """How a convention cuts the experts of a layer into tensors."""

    PER_EXPERT = "per_expert"
    STACKED = "stacked"
    FUSED_COLUMNS = "fused_columns"
    FUSED_ROWS = "fused_rows"


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Suffixes of one quantiser's tensors. ``divides``: second-level scales are stored as 2688/amax, not amax/2688."""

    name: str
    codes: str
    scales: str
    second: str
    input: str
    divides: bool


MODELOPT = Dialect(
    name="modelopt", codes="weight", scales="weight_scale", second="weight_scale_2", input="input_scale", divides=False
)
COMPRESSED_TENSORS = Dialect(
    name="compressed-tensors",
    codes="weight_packed",
    scales="weight_scale",
    second="weight_global_scale",
    input="input_global_scale",
    divides=True,
)
DIALECTS = (MODELOPT, COMPRESSED_TENSORS)


@dataclass(frozen=True, kw_only=True)
class Convention:
    """One way to name the experts of a layer.

    Attributes:
        models: who uses it.
        form: per_expert: ``<e>.<leaf>.<suffix>``, one matrix each; stacked: ``<leaf>.<suffix>`` with experts first;
            fused_columns: ``<leaf>`` and ``<leaf>_<suffix>``, K before N, packed along K; fused_rows: the same, N
            before K, one second-level scale per half.
        blocks: module paths between the layer's number and ``rest``.
        gate, up, down: leaf names; ``gate`` None: no gate; ``gate == up``: one fused matrix.
        order: rows (or columns) of a fused matrix.
    """

    models: str
    form: Form
    blocks: tuple[str, ...]
    gate: str | None
    up: str
    down: str
    order: GateUpOrder = GateUpOrder.GATE_UP

    @property
    def fused(self) -> bool:
        """True when gate and up are one tensor."""
        return self.gate == self.up

    def leaf(self, side: str) -> str:
        """Leaf name of ``gate``, ``up`` or ``down``; KeyError for the gate of an ungated convention."""
        return {leaf_side: leaf for leaf_side, leaf in self._sides() if leaf}[side]

    def _sides(self) -> tuple[tuple[str, str | None], ...]:
        return (("gate", self.gate), ("up", self.up), ("down", self.down))

    @property
    def leaves(self) -> tuple[str, ...]:
        """Distinct leaf names, gate first."""
        return tuple(dict.fromkeys(leaf for leaf in (self.gate, self.up, self.down) if leaf))


PREFIXES = ("", "model.", "model.language_model.", "language_model.model.", "backbone.", "model.llm.")

CONVENTIONS = (
    Convention(
        models="Qwen3-MoE, Qwen3-Next, Qwen3.5, DeepSeek-V3, GLM, Kimi-K2, Laguna, Gemma-4; GPT-OSS and Llama4 unfused",
        form=Form.PER_EXPERT,
        blocks=("mlp.experts", "experts", "feed_forward.experts"),
        gate="gate_proj",
        up="up_proj",
        down="down_proj",
    ),
    Convention(
        models="DeepSeek-V4, Mixtral, MiniMax-M2 and M3, Kimi-K3, Mistral native",
        form=Form.PER_EXPERT,
        blocks=("ffn.experts", "block_sparse_moe.experts", "mlp.experts", "experts"),
        gate="w1",
        up="w3",
        down="w2",
    ),
    Convention(
        models="Nemotron-3",
        form=Form.PER_EXPERT,
        blocks=("mixer.experts",),
        gate=None,
        up="up_proj",
        down="down_proj",
    ),
    Convention(
        models="Step-3.5, Step-3.7",
        form=Form.STACKED,
        blocks=("moe",),
        gate="gate_proj",
        up="up_proj",
        down="down_proj",
    ),
    Convention(
        models="GPT-OSS",
        form=Form.FUSED_COLUMNS,
        blocks=("mlp.experts",),
        gate="gate_up_proj",
        up="gate_up_proj",
        down="down_proj",
        order=GateUpOrder.INTERLEAVED,
    ),
    Convention(
        models="Llama4",
        form=Form.FUSED_COLUMNS,
        blocks=("feed_forward.experts",),
        gate="gate_up_proj",
        up="gate_up_proj",
        down="down_proj",
    ),
    Convention(
        models="Muse-Spark",
        form=Form.FUSED_ROWS,
        blocks=("mlp.experts",),
        gate="gate_up_proj",
        up="gate_up_proj",
        down="down_proj",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A layer's experts in a checkpoint: the convention, its container (``model.layers.3.mlp.experts``) and the names
    below it, without the container."""

    convention: Convention
    container: str
    rests: frozenset[str]


_BLOCKS = sorted({block for convention in CONVENTIONS for block in convention.blocks})
_NAME = re.compile(
    rf"(?P<container>(?:{'|'.join(map(re.escape, PREFIXES))})layers\.(?P<layer>\d+)"
    rf"\.(?P<block>{'|'.join(map(re.escape, _BLOCKS))}))\.(?P<rest>.+)"
)


def layers_with_experts(names: Iterable[str]) -> dict[int, list[Found]]:
    """Every layer that has expert tensors under a known convention; more than one entry means an ambiguous layer."""
    rests: dict[tuple[int, str, str], set[str]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match:
            rests.setdefault((int(match["layer"]), match["container"], match["block"]), set()).add(match["rest"])
    found: dict[int, list[Found]] = {}
    for (layer, container, block), below in sorted(rests.items()):
        for convention in CONVENTIONS:
            if block in convention.blocks and any(_belongs(convention, rest) for rest in below):
                entry = Found(convention=convention, container=container, rests=frozenset(below))
                found.setdefault(layer, []).append(entry)
    return found


def _belongs(convention: Convention, rest: str) -> bool:
    """True when ``rest`` could only come from this convention's gate, up or fused leaf (down leaves are shared)."""
    leaf = re.escape(convention.up)
    if convention.form is Form.PER_EXPERT:
        return re.match(rf"^\d+\.{leaf}\.", rest) is not None
    if convention.form is Form.STACKED:
        return re.match(rf"^{leaf}\.", rest) is not None
    return re.match(rf"^{leaf}($|_)", rest) is not None


def experts_named(found: Found) -> int:
    """Experts that a per-expert layer names: one more than the largest id; 0 for other forms."""
    ids = [int(rest.split(".", 1)[0]) for rest in found.rests if rest.split(".", 1)[0].isdigit()]
    return max(ids) + 1 if ids and found.convention.form is Form.PER_EXPERT else 0
