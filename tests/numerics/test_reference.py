"""The reference of every op: routing by brute force, whole pipelines against a slot-by-slot layer, modes against
each other."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numerics.layers import Layer, slotwise

from moegen.core.abi import Dims, arguments, row_capacity
from moegen.core.enums import (
    ActivationKind,
    ActScale,
    CombineMode,
    Contract,
    Epilogue,
    OpKind,
    Round,
    RouterWeight,
    ScaleLayout,
    TokenDtype,
)
from moegen.core.errors import LayoutError, TensorError
from moegen.core.ops import Activation, Numerics
from moegen.numerics import defined_rows, e2m1, exact, layer_reference, layouts, run_op, run_pipeline
from moegen.numerics.quantize import unscaled_values
from moegen.numerics.reference import register_row_layout, route, row_layout
from moegen.numerics.reference.layer import ActivationQuantizer

COMPACT, FUSED, INTERLEAVED = Epilogue.COMPACT, Epilogue.FUSED_FP4, Epilogue.INTERLEAVED
ACTIVATIONS = [
    Activation(kind=ActivationKind.SWIGLU),
    Activation(kind=ActivationKind.SWIGLU_OAI, alpha=1.702, beta=1.0, limit=2.0),
    Activation(kind=ActivationKind.SWIGLU_CLAMP, limit=1.5),
    Activation(kind=ActivationKind.SWIGLUSTEP, limit=1.2),
    Activation(kind=ActivationKind.SITU, beta=4.0, linear_beta=25.0),
    Activation(kind=ActivationKind.SITU, beta=4.0),
    Activation(kind=ActivationKind.GEGLU_TANH),
    Activation(kind=ActivationKind.RELU2),
    Activation(kind=ActivationKind.SILU),
]
LAYERS = {
    "w4a4 compact": Layer(),
    "w4a4 interleaved": Layer(epilogue=INTERLEAVED),
    "w4a4 fused": Layer(epilogue=FUSED),
    "w4a4 fused, bf16 before quantising": Layer(epilogue=FUSED, numerics=Numerics(pre_quant_round=Round.BF16)),
    "w4a4 dynamic": Layer(act_scale=ActScale.DYNAMIC_TENSOR, row_scales=ScaleLayout.LINEAR),
    "w4a4 dynamic, weight on input": Layer(
        act_scale=ActScale.DYNAMIC_TENSOR, numerics=Numerics(router_weight=RouterWeight.INPUT)
    ),
    "w4a4 swizzled weights": Layer(weight_scales=ScaleLayout.SWIZZLE_128X4, bias=False),
    "w4a4 weight before quantising": Layer(epilogue=FUSED, numerics=Numerics(router_weight=RouterWeight.PRE_QUANT)),
    "w4a16 compact": Layer(w4a4=False),
    "w4a16 interleaved": Layer(w4a4=False, epilogue=INTERLEAVED),
    "w4a16 fp16": Layer(w4a4=False, dtype=TokenDtype.FP16),
    "w4a16 own gather": Layer(w4a4=False, fused_gather=False),
    "w4a16 weight on input": Layer(w4a4=False, numerics=Numerics(router_weight=RouterWeight.INPUT)),
    "w4a16 own gather, weight on input": Layer(
        w4a4=False, fused_gather=False, numerics=Numerics(router_weight=RouterWeight.INPUT)
    ),
    "gate rounded": Layer(epilogue=FUSED, numerics=Numerics(gate_round=Round.BF16)),
    "one expert, one slot": Layer(experts=1, top_k=1, first_expert=0, tokens=7, row_tile=16),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_pipeline_equals_the_layer_slot_by_slot(name):
    layer = LAYERS[name]
    y = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)["y"]
    assert torch.equal(y, slotwise(layer))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: f"{a.kind.value}{a.linear_beta or ''}")
@pytest.mark.parametrize("epilogue", [COMPACT, FUSED])
def test_every_activation_equals_the_layer_slot_by_slot(activation, epilogue):
    layer = Layer(activation=activation, epilogue=epilogue)
    y = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)["y"]
    assert torch.equal(y, slotwise(layer))


@pytest.mark.parametrize("contract", Contract)
def test_every_contract_equals_the_layer_slot_by_slot(contract):
    layer = Layer(epilogue=FUSED, numerics=Numerics(contract=contract))
    y = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)["y"]
    assert torch.equal(y, slotwise(layer))


@pytest.mark.parametrize("name", LAYERS)
def test_buffers_have_the_shapes_of_the_abi(name):
    layer = LAYERS[name]
    dims = Dims(
        tokens=layer.tokens,
        top_k=layer.top_k,
        experts=layer.experts,
        hidden=layer.hidden,
        intermediate=layer.intermediate,
        row_tile=layer.row_tile,
    )
    held = layer.buffers()
    for op in layer.ops():
        held |= run_op(op, held, first_expert=layer.first_expert)
        for argument in arguments(op):
            if argument.role != "scalar":
                assert tuple(held[argument.name].shape) == dims.shape(argument), argument.name


def gemm2_rows(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    held = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)
    return held["h_codes"], held["h_scales"]


@pytest.mark.parametrize("contract", Contract)
def test_the_three_epilogues_feed_gemm2_the_same_bytes(contract):
    numerics = Numerics(contract=contract, pre_quant_round=Round.BF16)
    fused, compact, interleaved = (
        gemm2_rows(Layer(numerics=numerics, epilogue=e)) for e in (FUSED, COMPACT, INTERLEAVED)
    )
    for other in (compact, interleaved):
        assert torch.equal(fused[0], other[0])
        assert torch.equal(fused[1], other[1])


def test_the_rounding_point_before_quantising_is_visible():
    declared = Layer(epilogue=FUSED, intermediate=64)
    rounded = declared.change(numerics=Numerics(pre_quant_round=Round.BF16))
    assert not torch.equal(gemm2_rows(declared)[0], gemm2_rows(rounded)[0])


def test_interleaved_buffer_holds_gates_and_products_in_eights():
    layer = Layer(epilogue=INTERLEAVED, w4a4=False)
    pairs = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)
    h_pair, h_rows = pairs["h_pair"], pairs["h_rows"]
    assert torch.equal(h_pair[:, 8:16], h_rows[:, :8])
    assert torch.equal(h_pair[:, 24:32], h_rows[:, 8:16])
    compact = run_pipeline(layer.change(epilogue=COMPACT).ops(), layer.buffers(), first_expert=layer.first_expert)[
        "h_rows"
    ]
    assert torch.equal(h_rows, compact)


# Accuracy against the plain layer


@pytest.mark.parametrize("w4a4", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_pipeline_is_within_the_float_gate_of_the_fp64_layer(w4a4, bias):
    layer = Layer(w4a4=w4a4, bias=bias, single=False, hidden=144, intermediate=112, epilogue=FUSED if w4a4 else COMPACT)
    y = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)["y"].double()
    quantizer = ActivationQuantizer(contract=layer.numerics.contract, x_scale=layer.x_scale, h_scale=layer.h_scale)
    for dtype in (torch.float64, torch.float32):
        expected = layer_reference(
            layer.x,
            layer.topk_ids,
            layer.topk_weights,
            layer.weights,
            layer.activation,
            quantizer=quantizer if w4a4 else None,
            first_expert=layer.first_expert,
            dtype=dtype,
        )
        assert expected.dtype is dtype
        assert (y - expected).norm() / expected.norm() <= 5e-3


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: f"{a.kind.value}{a.linear_beta or ''}")
@pytest.mark.parametrize("place", RouterWeight)
def test_the_plain_layer_agrees_on_every_activation_and_weight_place(activation, place):
    layer = Layer(activation=activation, w4a4=False, single=False, numerics=Numerics(router_weight=place))
    y = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)["y"].double()
    expected = layer_reference(
        layer.x,
        layer.topk_ids,
        layer.topk_weights,
        layer.weights,
        activation,
        router_weight=place,
        first_expert=layer.first_expert,
    )
    assert (y - expected).norm() / expected.norm() <= 5e-3


@pytest.mark.parametrize("place", [RouterWeight.COMBINE, RouterWeight.PRE_QUANT])
def test_atomic_combine_is_close_to_ordered(place):
    layer = Layer(single=False, numerics=Numerics(router_weight=place))
    ordered = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)["y"].double()
    layer = layer.change(combine=CombineMode.ATOMIC)
    atomic = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)["y"].double()
    assert (ordered - atomic).norm() / ordered.norm() <= 5e-3


# Routing


def brute_route(ids: list[list[int]], experts: int, row_tile: int, first: int) -> dict[str, list[int]]:
    """Rows of each expert by appending, padding by appending -1."""
    flat = [e for row in ids for e in row]
    capacity = row_capacity(len(ids), len(ids[0]) if ids else 1, experts, row_tile)
    row_slot, offsets, counts, tiles = [], [0], [], []
    for expert in range(experts):
        mine = [slot for slot, e in enumerate(flat) if e - first == expert]
        row_slot += mine + [-1] * (-len(mine) % row_tile)
        offsets.append(len(row_slot))
        counts.append(len(mine))
        tiles += [expert] * ((offsets[-1] - offsets[-2]) // row_tile)
    padded = len(row_slot)
    row_slot += [-1] * (capacity - padded)
    slot_row = [row_slot.index(slot) if slot in row_slot else -1 for slot in range(len(flat))]
    totals = [len(tiles), padded, sum(counts), sum(count > 0 for count in counts)]
    tile_expert = tiles + [-1] * (capacity // row_tile - len(tiles))
    return {
        "expert_offsets": offsets,
        "expert_rows": counts,
        "row_slot": row_slot,
        "slot_row": slot_row,
        "tile_expert": tile_expert,
        "totals": totals,
    }


@given(
    ids=st.integers(1, 4).flatmap(
        lambda k: st.lists(st.lists(st.integers(-2, 7), min_size=k, max_size=k), min_size=1, max_size=7)
    ),
    experts=st.integers(1, 6),
    row_tile=st.sampled_from([1, 4, 8]),
    first=st.integers(0, 3),
)
def test_route_equals_brute_force(ids, experts, row_tile, first):
    got = route(torch.tensor(ids), experts=experts, row_tile=row_tile, first_expert=first)
    expected = brute_route(ids, experts, row_tile, first)
    for name, tensor in got.buffers().items():
        assert tensor.dtype is torch.int32
        assert tensor.tolist() == expected[name], name


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_route_takes_both_id_dtypes(dtype):
    assert route(torch.tensor([[1, 0]], dtype=dtype), experts=2, row_tile=1).row_slot.tolist() == [1, 0]


# Edges


@pytest.mark.parametrize(
    ("epilogue", "w4a4"), [(COMPACT, True), (FUSED, True), (INTERLEAVED, True), (COMPACT, False), (INTERLEAVED, False)]
)
def test_no_tokens(epilogue, w4a4):
    layer = Layer(tokens=0, epilogue=epilogue, w4a4=w4a4)
    y = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)["y"]
    assert y.shape == (0, layer.hidden)
    assert y.dtype is torch.bfloat16


@pytest.mark.parametrize("combine", CombineMode)
def test_no_valid_slot_gives_zeros(combine):
    layer = Layer(combine=combine)
    buffers = layer.buffers() | {"topk_ids": torch.full((layer.tokens, layer.top_k), -1)}
    held = run_pipeline(layer.ops(), buffers, first_expert=layer.first_expert)
    assert held["totals"].tolist() == [0, 0, 0, 0]
    assert not held["y"].any()


def test_weights_of_idle_experts_may_be_nan():
    layer = Layer(epilogue=FUSED)
    buffers = layer.buffers()
    clean = run_pipeline(layer.ops(), buffers, first_expert=layer.first_expert)
    idle = clean["expert_rows"] == 0
    assert idle.any()
    for name in ("w1_scales", "w2_scales"):
        buffers[name] = buffers[name].clone()
        buffers[name][idle] = 0x7F
    for name in ("w1_alpha", "w2_alpha", "w1_bias", "w2_bias", "h_scale"):
        buffers[name] = buffers[name].clone()
        buffers[name][idle] = float("nan")
    poisoned = run_pipeline(layer.ops(), buffers, first_expert=layer.first_expert)
    assert torch.equal(clean["y"], poisoned["y"])


@pytest.mark.parametrize("contract", [Contract.MODELOPT, Contract.COMPRESSED_TENSORS, Contract.TORCHAO])
def test_padding_is_zero_also_where_a_zero_block_has_a_scale(contract):
    layer = Layer(epilogue=FUSED, numerics=Numerics(contract=contract))
    held = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)
    padding = held["row_slot"] < 0
    for name, columns in (("x", layer.hidden), ("h", layer.intermediate)):
        scales = layouts.SWIZZLE_128X4.unpack(held[f"{name}_scales"], len(padding), columns // 16)
        layouts.SWIZZLE_128X4.validate(held[f"{name}_scales"], len(padding), columns // 16)
        assert not scales[padding].any()
        assert not held[f"{name}_codes"][padding].any()


def test_a_missing_buffer_is_named():
    layer = Layer()
    with pytest.raises(TensorError, match="no buffer row_slot"):
        run_op(layer.ops()[1], layer.buffers())


def test_defined_rows():
    totals, row_slot = torch.tensor([3, 12, 9, 2]), torch.tensor([0, 1, -1, -1] * 4)
    assert defined_rows("out_rows", totals, row_slot).tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    assert len(defined_rows("h_rows", totals, row_slot)) == 12
    assert len(defined_rows("h_scales", totals, row_slot, ScaleLayout.SWIZZLE_128X4)) == 128
    assert len(defined_rows("h_scales", totals, row_slot)) == 12


# Private packs and row orders


class Reversed:
    """A private pack: one byte tensor per expert, the public bytes backwards."""

    name = "reversed_for_tests"

    def pack(self, halves, layout):
        public = layouts.weight_pack("rows8").pack(halves, layout)
        flat = torch.cat([public["codes"].flatten(1), public["scales"].flatten(1)], dim=1)
        return {"packed": flat.flip(1)}

    def unpack(self, tensors, *, rows, depth, halves, layout):
        flat = tensors["packed"].flip(1)
        pitch = -(-depth // 32) * 16
        codes = flat[:, : rows * halves * pitch].unflatten(1, (rows * halves, pitch))
        shape = layouts.scale_layout(layout).shape(rows * halves, depth // 16)
        scales = flat[:, rows * halves * pitch :].unflatten(1, shape)
        return layouts.weight_pack("rows8").unpack(
            {"codes": codes, "scales": scales}, rows=rows, depth=depth, halves=halves, layout=layout
        )


class FlippedRows:
    """A private row order: columns backwards, padded to 128."""

    name = "flipped_for_tests"

    def pack(self, rows):
        return torch.nn.functional.pad(rows, (0, -rows.shape[-1] % 128)).flip(-1)

    def unpack(self, buffer, columns):
        return buffer.flip(-1)[..., :columns]

    def arrange(self, tokens):
        return self.pack(tokens)

    def restore(self, buffer, columns):
        return self.unpack(buffer, columns)


def test_private_packs_and_row_orders_change_no_result():
    layouts.register_pack(Reversed())
    register_row_layout(FlippedRows())
    layer = Layer(w4a4=False, fused_gather=False, weight_scales=ScaleLayout.SWIZZLE_128X4)
    expected = run_pipeline(layer.ops(), layer.buffers(), first_expert=layer.first_expert)
    private = [
        replace(
            op,
            rows_layout=FlippedRows.name if op.kind in (OpKind.GATHER, OpKind.GEMM1, OpKind.GEMM2) else "",
            weight_pack=Reversed.name,
        )
        for op in layer.ops()
    ]
    buffers = layer.buffers()
    for name, halves in (("w1", layer.weights.w1), ("w2", (layer.weights.w2,))):
        buffers[f"{name}_packed"] = Reversed().pack(halves, layer.weight_scales)["packed"]
        del buffers[f"{name}_codes"], buffers[f"{name}_scales"]
    got = run_pipeline(private, buffers, first_expert=layer.first_expert)
    assert got["h_rows"].shape[-1] == 128
    assert torch.equal(got["y"], expected["y"])


def test_unknown_row_orders_are_refused():
    with pytest.raises(LayoutError, match="no row layout 'zigzag'"):
        row_layout("zigzag")
    with pytest.raises(LayoutError, match="rows of 40 columns"):
        row_layout("").unpack(torch.zeros(2, 40), 32)


# Exact-sum data


def sums_in_fp32(rows: torch.Tensor, weights: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Sequential fp32 accumulation in a given order of K."""
    total = torch.zeros(len(rows), len(weights))
    for k in order.tolist():
        total = total + rows[:, k : k + 1] * weights[:, k]
    return total


