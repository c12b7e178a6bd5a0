"""The spec file as frozen pydantic models: every key, its type and its bounds."""

from itertools import pairwise
from keyword import iskeyword
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from moegen.core.canonical import digest
from moegen.core.enums import (
    ActFormat,
    ActivationKind,
    ActivationMath,
    ActScale,
    CombineMode,
    Contract,
    Epilogue,
    GateUpOrder,
    Round,
    RouterWeight,
    ScaleLayout,
    Target,
    TokenDtype,
)
from moegen.core.ops import Activation, Numerics
from moegen.spec.contradictions import contradictions

NAME_PATTERN = r"[a-z0-9][a-z0-9_]{0,63}"
MAX_COLUMNS = 1 << 20
MAX_EXPERTS = 1 << 14
MAX_TOP_K = 256
MAX_TOKENS = 1 << 20

Columns = Annotated[int, Field(strict=True, ge=1, le=MAX_COLUMNS)]
Constant = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-1e6, le=1e6)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[int, Field(strict=True, ge=0, le=MAX_COLUMNS)]
Word = Annotated[str, Field(strict=True, pattern=rf"^{NAME_PATTERN}$")]


class Section(BaseModel):
    """Base of every part of a spec: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Geometry(Section):
    """Sizes of one layer, in elements: ``hidden`` (H) and ``intermediate`` (I) are what each expert sees, unpadded.

    ``experts`` are those of the whole layer, of which a token takes ``top_k``; ``local_experts`` (by default all) are
    those that one rank of an expert-parallel group holds: possibly fewer than ``top_k``.
    """

    hidden: Columns
    intermediate: Columns
    experts: Annotated[int, Field(strict=True, ge=0, le=MAX_EXPERTS)]
    local_experts: Annotated[int, Field(strict=True, ge=0, le=MAX_EXPERTS)] | None = None
    top_k: Annotated[int, Field(strict=True, ge=0, le=MAX_TOP_K)]

    @property
    def rank_experts(self) -> int:
        """Experts whose weights one rank holds (E of its kernels)."""
        return self.experts if self.local_experts is None else self.local_experts

    @model_serializer(mode="wrap")
    def _without_unset(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A spec that says nothing of ranks has the same digest whether or not this key exists."""
        return {name: value for name, value in dump(self).items() if value is not None}


class ActivationSpec(Section):
    """Activation between the two matrix products, with the constants its kind needs and no others."""

    kind: ActivationKind
    alpha: Constant | None = None
    beta: Constant | None = None
    limit: Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1e6)] | None = None
    linear_beta: Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1e6)] | None = None


class Weights(Section):
    """What the checkpoint holds. ``gate_up_order`` is the row order of a fused gate/up matrix."""

    format: Literal["nvfp4"] = "nvfp4"
    gate_up_order: GateUpOrder = GateUpOrder.GATE_UP
    bias: Flag = False


class ActivationScale(Section):
    """Where the second-level scale of each product's input comes from."""

    gemm1: ActScale
    gemm2: ActScale


class Activations(Section):
    """Format of the rows that both products read, and dtype of the tokens."""

    format: ActFormat
    dtype: TokenDtype = TokenDtype.BF16
    activation_scale: ActivationScale | None = None


class ScaleLayouts(Section):
    """Order of E4M3 block scales in memory."""

    activations: ScaleLayout = ScaleLayout.SWIZZLE_128X4
    weights: ScaleLayout = ScaleLayout.SWIZZLE_128X4


class NumericsSpec(Section):
    """Everything that decides bytes in the exact domain."""

    contract: Contract = Contract.TE
    gate_round: Literal[Round.FP32, Round.BF16] = Round.FP32
    pre_quant_round: Literal[Round.FP32, Round.BF16] = Round.FP32
    router_weight: RouterWeight = RouterWeight.COMBINE
    activation_math: ActivationMath = ActivationMath.EXACT

    def value(self) -> Numerics:
        """The same choice as a core value."""
        return Numerics(**{name: getattr(self, name) for name in type(self).model_fields})


class EffectiveExperts(Section):
    """Tokens use only this share of the experts."""

    effective_experts: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]


