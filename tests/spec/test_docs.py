"""docs/spec.md shows a spec that loads, and names every key and every choice."""

import re
from pathlib import Path

from pydantic import BaseModel

from moegen.core import enums
from moegen.spec import LayerSpec, load_spec

TEXT = (Path(__file__).parents[2] / "docs" / "spec.md").read_text()


def test_the_example_loads(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "example.yaml"
    path.write_text(block)
    spec = load_spec(path)
    assert spec.name == "example"
    for section in LayerSpec.model_fields:
        assert f"{section}:" in block
        value = getattr(spec, section)
        if isinstance(value, BaseModel) and section != "activation":
            assert all(f"{name}:" in block for name, item in value if item is not None), section


def test_every_choice_is_named() -> None:
    choices = (
        enums.ActivationKind,
        enums.ActFormat,
        enums.TokenDtype,
        enums.ActScale,
        enums.ScaleLayout,
        enums.Contract,
        enums.RouterWeight,
        enums.ActivationMath,
        enums.Epilogue,
        enums.CombineMode,
        enums.GateUpOrder,
    )
    missing = [member.value for choice in choices for member in choice if f"`{member.value}`" not in TEXT]
    assert not missing