@pytest.mark.parametrize("w4a4", [True, False])
def test_exact_data_sums_to_the_same_bits_in_any_order(w4a4):
    depth = 512
    quantized = exact.exact_rows(3, depth, 1)
    rows = unscaled_values(quantized) if w4a4 else exact.exact_tokens(3, depth, 1).float()
    half = exact.exact_projection(1, 5, depth, 2)
    weights = unscaled_values(type(quantized)(codes=half.codes[0], scales=half.scales[0]))
    expected = (rows.double() @ weights.double().T).float()
    assert torch.equal(sums_in_fp32(rows, weights, torch.arange(depth)), expected)
    shuffled = torch.randperm(depth, generator=torch.Generator().manual_seed(3))
    assert torch.equal(sums_in_fp32(rows, weights, shuffled), expected)


def test_exact_data_keeps_its_documented_bounds():
    rows = unscaled_values(exact.exact_rows(64, 1024, 0))
    tokens = exact.exact_tokens(64, 1024, 0).float()
    assert rows.abs().max() == 12
    assert tokens.abs().max() == 8
    assert torch.equal(rows * 2, (rows * 2).round())
    assert torch.equal(tokens * 2, (tokens * 2).round())
    assert 12 * 12 * 4 * exact.MAX_DEPTH < 2**24


def test_single_weights_have_one_value_in_each_row():
    half = exact.single_projection(3, 40, 80, 5)
    assert ((e2m1.decode(e2m1.unpack(half.codes, 80)) != 0).sum(-1) == 1).all()


@pytest.mark.parametrize("depth", [40, 8208])
def test_exact_data_beyond_its_bounds_is_refused(depth):
    with pytest.raises(TensorError, match=f"K = {depth}"):
        exact.exact_rows(1, depth, 0)
