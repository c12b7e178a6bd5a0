"""What importing moegen costs and drags in."""

import subprocess
import sys

HEAVY = ("torch", "numpy", "pydantic", "jinja2", "cutlass", "typer", "rich", "matplotlib")
COMPILING = ("moegen.spec", "moegen.codegen", "moegen.build", "moegen.tune", "pydantic", "jinja2", "cutlass")


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_import_moegen_is_light() -> None:
    assert not loaded_after("import moegen").intersection(HEAVY)


def test_runtime_cannot_compile() -> None:
    modules = loaded_after("import moegen; moegen.load")
    assert "moegen.runtime" in modules
    assert not modules.intersection(COMPILING)
