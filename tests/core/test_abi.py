"""The ABI's shapes against literal numbers, and its row bound against every small routing."""

import itertools
from dataclasses import replace

import pytest

from moegen.core import enums
from moegen.core.abi import Argument, Dims, arguments, code_pitch, row_capacity
from moegen.core.ops import Activation, Numerics, OpSpec

BASE = OpSpec(
    kind=enums.OpKind.GEMM1,
    experts=5,
    top_k=2,
    hidden=144,
    intermediate=80,
    act_format=enums.ActFormat.NVFP4,
    scale_layout=enums.ScaleLayout.SWIZZLE_128X4,
    weight_scale_layout=enums.ScaleLayout.SWIZZLE_128X4,
    row_tile=8,
    epilogue=enums.Epilogue.FUSED_FP4,
    activation=Activation(kind=enums.ActivationKind.SWIGLU),
    numerics=Numerics(),
    bias=True,
    weight_pack="rows8",
)
DIMS = Dims(tokens=3, top_k=2, experts=5, hidden=144, intermediate=80, row_tile=8)


def shapes(op: OpSpec) -> dict[str, tuple[int, ...]]:
    return {a.name: DIMS.shape(a) for a in arguments(op) if "*" not in a.shape}


def named(op: OpSpec, name: str) -> Argument:
    return next(a for a in arguments(op) if a.name == name)


def test_fused_gemm1_shapes() -> None:
    assert shapes(BASE) == {
        "x_codes": (40, 80),  # 5 active experts x 8 rows; 72 bytes of codes, pitch 80
        "x_scales": (128, 12),  # 9 scale columns padded to 12, rows to 128
        "x_scale": (1, 2),
        "w1_codes": (5, 160, 80),
        "w1_scales": (5, 256, 12),
        "w1_alpha": (5, 2),
        "w1_bias": (5, 160),
        "row_slot": (40,),
        "expert_offsets": (6,),
        "expert_rows": (5,),
        "tile_expert": (5,),
        "totals": (4,),
        "h_scale": (5, 2),
        "h_codes": (40, 48),
        "h_scales": (128, 8),
    }


def test_fused_mode_has_no_row_buffer() -> None:
    assert not any(a.name in ("h_rows", "h_pair") for a in arguments(BASE))


def test_private_pack_is_one_tensor() -> None:
    op = replace(BASE, weight_pack="sm90_m64k128")
    assert named(op, "w1_packed").shape == ("E", "*")
    assert not any(a.name in ("w1_codes", "w1_scales") for a in arguments(op))


def test_router_weight_reaches_exactly_one_op() -> None:
    """The weight is an argument of one op only, wherever the spec puts it: it cannot be applied twice or dropped."""
    for where, act in itertools.product(enums.RouterWeight, enums.ActFormat):
        numerics = Numerics(router_weight=where)
        common = replace(BASE, numerics=numerics, act_format=act, gather=True)
        if act is enums.ActFormat.BF16:
            steps = [replace(common, epilogue=enums.Epilogue.COMPACT)]
        else:
            steps = [replace(common, kind=enums.OpKind.QUANTIZE, act_scale=enums.ActScale.STATIC), common]
        steps += [
            replace(common, kind=enums.OpKind.GEMM2, gather=False),
            replace(common, kind=enums.OpKind.COMBINE, combine=enums.CombineMode.ORDERED, gather=False),
        ]
        takers = [op.kind for op in steps if any(a.name == "topk_weights" for a in arguments(op))]
        assert len(takers) == 1, (where, act, takers)


def test_dynamic_scale_is_written_by_the_quantiser() -> None:
    op = replace(BASE, kind=enums.OpKind.QUANTIZE, act_scale=enums.ActScale.DYNAMIC_TENSOR, epilogue=None)
    pair = named(op, "h_scale")
    assert (pair.access, pair.shape) == ("write", (1, 2))
    static = named(replace(op, act_scale=enums.ActScale.STATIC), "h_scale")
    assert (static.access, static.shape) == ("read", ("E", 2))


@pytest.mark.parametrize(
    ("columns", "pitch"), [(16, 16), (32, 16), (48, 32), (80, 48), (144, 80), (176, 96), (2880, 1440)]
)
def test_code_pitch(columns: int, pitch: int) -> None:
    assert code_pitch(columns) == pitch


@pytest.mark.parametrize("row_tile", [1, 2, 3])
def test_row_capacity_is_reached_and_never_exceeded(row_tile: int) -> None:
    for experts, tokens in itertools.product((1, 2, 3), (0, 1, 2, 3)):
        top_k = 2
        slots = tokens * top_k
        most = 0
        for ids in itertools.product(range(experts), repeat=slots):
            most = max(most, sum(-(-ids.count(e) // row_tile) * row_tile for e in range(experts)))
        assert row_capacity(tokens, top_k, experts, row_tile) == most


def test_row_capacity_stays_below_the_stated_bound() -> None:
    # E=256, EP=8: 32 local experts, T=8192, k=8: T.k + E_local.(tile-1) rows, however many ranks there are.
    assert row_capacity(8192, 8, 32, 128) <= 8192 * 8 + 32 * 127
