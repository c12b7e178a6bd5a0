"""moegen's own layer as one more adapter beside the peers: weights packed once, one set of buffers, ops called one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from moegen.codegen.catalogs.sm90 import CATALOG, LADDER, ROUTE, ROW_TILE, ROWS_LAYOUT, STREAM
from moegen.codegen.context import entry_arguments
from moegen.codegen.variant import Variant
from moegen.core.abi import Dims
from moegen.core.devices import H200
from moegen.core.enums import ActivationKind, CombineMode, Epilogue, OpKind, Round, ScaleLayout, Target
from moegen.core.ops import Activation, Numerics, OpSpec
from moegen.core.runner import Kernel
from moegen.numerics.layouts import Projection, weight_pack
from moegen.runtime.runners.cpu import load_entry

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8}


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes of one layer."""

    experts: int
    top_k: int
    hidden: int
    intermediate: int


@dataclass(frozen=True, kw_only=True)
class Config:
    """Schedules of one pipeline: ladders of both gemms, and whether gemm1 gathers its rows itself."""

    gemm1: tuple[str, int, int, int]
    gemm2: tuple[str, int, int, int]
    gather: bool = False
    route: tuple[int, int] = (1024, 1)


def w4a16_ops(geometry: Geometry, config: Config) -> dict[OpKind, Variant]:
    """The compact W4A16 pipeline, SwiGLU, no bias, router weights at the combine."""
    exact = Numerics(pre_quant_round=Round.BF16)
    base = OpSpec(
        kind=OpKind.ROUTE,
        experts=geometry.experts,
        top_k=geometry.top_k,
        hidden=0,
        intermediate=0,
        row_tile=ROW_TILE,
        ids_int64=False,
    )
    sizes = {"hidden": geometry.hidden, "intermediate": geometry.intermediate}
    gemm = replace(base, ids_int64=True, rows_layout=ROWS_LAYOUT, weight_pack="sm90_m64k128", **sizes)
    gemm1 = replace(
        gemm,
        kind=OpKind.GEMM1,
        epilogue=Epilogue.COMPACT,
        activation=Activation(kind=ActivationKind.SWIGLU),
        numerics=exact,
        gather=config.gather,
    )
    gather = replace(
        base,
        kind=OpKind.GATHER,
        experts=0,
        ids_int64=True,
        hidden=geometry.hidden,
        gather=True,
        rows_layout=ROWS_LAYOUT,
        numerics=Numerics(),
    )
    combine = OpSpec(
        kind=OpKind.COMBINE,
        experts=0,
        top_k=geometry.top_k,
        hidden=geometry.hidden,
        intermediate=0,
        combine=CombineMode.ORDERED,
        numerics=Numerics(),
    )

    def ladder(op: OpSpec, schedule: tuple[str, int, int, int]) -> Variant:
        made = LADDER.make(ladder=schedule[0], warpgroups=schedule[1], tiles=schedule[2], blocks=schedule[3])
        verdict = CATALOG.verdict(op, made, H200)
        if not verdict.legal:
            raise ValueError(f"{schedule}: {verdict}")
        return Variant(op=op, schedule=made)

    variants = {
        OpKind.ROUTE: Variant(op=base, schedule=ROUTE.make(threads=config.route[0], blocks=config.route[1])),
        OpKind.GATHER: Variant(op=gather, schedule=STREAM.make()),
        OpKind.GEMM1: ladder(gemm1, config.gemm1),
        OpKind.GEMM2: ladder(replace(gemm, kind=OpKind.GEMM2, top_k=0), config.gemm2),
        OpKind.COMBINE: Variant(op=combine, schedule=STREAM.make()),
    }
    if config.gather:
        del variants[OpKind.GATHER]
    return variants


class Kernels:
    """Objects that build.py left in a folder, loaded once each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[str, Kernel] = {}

    def get(self, variant: Variant) -> Kernel:
        """Entry of a variant; raises StoreError when it was not built."""
        if variant.name not in self._loaded:
            self._loaded[variant.name] = load_entry(self.folder / variant.digest[:24], variant.op.kind.value)
        return self._loaded[variant.name]


class Bank:
    """Packed weights of a layer: gate and up rows fused as [gate; up], codes and linear scales, one alpha an expert."""

    def __init__(self, geometry: Geometry, w1: tuple[Tensor, Tensor, Tensor], w2: tuple[Tensor, Tensor, Tensor]) -> None:
        pack, half = weight_pack("sm90_m64k128"), geometry.intermediate
        codes, scales, alpha = w1
        halves = tuple(
            Projection(codes=codes[:, part], scales=scales[:, part]) for part in (slice(0, half), slice(half, 2 * half))
        )
        self.tensors = {
            "w1_packed": pack.pack(halves, ScaleLayout.LINEAR)["packed"],
            "w1_alpha": alpha[:, None].repeat(1, 2).contiguous(),
            "w2_packed": pack.pack((Projection(codes=w2[0], scales=w2[1]),), ScaleLayout.LINEAR)["packed"],
            "w2_alpha": w2[2][:, None].contiguous(),
        }

    @property
    def overhead(self) -> float:
        """Packed bytes over the bytes of codes and scales is the caller's to compare; this is their sum."""
        return float(sum(self.tensors[name].numel() for name in ("w1_packed", "w2_packed")))


class Layer:
    """Buffers for one token count, and bound calls. ``x``, ids and weights are given with each call."""

    def __init__(self, geometry: Geometry, bank: Bank, kernels: Kernels, config: Config, tokens: int) -> None:
        self.variants = w4a16_ops(geometry, config)
        self.kernels = {kind: kernels.get(variant) for kind, variant in self.variants.items()}
        self.dims = Dims(
            tokens=tokens,
            top_k=geometry.top_k,
            experts=geometry.experts,
            hidden=geometry.hidden,
            intermediate=geometry.intermediate,
            row_tile=ROW_TILE,
        )
        self.buffers: dict[str, Tensor] = dict(bank.tensors)
        for kind, variant in self.variants.items():
            for argument in entry_arguments(variant.op, Target.SM_90A, CATALOG.scratch(variant.op, variant.schedule)):
                if argument.role == "workspace" and argument.name not in self.buffers:
                    shape = self.dims.shape(argument)
                    self.buffers[argument.name] = torch.empty(shape, dtype=DTYPES[argument.dtype], device="cuda")
        self.order = tuple(self.kernels)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of every intermediate buffer."""
        return sum(t.numel() * t.element_size() for name, t in self.buffers.items() if not name.startswith("w"))

    def call(self, kind: OpKind, given: Mapping[str, Tensor]) -> Callable[[], None]:
        """One op, bound to its arguments."""
        kernel, op = self.kernels[kind], self.variants[kind].op
        values: list[Tensor | int] = []
        for argument in entry_arguments(op, Target.SM_90A, CATALOG.scratch(op, self.variants[kind].schedule)):
            if argument.dtype == "int":
                values.append(0)
            else:
                values.append(given[argument.name] if argument.name in given else self.buffers[argument.name])
        return lambda: kernel(*values)

    def block(self, given: Mapping[str, Tensor]) -> Callable[[], None]:
        """Every op in order."""
        calls = [self.call(kind, given) for kind in self.order]

        def run() -> None:
            for call in calls:
                call()

        return run
