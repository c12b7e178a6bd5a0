"""moegen's layer beside the peers: weights packed once, one set of buffers, ops called one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from moegen.codegen.catalogs.sm90 import CLAIMS, LADDER, ROUTE, ROW_TILE, ROWS_LAYOUT, STREAM
from moegen.codegen.catalogs.sm90_block import BLOCK, CATALOG
from moegen.codegen.catalogs.sm90_even import EVEN
from moegen.codegen.context import entry_arguments
from moegen.codegen.pipelines import Shape, pipeline_ops
from moegen.codegen.variant import Variant
from moegen.core.abi import Argument, Dims
from moegen.core.devices import H200
from moegen.core.enums import (
    ActFormat,
    ActivationKind,
    ActivationMath,
    ActScale,
    CombineMode,
    Epilogue,
    OpKind,
    ScaleLayout,
    Target,
    TokenDtype,
)
from moegen.core.ops import OpSpec
from moegen.core.runner import Kernel
from moegen.numerics.layouts import Projection, weight_pack
from moegen.runtime.runners.cpu import load_entry
from moegen.spec.models import Activations, ActivationScale, ActivationSpec, LayerSpec, NumericsSpec, Weights
from moegen.spec.models import Geometry as SpecGeometry

STATIC_ENCODE = 2688.0 / 16.0
"""Second-level scale of W4A4 rows whose largest value is about 16."""
DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes of one layer."""

    experts: int
    top_k: int
    hidden: int
    intermediate: int


@dataclass(frozen=True, kw_only=True)
class Config:
    """Schedules of one pipeline: ladders of both gemms, whether gemm1 gathers its rows itself (``arranged``: from
    tokens in the private column order), exp and division class, operand format and epilogue mode; ``block``: token
    width, warpgroups, weight tiles and slots of the one kernel that computes the whole layer, instead of ladders;
    ``full``: the form with biases and a clamped activation; ``fp16``: tokens in fp16; ``decoded``: W4A4 rows reach the
    gemms as products of code and scale; ``even``: the last items of both gemms are cut into parts."""

    gemm1: tuple[str, int, int, int, bool]
    gemm2: tuple[str, int, int, int, bool]
    gather: bool = False
    arranged: bool = False
    fast: bool = False
    route: tuple[int, int] = (1024, 1)
    w4a4: bool = False
    epilogue: Epilogue = Epilogue.COMPACT
    block: tuple[int, int, int, int] | None = None
    full: bool = False
    fp16: bool = False
    decoded: bool = False
    even: bool = False


OAI = ActivationSpec(kind=ActivationKind.SWIGLU_OAI, alpha=1.702, limit=7.0, beta=1.0)


def layer_spec(geometry: Geometry, config: Config) -> LayerSpec:
    """The benchmark's layer: SwiGLU, no bias (``full``: clamped SwiGLU and biases, as gpt-oss has them), router weights
    at the combine, static scales in W4A4."""
    static = ActivationScale(gemm1=ActScale.STATIC, gemm2=ActScale.STATIC)
    return LayerSpec(
        name="benchmark",
        source="benchmarks/hopper",
        geometry=SpecGeometry(**vars(geometry)),
        activation=OAI if config.full else ActivationSpec(kind=ActivationKind.SWIGLU),
        weights=Weights(bias=config.full),
        activations=Activations(
            format=ActFormat.NVFP4 if config.w4a4 else ActFormat.BF16,
            dtype=TokenDtype.FP16 if config.fp16 else TokenDtype.BF16,
            activation_scale=static if config.w4a4 else None,
        ),
        numerics=NumericsSpec(activation_math=ActivationMath.FAST if config.fast else ActivationMath.EXACT),
        epilogues=(config.epilogue,),
        combine=(CombineMode.ORDERED,),
        targets=(Target.SM_90A,),
    )


def pack_of(config: Config) -> str:
    """The one pack of both gemms."""
    return "sm90_m64k128_fp16" if config.fp16 and not config.w4a4 else "sm90_m64k128"


def pipeline(geometry: Geometry, config: Config) -> tuple[Variant, ...]:
    """The ops that planning makes for the layer, in launch order, with the configuration's schedules."""
    shape = Shape(
        epilogue=config.epilogue,
        combine=CombineMode.ORDERED,
        row_tile=ROW_TILE,
        rows_layout=ROWS_LAYOUT,
        fused_gather=config.gather or config.arranged,
        arranged=config.arranged,
        decoded=config.decoded,
        block=config.block is not None,
    )
    pack = pack_of(config)
    ops = pipeline_ops(layer_spec(geometry, config), shape, (pack, pack))
    return tuple(_variant(op, config) for op in ops)


