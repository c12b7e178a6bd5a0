"""The built wheel, alone in a clean environment, takes the quickstart from spec to verified kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIND_SPEC = """
import moegen, moegen.core.paths as paths
assert "site-packages" in moegen.__file__, moegen.__file__
assert "_data" in str(paths.data_root("templates")), paths.data_root("templates")
print(paths.data_root("specs") / "quickstart.yaml")
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and what it declares, nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("moegen-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    for requirement in (os.environ.get("TORCH", "torch==2.13.0"), str(wheel)):
        subprocess.run([python, "-m", "pip", "install", "-q", requirement], check=True)
    return folder / "venv" / "bin"


@pytest.mark.timeout(900)
def test_the_wheel_runs_the_quickstart(venv: Path, tmp_path: Path, private_home: Path) -> None:
    def run(*command: str | Path) -> str:
        done = subprocess.run([venv / command[0], *command[1:]], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    # A spec of two pipelines, so that the test is about the wheel and not about compile time.
    shipped = Path(run("python", "-c", FIND_SPEC).strip()).read_text()
    small = shipped.replace("rows: [1, 4, 16]", "rows: [4], cols: [32], k_chunk: [64], unroll: [1]")
    small = small.replace("epilogues: [interleaved, compact, fused_fp4]", "epilogues: [compact, fused_fp4]")
    assert small != shipped
    (tmp_path / "quickstart.yaml").write_text(small)

    run("moegen", "validate", "quickstart.yaml")
    run("moegen", "generate", "quickstart.yaml", "--target", "cpu")
    run("moegen", "build", "generated/quickstart", "--target", "cpu")
    proof = json.loads(run("moegen", "verify", "generated/quickstart", "--json"))["pipelines"]
    assert len(proof) == 2, proof
    assert all(row["verdict"] == "pass" for row in proof), proof
