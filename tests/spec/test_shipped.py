"""The shipped specs say what their models' configs say."""

import pytest

from moegen.core.enums import ActFormat, ActivationKind, Epilogue, GateUpOrder, Target
from moegen.core.paths import data_root
from moegen.spec import LayerSpec, load_spec

SPECS = data_root("specs")
#: name → (H, I, E, k, activation with constants, format, gate/up order, bias)
MODELS = {
    "dsv3": (7168, 2048, 256, 8, ("swiglu", None, None, None), "nvfp4", "gate_up", False),
    "qwen3_30b_a3b": (2048, 768, 128, 8, ("swiglu", None, None, None), "nvfp4", "gate_up", False),
    "gpt_oss_120b": (2880, 2880, 128, 4, ("swiglu_oai", 1.702, 1.0, 7.0), "bf16", "interleaved", True),
    "deepseek_v4_flash": (4096, 2048, 256, 6, ("swiglu_clamp", None, None, 10.0), "nvfp4", "gate_up", False),
}


def model(name: str) -> LayerSpec:
    return load_spec(SPECS / "models" / f"{name}.yaml")


def test_every_shipped_model_is_checked() -> None:
    assert {path.stem for path in (SPECS / "models").glob("*")} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    spec = model(name)
    geometry, activation = spec.geometry, spec.activation
    assert (
        geometry.hidden,
        geometry.intermediate,
        geometry.experts,
        geometry.top_k,
        (activation.kind.value, activation.alpha, activation.beta, activation.limit),
        spec.activations.format.value,
        spec.weights.gate_up_order.value,
        spec.weights.bias,
    ) == MODELS[name]
    assert spec.name == name
    assert "config.json" in spec.source
    assert spec.targets == (Target.CPU, Target.SM_90A, Target.SM_100A)
    assert spec.tune.tokens[0] == 1
    assert spec.tune.tokens[-1] == 16384


def test_quickstart_covers_all_modes_and_confuses_no_two_sizes() -> None:
    spec = load_spec(SPECS / "quickstart.yaml")
    geometry = spec.geometry
    sizes = [geometry.hidden, geometry.intermediate, 2 * geometry.intermediate, geometry.experts]
    sizes += [tokens * geometry.top_k for tokens in spec.tune.tokens]
    assert len(set(sizes)) == len(sizes)
    assert geometry.intermediate % 64 != 0
    assert spec.epilogues == tuple(Epilogue)
    assert spec.activations.format is ActFormat.NVFP4
    assert spec.activation.kind is ActivationKind.SWIGLU
    assert spec.weights.gate_up_order is GateUpOrder.GATE_UP
    assert set(spec.targets) == {Target.CPU, Target.SM_90A, Target.SM_100A}
