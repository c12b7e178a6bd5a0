"""Whatever a file holds, reading it ends in a spec or in a SpecError."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moegen.core.errors import SpecError
from moegen.core.paths import data_root
from moegen.spec import LayerSpec, load_spec, new_from_checkpoint

GOOD = (data_root("specs") / "quickstart.yaml").read_text()
SHARED = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*LayerSpec.model_fields, "hidden_size"])


def outcome(path: Path) -> LayerSpec | None:
    """The spec, or None after an error that says where and what."""
    try:
        return load_spec(path)
    except SpecError as error:
        problem = error
    assert str(path) in str(problem)
    assert problem.what
    return None


@SHARED
@given(st.text(max_size=200), st.sampled_from(["a.yaml", "a.toml"]))
def test_any_text(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert outcome(path) is None


@SHARED
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 12), st.text(max_size=6))
def test_any_small_edit_of_a_good_spec(tmp_path: Path, start: int, length: int, insert: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(GOOD[:start] + insert + GOOD[start + length :], encoding="utf-8", errors="surrogatepass")
    spec = outcome(path)
    assert spec is None or spec.geometry.hidden % 16 == 0


@SHARED
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_values_in_place_of_sections(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(GOOD) | changes, allow_unicode=True))
    outcome(path)


@SHARED
@given(st.dictionaries(st.sampled_from(["model_type", "hidden_size", "num_experts", "text_config"]), VALUES), VALUES)
def test_any_config(config: dict[str, Any], quant: Any) -> None:
    base = {"model_type": "qwen3_moe", "hidden_size": 64, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    with pytest.raises(SpecError):
        new_from_checkpoint(base | config, quant if isinstance(quant, dict) else None)
