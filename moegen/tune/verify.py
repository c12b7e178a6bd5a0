"""Checks of every built pipeline against the reference: bit for bit, within the float gates, and on stale memory.

Bit for bit: on data whose sums are exact in fp32 (``moegen.numerics.exact``), where the order of accumulation cannot
matter, the whole layer must give the reference's bytes. Float gates: on realistic data. Stale memory: output and all
buffers are filled with bytes that mean NaN, all ones, or the largest scale, which must not show.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import torch

from moegen.core.abi import BLOCK
from moegen.core.enums import CombineMode, TokenDtype
from moegen.core.package import Pipeline
from moegen.numerics.exact import exact_projection, exact_rows, exact_tokens, single_projection
from moegen.numerics.quantize import Quantized, unscaled_values
from moegen.runtime.checkpoint import ExpertWeights, Projection
from moegen.runtime.engine import TOKEN_DTYPES
from moegen.runtime.kernels import KernelBook
from moegen.runtime.workspace import main_op
from moegen.tune.gate import GateVerdict, gate_tolerance, judge
from moegen.tune.inputs import LayerShape, TokenInputs, make_ids, make_tokens, make_weights, package_shape
from moegen.tune.rig import Rig, make_rig
from moegen.tune.routing import Routing, RoutingKind, draw_weights

POISONS = (0x7F, 0xFF, 0x7E)
"""NaN as a scale and as a float, all bits, and the largest finite scale: wrong finite numbers escape a NaN test."""
TOKENS = (1, 33)
"""One token, and a count that is a multiple of no tile."""
_ROUTINGS = (Routing(kind=RoutingKind.UNIFORM), Routing(kind=RoutingKind.ONE_HOT))
_SEED = 20


@dataclass(frozen=True, kw_only=True)
class PipelineCheck:
    """What was found on one pipeline. A failed part says where in ``reason``.

    Attributes:
        exact: bit-equal to the reference on exact-sum data; None for atomic combine, whose order is not defined.
        gate: the float gates on realistic data, worst input.
        poison: bit-equal outputs whatever the buffers held before.
        reason: first failure; empty when all passed.
    """

    pipeline: str
    exact: bool | None
    gate: GateVerdict
    poison: bool
    reason: str

    @property
    def passed(self) -> bool:
        """True when no part failed."""
        return not self.reason


def verify_pipelines(
    book: KernelBook,
    *,
    tokens: Sequence[int] = TOKENS,
    pipelines: Sequence[str] | None = None,
    batch_done: Callable[[str], None] = lambda _: None,
) -> Iterator[PipelineCheck]:
    """Checks built pipelines of a package on this machine, one at a time.

    Args:
        book: the package's kernels.
        tokens: batches to run, each under two routings.
        pipelines: names; by default all that are built.
        batch_done: called after every batch with its place, for progress.

    Raises:
        NotBuilt: none is built.
    """
    shape = package_shape(book)
    exact = _Side(rig=make_rig(book, exact_weights(shape, _SEED)), make=partial(exact_inputs, shape, seed=_SEED))
    device = torch.device(book.runner.device_type)
    real = _Side(rig=make_rig(book, make_weights(shape, _SEED, device)), make=partial(make_tokens, shape, seed=_SEED))
    for name, pipeline in exact.rig.pipelines.items():
        if pipelines is None or name in pipelines:
            yield _check(pipeline, exact, real, tokens, batch_done)


def batches_of_pipeline(tokens: Sequence[int]) -> int:
    """How often ``batch_done`` of :func:`verify_pipelines` is called for one pipeline."""
    return len(tokens) * len(_ROUTINGS)


@dataclass
class _Side:
    """A rig, its inputs, and their references; those of one numerics class serve all its pipelines."""

    rig: Rig
    make: Callable[..., TokenInputs]
    _references: dict[tuple[str, CombineMode, int, str], torch.Tensor] = field(default_factory=dict)

    def inputs(self, tokens: int, routing: Routing) -> TokenInputs:
        return self.make(tokens=tokens, routing=routing).to(str(self.rig.device))

    def reference(self, pipeline: Pipeline, inputs: TokenInputs, routing: Routing) -> torch.Tensor:
        key = (str(pipeline.numerics), pipeline.combine, inputs.x.shape[0], routing.label)
        if key not in self._references:
            self._references[key] = self.rig.reference(pipeline.name, inputs)["y"]
        return self._references[key]


def exact_weights(shape: LayerShape, seed: int) -> ExpertWeights:
    """Weights with which a whole layer has exact sums: any codes and scales 1 and 2 in W1, one value a row in W2.

    Second-level scales are no powers of two and differ between gate and up: what follows the sums is not trivial.
    """
    return ExpertWeights(
        gate=_exact_side(shape, seed, down=False) if shape.gated else None,
        up=_exact_side(shape, seed + 1, down=False),
        down=_exact_side(shape, seed + 2, down=True),
    )


def exact_inputs(shape: LayerShape, tokens: int, routing: Routing, seed: int) -> TokenInputs:
    """Tokens whose sums are exact with :func:`exact_weights`: NVFP4 values under W4A4, small halves otherwise."""
    dtype = TOKEN_DTYPES[shape.dtype]
    if shape.w4a4:
        x = unscaled_values(_full_range(tokens, shape.hidden, seed)).to(dtype)
    else:
        x = exact_tokens(tokens, shape.hidden, seed, TokenDtype(shape.dtype))
    ids = make_ids(shape, routing, tokens, seed)
    return TokenInputs(x=x, topk_ids=ids, topk_weights=draw_weights(tokens, shape.top_k, seed), seed=seed)


def _check(
    pipeline: Pipeline, exact: _Side, real: _Side, tokens: Sequence[int], batch_done: Callable[[str], None]
) -> PipelineCheck:
    name, op = pipeline.name, main_op(pipeline)
    tolerance = gate_tolerance(op.w4a4, op.intermediate)
    ordered = pipeline.combine is CombineMode.ORDERED
    worst = GateVerdict(passed=True, reason="", layer_error=0.0, row_error=0.0)
    reasons: list[str] = []
    bit_equal = clean = True
    for count, routing in product(filter(pipeline.serves, tokens), _ROUTINGS):
        place = f"T={count} {routing.label}"
        inputs = exact.inputs(count, routing)
        outputs = [exact.rig.run(name, inputs, poison=byte) for byte in POISONS]
        if ordered and any(not same_bits(outputs[0], other) for other in outputs[1:]):
            clean = False
            reasons.append(f"{place}: output depends on what the buffers held before")
        difference = first_difference(outputs[0], exact.reference(pipeline, inputs, routing))
        if ordered and difference:
            bit_equal = False
            reasons.append(f"{place}: exact data, {difference}")
        drawn = real.inputs(count, routing)
        output = real.rig.run(name, drawn, poison=POISONS[0])
        verdict = judge(output, real.reference(pipeline, drawn, routing), tolerance, seed=_SEED)
        if not verdict.passed:
            reasons.append(f"{place}: {verdict.reason}")
        worst = max(worst, verdict, key=lambda found: (not found.passed, found.layer_error))
        batch_done(f"{name} {place}")
    return PipelineCheck(
        pipeline=name,
        exact=bit_equal if ordered else None,
        gate=worst,
        poison=clean,
        reason=reasons[0] if reasons else "",
    )


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """True when two tensors agree bit for bit, NaN included."""
    return torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))


def first_difference(got: torch.Tensor, want: torch.Tensor) -> str:
    """Row, block and column of the first element whose bits differ, with both values; empty when none does."""
    width = got.element_size()
    wrong = got.contiguous().view(torch.uint8) != want.contiguous().view(torch.uint8)
    places = wrong.unflatten(-1, (-1, width)).any(-1).nonzero()
    if not len(places):
        return ""
    row, column = places[0].tolist()
    values = f"{got[row, column].item():.9g}, reference {want[row, column].item():.9g}"
    return f"row {row}, block {column // BLOCK}, column {column}: {values}; {len(places)} elements differ"


def _exact_side(shape: LayerShape, seed: int, *, down: bool) -> Projection:
    rows, columns = (shape.hidden, shape.intermediate) if down else (shape.intermediate, shape.hidden)
    made = (single_projection if down else exact_projection)(shape.experts, rows, columns, seed)
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(shape.experts, generator=generator) + 0.5
    # Halves of gemm1 have sums of a few hundred; the second level brings them to where the activation bends.
    second = spread / (8 if down else 256)
    inputs = (spread / 256 if down else torch.ones(shape.experts)) if shape.static_scales else None
    return Projection(
        codes=made.codes,
        scales=made.scales,
        second=second,
        input=inputs,
        bias=torch.randn(shape.experts, rows, generator=generator) if shape.bias else None,
    )


def _full_range(tokens: int, hidden: int, seed: int) -> Quantized:
    """Exact rows with a 6 in every block, so that quantising them gives the same codes and scales back."""
    rows = exact_rows(tokens, hidden, seed)
    rows.codes[:, : hidden // 2 : BLOCK // 2] |= 0x07
    return rows
