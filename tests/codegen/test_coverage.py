"""Every legal cell, activation, contract and place of the router weight is planned and rendered on every kernel target.

The cases are chosen so that each pair of (activation, format) appears, and every other choice with several of them.
"""

import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi.libinfo
from codegen.specs import spec

from moegen.codegen import plan
from moegen.codegen.registry import catalog
from moegen.codegen.render import render
from moegen.core.enums import ActivationKind, CombineMode, Contract, Epilogue, OpKind, RouterWeight, Target
from moegen.core.paths import data_root
from moegen.spec import LayerSpec

ACTIVATIONS: dict[str, dict[str, Any]] = {
    "swiglu": {},
    "swiglu_oai": {"alpha": 1.702, "beta": 1.0, "limit": 7.0},
    "swiglu_clamp": {"limit": 10.0},
    "swiglustep": {"limit": 7.0},
    "situ": {"beta": 4.0, "linear_beta": 25.0},
    "geglu_tanh": {},
    "relu2": {},
    "silu": {},
}
FORMATS: dict[str, dict[str, Any]] = {
    "w4a16": {"format": "bf16"},
    "static": {"format": "nvfp4", "activation_scale": {"gemm1": "static", "gemm2": "static"}},
    "dynamic": {"format": "nvfp4", "activation_scale": {"gemm1": "dynamic_tensor", "gemm2": "dynamic_tensor"}},
    "dynamic, then static": {
        "format": "nvfp4",
        "activation_scale": {"gemm1": "dynamic_tensor", "gemm2": "static"},
    },
}
GEOMETRIES = ((256, 160, 10, 3), (80, 176, 7, 2), (2880, 704, 5, 4), (272, 1408, 1, 1))


def cases() -> dict[str, LayerSpec]:
    made: dict[str, LayerSpec] = {}
    for number, (kind, form) in enumerate(product(ACTIVATIONS, FORMATS)):
        gated = ActivationKind(kind).gated
        fused = FORMATS[form].get("activation_scale", {}).get("gemm2") == "static"
        hidden, intermediate, experts, top_k = GEOMETRIES[number % 4]
        contract = list(Contract)[(number + number // 8) % len(Contract)]
        made[f"{kind}, {form}"] = spec(
            targets=["cpu", "sm_90a"],
            geometry={"hidden": hidden, "intermediate": intermediate, "experts": experts, "top_k": top_k},
            activation={"kind": kind, **ACTIVATIONS[kind]},
            activations=FORMATS[form],
            epilogues=["interleaved"] * gated + ["compact"] + ["fused_fp4"] * fused,
            combine=["ordered", "atomic"],
            weights={"bias": number % 3 == 1},
            scale_layout={
                name: ("linear", "swizzle_128x4")[(number + shift) % 2] for shift, name in enumerate(_SCALES)
            },
            numerics={
                "contract": contract.value,
                "gate_round": "bf16" if gated and number % 2 else "fp32",
                "pre_quant_round": ("fp32", "bf16")[number // 2 % 2],
                "router_weight": list(RouterWeight)[number % 3].value,
                "activation_math": ("exact", "fast")[number % 5 == 4],
            },
            schedules={"cpu": {"rows": [4], "cols": [32], "k_chunk": [64, 128], "unroll": [2]}},
            tune={"tokens": [1, 512], "pipelines": 1},
        )
    return made


_SCALES = ("activations", "weights")
CASES = cases()


def test_the_cases_hold_every_choice() -> None:
    specs = CASES.values()
    assert {layer.activation.kind for layer in specs} == set(ActivationKind)
    assert {layer.numerics.contract for layer in specs} == set(Contract)
    assert {(layer.numerics.router_weight, layer.activations.format) for layer in specs} == set(
        product(RouterWeight, {layer.activations.format for layer in specs})
    )


@pytest.mark.parametrize("target", [Target.CPU, Target.SM_90A])
@pytest.mark.parametrize("name", CASES)
def test_every_mode_is_offered_and_renders(name: str, target: Target) -> None:
    layer = CASES[name]
    result = plan(layer, target)
    offered = {(pipeline.epilogue, pipeline.combine) for pipeline in result.pipelines}
    assert offered == set(product(layer.epilogues, CombineMode))
    assert {mode for mode, _ in result.rejected} == {e.value for e in Epilogue if e not in layer.epilogues}
    for variant in result.variants:
        rendered = render(variant, catalog(target))
        assert rendered.files
        assert not rendered.text.isspace()


def test_rendered_cpu_kernels_are_cxx(tmp_path: Path) -> None:
    """One gemm1 of each activation, through the compiler's front end, in one process."""
    sources: list[Path] = []
    for number, layer in enumerate(list(CASES.values())[:: len(FORMATS) + 1]):
        variants = [variant for variant in plan(layer, Target.CPU).variants if variant.op.kind is OpKind.GEMM1]
        sources.append(tmp_path / f"gemm1_{number}.cc")
        sources[-1].write_text(render(variants[number % len(variants)], catalog(Target.CPU)).text)
    assert len(sources) >= 6
    includes = [f"-I{data_root('templates')}", *(f"-I{path}" for path in tvm_ffi.libinfo.include_paths())]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-march=x86-64-v3", *includes, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
