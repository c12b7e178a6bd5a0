"""triton_kernels on MXFP4 weights and bf16 tokens: another numerics class, with a power-of-two scale every 32 weights.

It is shown beside the NVFP4 peers and never counted among them. Its SwiGLU reads gate and up from alternating rows and
adds 1 to up.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.hopper.common import DEVICE, E2M1, Cell, Nvfp4
from benchmarks.hopper.configs import SHAPES

NEVER = 1e9
"""A clamp that no value reaches."""


class Mxfp4:
    """Random MXFP4 weights: codes ``[E, N, K/2]``, and scales of 2^-2, 2^-1 and 1 below one that gives unit gain."""

    def __init__(self, experts: int, rows: int, depth: int, seed: int) -> None:
        source = torch.Generator(device=DEVICE).manual_seed(seed)
        self.codes = torch.randint(
            0, 256, (experts, rows, depth // 2), dtype=torch.uint8, device=DEVICE, generator=source
        )
        unit = 127 - round(math.log2(math.sqrt(8.6 * depth)))
        shape = (experts, rows, depth // 32)
        self.scale = torch.randint(unit - 2, unit + 1, shape, dtype=torch.uint8, device=DEVICE, generator=source)

    def dequant(self, expert: int) -> Tensor:
        """One expert's weights in fp32."""
        table = torch.tensor(E2M1 + tuple(-value for value in E2M1), device=DEVICE)
        low, high = (self.codes[expert] & 0xF).long(), (self.codes[expert] >> 4).long()
        values = torch.stack((table[low], table[high]), -1).flatten(-2)
        return values * torch.exp2(self.scale[expert].float() - 127).repeat_interleave(32, -1)


class TritonKernels:
    """``matmul_ogs`` with fused gather, activation and scatter, as the package's own MoE example calls it."""

    def setup(self, shape: str, weights: tuple[Nvfp4, Nvfp4]) -> None:
        """Packs weights of its own; ``weights`` are another format's."""
        import triton_kernels.matmul_ogs_details.opt_flags as flags
        from triton_kernels.matmul_ogs import FlexCtx, PrecisionConfig
        from triton_kernels.numerics import InFlexData
        from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
        from triton_kernels.tensor_details import layout

        self.sizes = sizes = SHAPES[shape]
        flags.update_opt_flags_constraints({"split_k": 1})  # its split needs a reset that a captured graph lacks
        codes_layout, codes_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        scale_layout, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
        self.raw = (
            Mxfp4(sizes.experts, 2 * sizes.intermediate, sizes.hidden, 1),
            Mxfp4(sizes.experts, sizes.hidden, sizes.intermediate, 2),
        )
        self.packed = []
        for raw in self.raw:
            codes = convert_layout(wrap_torch_tensor(raw.codes.mT, dtype=FP4), codes_layout, **codes_options)
            scales = convert_layout(wrap_torch_tensor(raw.scale.mT), scale_layout, **scale_options)
            precision = PrecisionConfig(weight_scale=scales, flex_ctx=FlexCtx(rhs_data=InFlexData()))
            self.packed.append((codes, precision))
            torch.cuda.empty_cache()

    def make(self, cell: Cell) -> tuple[dict[str, list[Any]], list[Tensor]]:
        """Callables per stage, and the outputs."""
        from triton_kernels.matmul_ogs import FnSpecs, FusedActivation, matmul_ogs
        from triton_kernels.routing import routing
        from triton_kernels.swiglu import swiglu_fn

        sizes, rows = self.sizes, cell.tokens * self.sizes.top_k
        (w1, p1), (w2, p2) = self.packed
        activation = FusedActivation(FnSpecs("swiglu", swiglu_fn, ("alpha", "limit")), (1.0, NEVER), 2)
        hidden = torch.empty((1, rows, sizes.intermediate), dtype=torch.bfloat16, device=DEVICE)
        stages: dict[str, list[Any]] = {stage: [] for stage in ("route", "l1", "l2", "moe")}
        outputs: list[Tensor] = []

        def bind(ids: Tensor, weights: Tensor, x: Tensor, out: Tensor) -> None:
            # Logits whose top-k and softmax are this routing.
            logits = torch.full((cell.tokens, sizes.experts), -30.0, device=DEVICE)
            logits = logits.scatter_(1, ids.long(), weights.log()).bfloat16()

            def route() -> Any:
                return routing(logits, sizes.top_k)

            def first(data: Any, gather: Any) -> None:
                matmul_ogs(
                    x, w1, None, data, gather_indx=gather, precision_config=p1, fused_activation=activation, y=hidden
                )

            def second(data: Any, scatter: Any) -> None:
                rows_in = hidden.view(rows, sizes.intermediate)
                matmul_ogs(
                    rows_in, w2, None, data, scatter_indx=scatter, precision_config=p2, gammas=data.gate_scal, y=out
                )

            def block() -> None:
                data, gather, scatter = route()
                first(data, gather)
                second(data, scatter)

            data, gather, scatter = route()
            stages["route"].append(route)
            stages["l1"].append(lambda: first(data, gather))
            stages["l2"].append(lambda: second(data, scatter))
            stages["moe"].append(block)

        for (ids, weights), x in zip(cell.routings, cell.inputs, strict=True):
            out = torch.empty((1, *x.shape), dtype=torch.bfloat16, device=DEVICE)
            outputs.append(out.view_as(x))
            bind(ids, weights, x, out)
        return stages, outputs
