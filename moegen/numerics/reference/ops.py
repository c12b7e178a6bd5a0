"""Each op as a function of the layer's buffers: what its kernel must write, bit for bit on exact-sum data.

Buffers go by the names of ``moegen.core.abi.arguments`` and live on the CPU, or on another device that is made the
default (``with torch.device(...)``). Rows that the ABI leaves undefined (past
``totals[1]``, padding rows of ``out_rows``) are 0 here; compare with :func:`defined_rows`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from moegen.core.abi import arguments, public_pack, round_up, weight_pack_of
from moegen.core.enums import ActScale, CombineMode, Epilogue, OpKind, RouterWeight, ScaleLayout
from moegen.core.errors import TensorError
from moegen.core.ops import OpSpec
from moegen.numerics.layouts import scale_layout
from moegen.numerics.quantize import Quantized, quantize_rows, unscaled_values
from moegen.numerics.reference import combine, experts, rows
from moegen.numerics.reference.routing import route
from moegen.numerics.reference.row_layouts import row_layout
from moegen.numerics.rounding import round_at, to_bf16, to_token

Buffers = Mapping[str, Tensor]


def run_op(op: OpSpec, buffers: Buffers, *, first_expert: int = 0) -> dict[str, Tensor]:
    """New tensors for every buffer that ``op`` writes or updates; the inputs are left alone.

    Raises:
        TensorError: a buffer that the op reads is missing.
    """
    needed = [a.name for a in arguments(op) if a.access != "write" and a.role != "scalar"]
    missing = [name for name in needed if name not in buffers]
    if missing:
        raise TensorError(f"no buffer {', '.join(missing)}", op.kind.value, "run the ops in pipeline order")
    if op.kind is OpKind.ROUTE:
        routing = route(buffers["topk_ids"], experts=op.experts, row_tile=op.row_tile, first_expert=first_expert)
        return routing.buffers()
    if op.kind is OpKind.BLOCK:
        return _block(op, buffers, first_expert)
    return _RUN[op.kind](op, buffers)


def run_pipeline(ops: Iterable[OpSpec], buffers: Buffers, *, first_expert: int = 0) -> dict[str, Tensor]:
    """Runs ops in order over growing buffers; returns all of them, ``y`` among them. ``y_acc`` starts at 0."""
    held = dict(buffers)
    for op in ops:
        if op.fused_combine and "y_acc" not in held:
            held["y_acc"] = torch.zeros(len(held["topk_ids"]), op.hidden)
        held.update(run_op(op, held, first_expert=first_expert))
    return held


def defined_rows(name: str, totals: Tensor, row_slot: Tensor, layout: ScaleLayout = ScaleLayout.LINEAR) -> Tensor:
    """Indices of the rows of buffer ``name`` whose bytes are defined: all that a consumer can load.

    ``out_rows``: the real rows. Swizzled scales: whole blocks of 128 rows. Otherwise all padded rows.
    """
    if name == "out_rows":
        return (row_slot >= 0).nonzero()[:, 0]
    padded = int(totals[1])
    if name.endswith("_scales") and layout is ScaleLayout.SWIZZLE_128X4:
        padded = round_up(padded, 128)
    return torch.arange(padded)


def _quantize(op: OpSpec, buffers: Buffers) -> dict[str, Tensor]:
    prefix = "x" if op.gather else "h"
    if op.gather:
        weights = buffers["topk_weights"] if _weight_on_input(op) else None
        values = rows.gathered(buffers["x"], buffers["row_slot"], op.top_k, weights)
    else:
        values = row_layout(op.rows_layout).unpack(buffers["h_rows"], op.intermediate)
    return _quantized(op, prefix, values, buffers)


def _deinterleave_quantize(op: OpSpec, buffers: Buffers) -> dict[str, Tensor]:
    return _quantized(op, "h", rows.deinterleave(buffers["h_pair"]), buffers)


def _quantized(op: OpSpec, prefix: str, values: Tensor, buffers: Buffers) -> dict[str, Tensor]:
    assert op.numerics is not None
    assert op.act_scale is not None
    row_expert = None
    if prefix == "h":
        row_expert = rows.expert_of_rows(buffers["tile_expert"], len(values))
    codes, scales, pair = rows.quantize(
        values,
        buffers["row_slot"] >= 0,
        contract=op.numerics.contract,
        layout=ScaleLayout.LINEAR if op.decoded else op.scale_layout,
        act_scale=op.act_scale,
        pair=buffers.get(f"{prefix}_scale"),
        row_expert=row_expert,
    )
    if op.decoded:
        products = to_bf16(unscaled_values(Quantized(codes=codes, scales=scales)))
        written = {f"{prefix}_products": row_layout(op.rows_layout).pack(products)}
    else:
        written = {f"{prefix}_codes": codes, f"{prefix}_scales": scales}
    if op.act_scale is ActScale.DYNAMIC_TENSOR:
        written[f"{prefix}_scale"] = pair
    return written


def _gather(op: OpSpec, buffers: Buffers) -> dict[str, Tensor]:
    weights = buffers["topk_weights"] if _weight_on_input(op) else None
    x_rows = rows.gather(buffers["x"], buffers["row_slot"], top_k=op.top_k, dtype=op.dtype, topk_weights=weights)
    return {"x_rows": row_layout(op.rows_layout).pack(x_rows)}


def _arrange(op: OpSpec, buffers: Buffers) -> dict[str, Tensor]:
    return {"x_pieces": row_layout(op.rows_layout).arrange(buffers["x"])}


def _gemm1(op: OpSpec, buffers: Buffers) -> dict[str, Tensor]:
    assert op.activation is not None
    assert op.numerics is not None
    row_slot = buffers["row_slot"]
    result = experts.gemm1(
        _gemm1_rows(op, buffers),
        _bank(op, "w1", buffers, op.intermediate, op.hidden),
        op.activation,
        op.numerics,
        row_slot=row_slot,
        grouping=experts.spans(buffers["expert_offsets"], buffers["expert_rows"]),
        decode=buffers["x_scale"][0, 1] if op.w4a4 else None,
        topk_weights=buffers.get("topk_weights"),
        keep_gate=op.epilogue is Epilogue.INTERLEAVED,
    )
    if op.epilogue is Epilogue.INTERLEAVED:
        assert result.gate is not None
        return {"h_pair": to_token(rows.interleave(result.gate, result.product), op.dtype)}
    if op.epilogue is Epilogue.COMPACT:
        return {"h_rows": row_layout(op.rows_layout).pack(to_token(result.product, op.dtype))}
    values = round_at(result.product, op.numerics.pre_quant_round)
    row_expert = rows.expert_of_rows(buffers["tile_expert"], len(row_slot))
    quantized = quantize_rows(values, buffers["h_scale"][row_expert.clamp(min=0)], op.numerics.contract)
    codes, scales = rows.pad_rows(quantized, row_slot >= 0, op.scale_layout)
    return {"h_codes": codes, "h_scales": scales}


def _gemm1_rows(op: OpSpec, buffers: Buffers) -> experts.RowReader:
    if op.decoded:
        return _plain_rows(row_layout(op.rows_layout).unpack(buffers["x_products"], op.hidden).float())
    if op.w4a4:
        return _code_rows("x", buffers, op.scale_layout, op.hidden)
    if op.gather:
        weights = buffers["topk_weights"] if _weight_on_input(op) else None
        tokens = row_layout(op.rows_layout).restore(buffers["x_pieces"], op.hidden) if op.arranged else buffers["x"]
        values = rows.gather(tokens, buffers["row_slot"], top_k=op.top_k, dtype=op.dtype, topk_weights=weights).float()
    else:
        values = row_layout(op.rows_layout).unpack(buffers["x_rows"], op.hidden).float()
    return _plain_rows(values)


def _plain_rows(values: Tensor) -> experts.RowReader:
    return lambda start, stop: values[start:stop]


def _code_rows(prefix: str, buffers: Buffers, layout: ScaleLayout, columns: int) -> experts.RowReader:
    """code · S of rows, exact in fp32."""
    codes = buffers[f"{prefix}_codes"]
    scales = scale_layout(layout).unpack(buffers[f"{prefix}_scales"], len(codes), columns // 16)
    return lambda start, stop: unscaled_values(Quantized(codes=codes[start:stop], scales=scales[start:stop]))


def _gemm2(op: OpSpec, buffers: Buffers) -> dict[str, Tensor]:
    if op.reads_codes:
        reader = _code_rows("h", buffers, op.scale_layout, op.intermediate)
        count = len(buffers["h_codes"])
    else:
        name = "h_products" if op.decoded else "h_rows"
        values = row_layout(op.rows_layout).unpack(buffers[name], op.intermediate).float()
        reader, count = _plain_rows(values), len(values)
    output = experts.gemm2(
        reader,
        _bank(op, "w2", buffers, op.hidden, op.intermediate),
        rows=count,
        grouping=experts.spans(buffers["expert_offsets"], buffers["expert_rows"]),
        decode=buffers["h_scale"][:, 1] if op.w4a4 else None,
    )
    if not op.fused_combine:
        return {"out_rows": to_token(output, op.dtype)}
    weights = buffers["topk_weights"] if _weight_at_combine(op) else None
    return {
        "y_acc": combine.accumulate_rows(
            output, buffers["row_slot"], buffers["y_acc"], top_k=op.top_k, topk_weights=weights
        )
    }


def _bank(op: OpSpec, layer: str, buffers: Buffers, half_rows: int, depth: int) -> experts.Bank:
    suffixes = ("codes", "scales") if public_pack(op) else ("packed",)
    return experts.Bank(
        pack=weight_pack_of(op, layer),
        layout=op.weight_scale_layout,
        tensors={suffix: buffers[f"{layer}_{suffix}"] for suffix in suffixes},
        alpha=buffers[f"{layer}_alpha"],
        bias=buffers[f"{layer}_bias"] if op.bias else None,
        rows=half_rows,
        depth=depth,
    )


def _deinterleave(op: OpSpec, buffers: Buffers) -> dict[str, Tensor]:
    return {"h_rows": row_layout(op.rows_layout).pack(rows.deinterleave(buffers["h_pair"]))}


def _combine(op: OpSpec, buffers: Buffers) -> dict[str, Tensor]:
    if op.combine is CombineMode.ATOMIC:
        return {"y": to_token(buffers["y_acc"], op.dtype)}
    weights = buffers["topk_weights"] if _weight_at_combine(op) else None
    y = combine.combine_ordered(
        buffers["out_rows"], buffers["slot_row"], top_k=op.top_k, dtype=op.dtype, topk_weights=weights
    )
    return {"y": y}


def _block(op: OpSpec, buffers: Buffers, first_expert: int) -> dict[str, Tensor]:
    """The separate ops one after the other; their rows are the block's."""
    kinds = (OpKind.ROUTE, OpKind.GEMM1, OpKind.GEMM2, OpKind.COMBINE)
    steps = (replace(op, kind=kind, gather=kind is OpKind.GEMM1) for kind in kinds)
    held = run_pipeline(steps, buffers, first_expert=first_expert)
    return {argument.name: held[argument.name] for argument in arguments(op) if argument.access == "write"}


def _weight_on_input(op: OpSpec) -> bool:
    return op.numerics is not None and op.numerics.router_weight is RouterWeight.INPUT


def _weight_at_combine(op: OpSpec) -> bool:
    return op.numerics is None or op.numerics.router_weight is RouterWeight.COMBINE


_RUN: dict[OpKind, Callable[[OpSpec, Buffers], dict[str, Tensor]]] = {
    OpKind.QUANTIZE: _quantize,
    OpKind.GATHER: _gather,
    OpKind.ARRANGE: _arrange,
    OpKind.GEMM1: _gemm1,
    OpKind.DEINTERLEAVE: _deinterleave,
    OpKind.DEINTERLEAVE_QUANTIZE: _deinterleave_quantize,
    OpKind.GEMM2: _gemm2,
    OpKind.COMBINE: _combine,
}