class Zipf(Section):
    """Expert popularity falls as rank^-s."""

    zipf: Annotated[float, Field(strict=True, ge=0, le=4, allow_inf_nan=False)]


def _shape(value: Any) -> str:
    """Tag of a value where a spec allows several forms, so that an error speaks of the form that was meant."""
    if isinstance(value, dict | BaseModel):
        keys = set(value) if isinstance(value, dict) else set(type(value).model_fields)
        return "(zipf)" if "zipf" in keys else "(effective_experts)" if "effective_experts" in keys else "(mapping)"
    return {bool: "(flag)", int: "(number)"}.get(type(value), "(word)")


Routing = Annotated[
    Annotated[Literal["uniform", "one_hot"], Tag("(word)")]
    | Annotated[EffectiveExperts, Tag("(effective_experts)")]
    | Annotated[Zipf, Tag("(zipf)")],
    Discriminator(_shape),
]
FieldValue = Annotated[
    Annotated[Flag, Tag("(flag)")] | Annotated[Number, Tag("(number)")] | Annotated[Word, Tag("(word)")],
    Discriminator(_shape),
]
ChoiceValue = Annotated[
    Annotated[Flag, Tag("(flag)")]
    | Annotated[Number, Tag("(number)")]
    | Annotated[Word, Tag("(word)")]
    | Annotated[dict[Word, FieldValue], Tag("(mapping)")],
    Discriminator(_shape),
]
TargetChoice = Annotated[
    Annotated[Literal["auto"], Tag("(word)")] | Annotated[dict[Word, tuple[ChoiceValue, ...]], Tag("(mapping)")],
    Discriminator(_shape),
]


class Tune(Section):
    """What is measured: token counts, routing classes, and how many pipelines a target may keep as candidates."""

    tokens: tuple[Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)], ...] = Field(
        default=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192), min_length=1, max_length=64
    )
    routing: tuple[Routing, ...] = Field(default=("uniform",), min_length=1, max_length=16)
    pipelines: Annotated[int, Field(strict=True, ge=1, le=512)] = 24

    @field_validator("tokens")
    @classmethod
    def _rising(cls, tokens: tuple[int, ...]) -> tuple[int, ...]:
        if any(before >= after for before, after in pairwise(tokens)):
            raise PydanticCustomError("rising", "token counts must rise, each once")
        return tokens


class LayerSpec(Section):
    """One MoE layer: what to compute, in which modes, for which targets (docs/spec.md)."""

    name: Word
    source: Annotated[str, Field(strict=True, min_length=1, max_length=2000)]
    geometry: Geometry
    activation: ActivationSpec
    weights: Weights = Weights()
    activations: Activations
    scale_layout: ScaleLayouts = ScaleLayouts()
    numerics: NumericsSpec = NumericsSpec()
    epilogues: tuple[Epilogue, ...] = Field(min_length=1)
    combine: tuple[CombineMode, ...] = Field(default=(CombineMode.ORDERED,), min_length=1)
    targets: tuple[Target, ...] = Field(min_length=1)
    schedules: dict[Target, TargetChoice] = {}
    tune: Tune = Tune()

    @field_validator("name")
    @classmethod
    def _importable(cls, name: str) -> str:
        if not name.isidentifier() or iskeyword(name):
            raise PydanticCustomError("importable", "Python cannot import it")
        return name

    @field_validator("epilogues", "combine", "targets")
    @classmethod
    def _distinct(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(values)) != len(values):
            raise PydanticCustomError("distinct", "each value may appear once")
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "LayerSpec":
        problems = contradictions(self)
        if problems:
            text = "; ".join(f"{problem.field}: {problem.reason}" for problem in problems)
            raise PydanticCustomError("contradiction", "{text}", {"text": text, "problems": problems})
        return self

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the spec's content: file format, comments and key order do not count."""
        return digest(self.model_dump(mode="json"), "moegen.spec")

    def activation_value(self) -> Activation:
        """The activation as a core value."""
        return Activation(**{name: getattr(self.activation, name) for name in ActivationSpec.model_fields})