def _variant(op: OpSpec, config: Config) -> Variant:
    if op.kind is OpKind.ROUTE:
        schedule = ROUTE.make(threads=config.route[0], blocks=config.route[1])
        op = replace(op, ids_int64=False)
    elif config.block is not None:
        width, warpgroups, tiles, slots = config.block
        schedule = BLOCK.make(width=width, warpgroups=warpgroups, tiles=tiles, slots=slots)
        op = replace(op, ids_int64=False)
    elif op.weight_pack:
        ladder, warpgroups, tiles, blocks, claims = config.gemm1 if op.kind is OpKind.GEMM1 else config.gemm2
        family = CLAIMS if claims else EVEN if config.even else LADDER
        parts = {"parts": warpgroups} if family is EVEN else {}
        schedule = family.make(ladder=ladder, warpgroups=warpgroups, tiles=tiles, blocks=blocks, **parts)
    else:
        schedule = STREAM.make()
    verdict = CATALOG.verdict(op, schedule, H200)
    if not verdict.legal:
        raise ValueError(f"{schedule.name}: {verdict}")
    return Variant(op=op, schedule=schedule)


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

    def __init__(
        self,
        geometry: Geometry,
        w1: tuple[Tensor, Tensor, Tensor],
        w2: tuple[Tensor, Tensor, Tensor],
        name: str = "sm90_m64k128",
    ) -> None:
        pack, half = weight_pack(name), geometry.intermediate
        codes, scales, alpha = w1
        halves = tuple(
            Projection(codes=codes[:, part], scales=scales[:, part]) for part in (slice(0, half), slice(half, 2 * half))
        )
        self.tensors = {
            "w1_packed": pack.pack(halves, ScaleLayout.LINEAR)["packed"],
            "w1_alpha": alpha[:, None].repeat(1, 2).contiguous(),
            "w2_packed": pack.pack((Projection(codes=w2[0], scales=w2[1]),), ScaleLayout.LINEAR)["packed"],
            "w2_alpha": w2[2][:, None].contiguous(),
            "w1_bias": 0.1 * torch.randn((geometry.experts, 2 * half), device="cuda"),
            "w2_bias": 0.1 * torch.randn((geometry.experts, geometry.hidden), device="cuda"),
        }

    @property
    def packed_bytes(self) -> int:
        """Bytes of both packs."""
        return sum(self.tensors[name].numel() for name in ("w1_packed", "w2_packed"))


class Layer:
    """Buffers for one token count, and bound calls. ``x``, ids and weights are given with each call."""

    def __init__(self, geometry: Geometry, bank: Bank, kernels: Kernels, config: Config, tokens: int) -> None:
        variants = pipeline(geometry, config)
        names = [variant.op.kind.value for variant in variants]
        self.order = tuple(f"{name}{2 if index != names.index(name) else ''}" for index, name in enumerate(names))
        self.steps = dict(zip(self.order, ((variant, kernels.get(variant)) for variant in variants), strict=True))
        self.dims = Dims(
            tokens=tokens,
            top_k=geometry.top_k,
            experts=geometry.experts,
            hidden=geometry.hidden,
            intermediate=geometry.intermediate,
            row_tile=ROW_TILE,
        )
        self.buffers: dict[str, Tensor] = dict(bank.tensors)
        self.scratch = {name: self._scratch(variant) for name, (variant, _) in self.steps.items()}
        for variant in variants:
            for argument in self._arguments(variant):
                named = argument.role in ("workspace", "scale") and argument.name != "scratch"
                if named and argument.name not in self.buffers:
                    self.buffers[argument.name] = self._buffer(argument)

    @staticmethod
    def _scratch(variant: Variant) -> Tensor:
        size = CATALOG.scratch(variant.op, variant.schedule).fixed
        return torch.zeros(size, dtype=torch.uint8, device="cuda")

    def _buffer(self, argument: Argument) -> Tensor:
        tensor = torch.empty(self.dims.shape(argument), dtype=DTYPES[argument.dtype], device="cuda")
        if argument.role == "scale":  # (encode, decode) of values around 1
            tensor[:, 0], tensor[:, 1] = STATIC_ENCODE, 1.0 / STATIC_ENCODE
        return tensor

    @staticmethod
    def _arguments(variant: Variant) -> tuple[Argument, ...]:
        return entry_arguments(variant.op, Target.SM_90A, CATALOG.scratch(variant.op, variant.schedule))

    @property
    def workspace_bytes(self) -> int:
        """Bytes of every intermediate buffer."""
        return sum(t.numel() * t.element_size() for name, t in self.buffers.items() if not name.startswith("w"))

    def call(self, step: str, given: Mapping[str, Tensor]) -> Callable[[], None]:
        """One op, bound to its arguments."""
        variant, kernel = self.steps[step]
        values: list[Tensor | int] = []
        for argument in self._arguments(variant):
            if argument.dtype == "int":
                values.append(0)
            elif argument.name == "scratch":
                values.append(self.scratch[step])
            else:
                values.append(given[argument.name] if argument.name in given else self.buffers[argument.name])
        return lambda: kernel(*values)

    def block(self, given: Mapping[str, Tensor]) -> Callable[[], None]:
        """Every op in order."""
        calls = [self.call(step, given) for step in self.order]

        def run() -> None:
            for call in calls:
                call()

        return run
