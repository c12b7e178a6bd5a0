"""Small packages for tests of the tuner: pipelines of two steps, without sources."""

from collections.abc import Mapping

from moegen.core.enums import ActFormat, ActivationKind, CombineMode, Epilogue, OpKind, ScaleLayout, Target
from moegen.core.ops import Activation, Numerics, OpSpec
from moegen.core.package import Package, Pipeline, Step, TargetPackage

SIZES = {"experts": 7, "top_k": 2, "hidden": 80, "intermediate": 48}


def fake_pipeline(
    name: str,
    variants: tuple[str, str],
    *,
    epilogue: Epilogue = Epilogue.COMPACT,
    numerics: Numerics | None = None,
    scale_layout: ScaleLayout = ScaleLayout.LINEAR,
    activation: ActivationKind = ActivationKind.SWIGLU,
) -> Pipeline:
    numerics = numerics or Numerics()
    common = {**SIZES, "act_format": ActFormat.NVFP4, "scale_layout": scale_layout, "weight_pack": "rows8"}
    gemm1 = OpSpec(
        kind=OpKind.GEMM1, epilogue=epilogue, activation=Activation(kind=activation), numerics=numerics, **common
    )
    gemm2 = OpSpec(kind=OpKind.GEMM2, **common)
    steps = tuple(Step(op=op, variant=variant) for op, variant in zip((gemm1, gemm2), variants, strict=True))
    return Pipeline(
        name=name,
        target=Target.CPU,
        epilogue=epilogue,
        combine=CombineMode.ORDERED,
        numerics=numerics,
        row_tile=1,
        steps=steps,
        model_us=((1, 10.0), (64, 100.0)),
    )


def fake_package(pipelines: Mapping[str, Pipeline] | list[Pipeline], default: str = "default") -> Package:
    offered = tuple(pipelines.values()) if isinstance(pipelines, Mapping) else tuple(pipelines)
    layer = {"tune": {"tokens": [4, 16], "routing": ["uniform"]}}
    offer = TargetPackage(default=default, pipelines=offered, sources=())
    return Package(name="fake", spec_digest="0" * 64, layer=layer, targets={Target.CPU: offer})


def simple_package(*names: str) -> Package:
    """One pipeline for each name, with a gemm1 of its own and a gemm2 that all share."""
    return fake_package([fake_pipeline(name, (f"g1-{name}", "g2")) for name in names])
