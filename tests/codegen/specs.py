"""Small specs for codegen tests."""

from typing import Any

from moegen.core.paths import data_root
from moegen.spec import LayerSpec, load_spec

QUICKSTART = data_root("specs") / "quickstart.yaml"


def quickstart() -> LayerSpec:
    """The shipped quickstart."""
    return load_spec(QUICKSTART)


def spec(**changes: Any) -> LayerSpec:
    """The quickstart for the CPU with whole sections replaced."""
    values = quickstart().model_dump(mode="json", exclude_none=True)
    values |= {"targets": ["cpu"], "schedules": {"cpu": {"rows": [4], "unroll": [2]}}} | changes
    return LayerSpec.model_validate(values)


W4A16: dict[str, Any] = {"activations": {"format": "bf16"}, "epilogues": ["interleaved", "compact"]}
UNGATED: dict[str, Any] = {"activation": {"kind": "relu2"}, "epilogues": ["compact", "fused_fp4"]}
DYNAMIC: dict[str, Any] = {
    "activations": {
        "format": "nvfp4",
        "activation_scale": {"gemm1": "dynamic_tensor", "gemm2": "dynamic_tensor"},
    },
    "epilogues": ["interleaved", "compact"],
}
