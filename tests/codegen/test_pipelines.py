"""Op chains: every buffer is written before it is read, unused fields stay at defaults, equal kernels are shared."""

from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
from codegen.specs import DYNAMIC, UNGATED, W4A16, spec

from moegen.codegen.pipelines import Shape, numerics_class, pipeline_ops
from moegen.core.abi import arguments
from moegen.core.enums import CombineMode, Epilogue, OpKind, Round
from moegen.core.ops import OpSpec
from moegen.spec import LayerSpec

CASES: dict[str, dict[str, Any]] = {
    "w4a4": {},
    "w4a4 dynamic": DYNAMIC,
    "w4a4 ungated": UNGATED,
    "w4a16": W4A16,
    "w4a16 ungated": {"activation": {"kind": "silu"}, "activations": {"format": "bf16"}, "epilogues": ["compact"]},
    "weight before quantising": {"numerics": {"router_weight": "pre_quant"}},
    "weight on the input": {"numerics": {"router_weight": "input"}},
    "w4a16, weight on the input": {**W4A16, "numerics": {"router_weight": "input"}},
    "bias, linear scales": {
        "weights": {"bias": True},
        "scale_layout": {"activations": "linear", "weights": "linear"},
    },
    "fp16": {
        "activations": {
            "format": "nvfp4",
            "dtype": "fp16",
            "activation_scale": {"gemm1": "static", "gemm2": "static"},
        },
        "numerics": {"pre_quant_round": "fp32"},
    },
}


