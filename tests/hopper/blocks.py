"""Layers for the whole-layer kernel, and what it must write: the bytes of the separate ops."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from hopper.cases import HopperCase, private_buffers, public
from kernels.cases import ACTIVATIONS, buffers
from kernels.compare import Call, check_written
from kernels.compare import make_call as kernel_call
from torch import Tensor

from moegen.codegen.catalogs.sm90 import ROWS_LAYOUT
from moegen.codegen.catalogs.sm90_block import BLOCK, CATALOG, block_pack
from moegen.codegen.context import entry_arguments
from moegen.codegen.pipelines import Shape, pipeline_ops
from moegen.codegen.variant import Variant
from moegen.core.abi import arguments
from moegen.core.devices import H200
from moegen.core.enums import ActivationMath, Round, RouterWeight, Target
from moegen.core.ops import Numerics, OpSpec
from moegen.numerics.reference import run_op

Buffers = Mapping[str, Tensor]
SMALL: dict[str, Any] = {"hidden": 80, "intermediate": 144, "experts": 3, "top_k": 2, "tokens": 5, "w4a4": False}
RAGGED: dict[str, Any] = {**SMALL, "hidden": 176, "intermediate": 80, "experts": 5, "tokens": 7}


def block_op(case: HopperCase, ids_int64: bool = True) -> OpSpec:
    """The op that planning makes of a case when one kernel computes the layer."""
    shape = Shape(
        epilogue=case.epilogue, combine=case.combine, row_tile=case.row_tile, rows_layout=ROWS_LAYOUT, block=True
    )
    (op,) = pipeline_ops(case.spec(), shape)
    return replace(op, weight_pack=block_pack(op), ids_int64=ids_int64)


def block_variant(
    case: HopperCase, width: int = 8, warpgroups: int = 4, slots: int = 64, tiles: int = 2, **op: Any
) -> Variant:
    """A legal variant."""
    values = {"width": width, "warpgroups": warpgroups, "tiles": tiles, "slots": slots}
    variant = Variant(op=block_op(case, **op), schedule=BLOCK.make(**values))
    verdict = CATALOG.verdict(variant.op, variant.schedule, H200)
    assert verdict.legal, str(verdict)
    return variant


def numerics(place: RouterWeight, gate_round: Round = Round.FP32, math: str = "exact") -> Numerics:
    """Rounding points of a case."""
    return Numerics(router_weight=place, gate_round=gate_round, activation_math=ActivationMath(math))


def every_form() -> dict[str, HopperCase]:
    """Each activation once, with every place of the router weight, biases and gate rounding spread over them."""
    places, cases = tuple(RouterWeight), {}
    for index, (name, activation) in enumerate(ACTIVATIONS.items()):
        rounding = Round.BF16 if index % 2 and activation.kind.gated else Round.FP32
        cases[name] = HopperCase(
            **(RAGGED if index % 2 else SMALL),
            activation=activation,
            bias=index % 3 == 0,
            numerics=numerics(places[index % 3], rounding),
        )
    return cases


def given_buffers(case: HopperCase) -> dict[str, Tensor]:
    """Inputs with packed weights; experts without rows hold what must never be read.

    What the activation makes is of any magnitude, so each row of W2 keeps one code: its sums are exact.
    """
    made = buffers(case)
    rows = torch.arange(case.hidden)
    column = rows * 7 % case.intermediate
    kept = torch.zeros_like(made["w2_codes"])
    kept[:, rows, column // 2] = made["w2_codes"][:, rows, column // 2] & (0x0F << (4 * (column % 2))).to(torch.uint8)
    return private_buffers(case, {**made, "w2_codes": kept})


def make_call(variant: Variant, case: HopperCase, given: Buffers, byte: int, place: Callable[[Tensor], Tensor]) -> Call:
    """Arguments of one launch, outputs full of ``byte``; ``place`` copies each to where the kernel runs."""
    op, scratch = variant.op, CATALOG.scratch(variant.op, variant.schedule)
    ids = given["topk_ids"] if op.ids_int64 else given["topk_ids"].clamp(-(2**31), 2**31 - 1).to(torch.int32)
    parameters = entry_arguments(op, Target.SM_90A, scratch)
    return kernel_call(
        parameters,
        {**given, "topk_ids": ids},
        case.dims(),
        first_expert=case.first_expert,
        byte=byte,
        scratch_bytes=scratch.fixed,
        place=place,
    )


def check_call(variant: Variant, case: HopperCase, given: Buffers, call: Call, byte: int) -> None:
    """Demands the reference's bytes in y and in the rows between the phases, and inputs and counters as they were."""
    call.check_kept("block")
    written = {name: tensor.cpu() for name, tensor in call.written.items()}
    expected = run_op(public(variant.op), given, first_expert=case.first_expert)
    check_written(variant.op, arguments(variant.op), given, written, expected, byte)
