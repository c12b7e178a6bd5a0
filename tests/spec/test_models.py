"""The digest depends on every value and on nothing else; the schema describes what the models accept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from moegen.core.paths import data_root
from moegen.spec import LayerSpec, json_schema, load_spec

VALUES: dict[str, Any] = {
    "name": "tiny",
    "source": "made for a test",
    "geometry": {"hidden": 256, "intermediate": 160, "experts": 10, "top_k": 3},
    "activation": {"kind": "swiglu_oai", "alpha": 1.702, "beta": 1.0, "limit": 7.0},
    "weights": {"format": "nvfp4", "gate_up_order": "gate_up", "bias": False},
    "activations": {
        "format": "nvfp4",
        "dtype": "bf16",
        "activation_scale": {"gemm1": "static", "gemm2": "static"},
    },
    "scale_layout": {"activations": "linear", "weights": "linear"},
    "numerics": {
        "contract": "te",
        "gate_round": "fp32",
        "pre_quant_round": "fp32",
        "router_weight": "combine",
        "activation_math": "exact",
    },
    "epilogues": ["compact"],
    "combine": ["ordered"],
    "targets": ["cpu"],
    "schedules": {"cpu": {"rows": [1]}},
    "tune": {"tokens": [1], "routing": ["uniform"], "pipelines": 3},
}
#: Another legal value for each leaf.
OTHER: dict[tuple[str, ...], Any] = {
    ("name",): "other",
    ("source",): "elsewhere",
    ("geometry", "hidden"): 272,
    ("geometry", "intermediate"): 176,
    ("geometry", "experts"): 11,
    ("geometry", "top_k"): 2,
    ("activation", "kind"): "geglu_tanh",
    ("activation", "alpha"): 1.5,
    ("activation", "beta"): 0.5,
    ("activation", "limit"): 6.0,
    ("weights", "gate_up_order"): "up_gate",
    ("weights", "bias"): True,
    ("activations", "format"): "bf16",
    ("activations", "dtype"): "fp16",
    ("activations", "activation_scale", "gemm1"): "dynamic_tensor",
    ("activations", "activation_scale", "gemm2"): "dynamic_tensor",
    ("scale_layout", "activations"): "swizzle_128x4",
    ("scale_layout", "weights"): "swizzle_128x4",
    ("numerics", "contract"): "half_step",
    ("numerics", "gate_round"): "bf16",
    ("numerics", "pre_quant_round"): "bf16",
    ("numerics", "router_weight"): "input",
    ("numerics", "activation_math"): "fast",
    ("epilogues",): ["interleaved"],
    ("combine",): ["atomic"],
    ("targets",): ["cpu", "sm_90a"],
    ("schedules", "cpu"): "auto",
    ("tune", "tokens"): [2],
    ("tune", "routing"): [{"zipf": 1.0}],
    ("tune", "pipelines"): 4,
}


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        if isinstance(value, dict) and key != "cpu":
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of VALUES with one leaf replaced, and with what that replacement forbids taken out."""
    copy = {key: dict(item) if isinstance(item, dict) else item for key, item in VALUES.items()}
    copy["activations"]["activation_scale"] = dict(VALUES["activations"]["activation_scale"])
    target = copy
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    if path == ("activation", "kind"):
        copy["activation"] = {"kind": value}
    if path == ("activations", "format"):
        del copy["activations"]["activation_scale"]
    return copy


def test_every_leaf_has_an_alternative() -> None:
    assert set(leaves(VALUES)) - {("weights", "format")} == set(OTHER)


@pytest.mark.parametrize("path", OTHER, ids=".".join)
def test_any_changed_value_changes_the_digest(path: tuple[str, ...]) -> None:
    base = LayerSpec.model_validate(VALUES)
    assert LayerSpec.model_validate(changed(path, OTHER[path])).digest != base.digest


def test_key_order_and_comments_do_not_change_the_digest(tmp_path: Path) -> None:
    text = (data_root("specs") / "quickstart.yaml").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    path = tmp_path / "reordered.yaml"
    path.write_text("# another comment\n" + "\n".join(reversed(lines)) + "\n")
    assert load_spec(path).digest == load_spec(data_root("specs") / "quickstart.yaml").digest


def test_a_spec_is_frozen() -> None:
    spec = LayerSpec.model_validate(VALUES)
    with pytest.raises(ValidationError):
        spec.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError):
        spec.geometry.hidden = 16  # pyright: ignore[reportAttributeAccessIssue]


def test_core_values_carry_every_constant() -> None:
    spec = LayerSpec.model_validate(VALUES)
    activation, numerics = spec.activation_value(), spec.numerics.value()
    assert (activation.kind.value, activation.alpha, activation.beta, activation.limit) == (
        "swiglu_oai",
        1.702,
        1.0,
        7.0,
    )
    assert numerics.contract.value == "te"


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def test_schema_refuses_unknown_keys_in_every_section() -> None:
    schema = json_schema()
    sections = list(objects(schema))
    assert len(sections) >= 11
    assert all(section.get("additionalProperties") is False for section in sections)
    assert set(schema["properties"]) == set(VALUES)
    assert {"name", "source", "geometry", "activation", "activations", "epilogues", "targets"} == set(
        schema["required"]
    )