def shapes(layer: LayerSpec) -> list[Shape]:
    grid = product(layer.epilogues, CombineMode, (True, False), ("", "k64"))
    return [
        Shape(epilogue=epilogue, combine=combine, row_tile=4, fused_gather=gather, rows_layout=layout)
        for epilogue, combine, gather, layout in grid
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_buffer_is_written_before_it_is_read(name: str) -> None:
    layer = spec(**CASES[name])
    for shape in shapes(layer):
        written: dict[str, tuple[str, tuple[str | int, ...]]] = {"y_acc": ("f32", ("T", "H"))}  # zeroed by the runtime
        for op in pipeline_ops(layer, shape, ("rows8", "rows8")):
            for argument in arguments(op):
                buffer = (argument.dtype, argument.shape)
                if argument.access == "read" and argument.role == "workspace":
                    assert written.get(argument.name) == buffer, (shape, op.kind, argument.name)
            written |= {
                argument.name: (argument.dtype, argument.shape)
                for argument in arguments(op)
                if argument.access != "read"
            }
        assert "y" in written


@pytest.mark.parametrize("name", CASES)
def test_scales_are_read_with_the_shape_they_are_given(name: str) -> None:
    """A second-level scale that one op writes and another reads is one tensor, and a static one has one shape."""
    layer = spec(**CASES[name])
    for shape in shapes(layer):
        found: dict[str, set[tuple[str | int, ...]]] = {}
        for op in pipeline_ops(layer, shape, ("rows8", "rows8")):
            for argument in arguments(op):
                if argument.role == "scale":
                    found.setdefault(argument.name, set()).add(argument.shape)
        assert all(len(seen) == 1 for seen in found.values()), (shape, found)


@pytest.mark.parametrize(
    ("changes", "epilogue", "kinds"),
    [
        ({}, "interleaved", "route quantize gemm1 deinterleave_quantize gemm2 combine"),
        ({}, "compact", "route quantize gemm1 quantize gemm2 combine"),
        ({}, "fused_fp4", "route quantize gemm1 gemm2 combine"),
        (W4A16, "interleaved", "route gemm1 deinterleave gemm2 combine"),
        (W4A16, "compact", "route gemm1 gemm2 combine"),
        (UNGATED, "compact", "route quantize gemm1 quantize gemm2 combine"),
        (UNGATED, "fused_fp4", "route quantize gemm1 gemm2 combine"),
    ],
)
def test_chain(changes: dict[str, Any], epilogue: str, kinds: str) -> None:
    shape = Shape(epilogue=Epilogue(epilogue), combine=CombineMode.ORDERED, row_tile=4)
    assert [op.kind.value for op in pipeline_ops(spec(**changes), shape)] == kinds.split()


def test_fused_pipelines_have_no_bf16_intermediate() -> None:
    shape = Shape(epilogue=Epilogue.FUSED_FP4, combine=CombineMode.ORDERED, row_tile=4)
    names = {argument.name for op in pipeline_ops(spec(), shape) for argument in arguments(op)}
    assert not names & {"h_rows", "h_pair"}


def test_separate_gather_replaces_the_fused_one() -> None:
    shape = Shape(epilogue=Epilogue.COMPACT, combine=CombineMode.ORDERED, row_tile=4, fused_gather=False)
    ops = pipeline_ops(spec(**W4A16), shape)
    assert [op.kind.value for op in ops] == ["route", "gather", "gemm1", "gemm2", "combine"]
    assert [op.gather for op in ops] == [False, True, False, False, False]


def test_ops_share_the_row_tile_and_only_rows_have_a_private_order() -> None:
    shape = Shape(epilogue=Epilogue.COMPACT, combine=CombineMode.ORDERED, row_tile=16, rows_layout="k64")
    ops = pipeline_ops(spec(), shape)
    assert {op.kind: op.row_tile for op in ops} == {
        OpKind.ROUTE: 16,
        OpKind.QUANTIZE: 16,
        OpKind.GEMM1: 16,
        OpKind.GEMM2: 16,
        OpKind.COMBINE: 1,
    }
    assert [op.rows_layout for op in ops] == ["", "", "k64", "k64", "", ""]


def used_fields(op: OpSpec) -> set[str]:
    """Fields whose change changes the arguments of the op."""
    trial: dict[str, Any] = {"bias": not op.bias, "gather": not op.gather, "fused_combine": not op.fused_combine}
    return {name for name, value in trial.items() if arguments(replace(op, **{name: value})) != arguments(op)}


@pytest.mark.parametrize("name", CASES)
def test_fields_that_change_no_argument_keep_their_default(name: str) -> None:
    layer = spec(**CASES[name])
    defaults = {field.name: field.default for field in fields(OpSpec)}
    for shape in shapes(layer):
        for op in pipeline_ops(layer, shape, ("rows8", "rows8")):
            for field in {"bias", "fused_combine"} - used_fields(op):
                assert getattr(op, field) == defaults[field], (op.kind, field)
            if op.kind not in (OpKind.GEMM1, OpKind.GEMM2):
                assert (op.weight_pack, op.weight_scale_layout, op.activation) == (
                    "",
                    defaults["weight_scale_layout"],
                    None,
                )


def test_kernels_that_do_not_depend_on_the_mode_are_shared() -> None:
    chains = [
        pipeline_ops(spec(), Shape(epilogue=epilogue, combine=CombineMode.ORDERED, row_tile=4)) for epilogue in Epilogue
    ]
    by_kind = {kind: {op for chain in chains for op in chain if op.kind is kind} for kind in OpKind}
    for kind in (OpKind.ROUTE, OpKind.GEMM2, OpKind.COMBINE):
        assert len(by_kind[kind]) == 1, kind
    assert len(by_kind[OpKind.GEMM1]) == 3


def test_route_and_combine_do_not_depend_on_the_model_around_them() -> None:
    shape = Shape(epilogue=Epilogue.COMPACT, combine=CombineMode.ORDERED, row_tile=4)
    small = pipeline_ops(spec(), shape)
    wide = pipeline_ops(spec(geometry={"hidden": 512, "intermediate": 352, "experts": 10, "top_k": 3}), shape)
    many = pipeline_ops(spec(geometry={"hidden": 256, "intermediate": 160, "experts": 20, "top_k": 3}), shape)
    assert small[0] == wide[0]
    assert small[-1] == many[-1]


@pytest.mark.parametrize(
    ("dtype", "declared", "epilogue", "expected"),
    [
        ("bf16", "fp32", Epilogue.FUSED_FP4, Round.FP32),
        ("bf16", "fp32", Epilogue.COMPACT, Round.BF16),
        ("bf16", "fp32", Epilogue.INTERLEAVED, Round.BF16),
        ("bf16", "bf16", Epilogue.FUSED_FP4, Round.BF16),
        ("fp16", "fp32", Epilogue.COMPACT, Round.FP16),
        ("fp16", "fp32", Epilogue.FUSED_FP4, Round.FP32),
    ],
)
def test_numerics_class(dtype: str, declared: str, epilogue: Epilogue, expected: Round) -> None:
    scale = {"gemm1": "static", "gemm2": "static"}
    layer = spec(
        activations={"format": "nvfp4", "dtype": dtype, "activation_scale": scale},
        numerics={"pre_quant_round": declared},
    )
    assert numerics_class(layer, epilogue).pre_quant_round is expected
    shape = Shape(epilogue=epilogue, combine=CombineMode.ORDERED, row_tile=4)
    gemm1 = next(op for op in pipeline_ops(layer, shape) if op.kind is OpKind.GEMM1)
    assert gemm1.numerics is not None
    assert gemm1.numerics.pre_quant_round is expected
