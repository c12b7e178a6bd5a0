"""The script for the first machine with a Blackwell GPU refuses clearly where there is none; its other parts work."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "blackwell" / "run_on_b200.sh"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "VENV": str(Path(sys.executable).parents[1]), **environment}
    return subprocess.run(
        ["sh", str(SCRIPT), *arguments], cwd=ROOT, env=given, capture_output=True, text=True, check=False
    )


def fake_gpu(folder: Path, capability: str) -> str:
    """A PATH on which nvidia-smi finds one GPU."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho {capability}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:{os.environ['PATH']}"


def test_without_a_blackwell_gpu_it_says_what_is_missing_and_what_works(tmp_path: Path) -> None:
    for capability, target, gpu in (("9.0", "sm_100a", "B200"), ("10.0", "sm_103a", "B300"), ("", "sm_100a", "B200")):
        said = run(PATH=fake_gpu(tmp_path, capability), TARGET=target, OUT=str(tmp_path / "out"))
        assert said.returncode == 3
        assert f"no {gpu} here" in said.stderr
        assert (capability or "no GPU") in said.stderr
        assert "--dry-run specs/quickstart.yaml" in said.stderr
        assert not (tmp_path / "out").exists()


def test_wrong_calls_are_named() -> None:
    for arguments, environment, words in (
        (("nope.yaml",), {}, "no spec file nope.yaml"),
        ((), {"TARGET": "sm_90a"}, "TARGET is sm_100a or sm_103a"),
        ((), {"VENV": "/nowhere"}, "moegen is not installed"),
    ):
        said = run(*arguments, **environment)
        assert said.returncode == 2
        assert words in said.stderr


def test_a_step_that_fails_ends_it_with_its_code(tmp_path: Path) -> None:
    """The steps are played by a program that fails where it is told to."""
    tool = tmp_path / "bin" / "moegen"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$1 ran"\n[ "$1" != "$FAILING" ] || exit 7\n')
    tool.chmod(0o755)
    steps = ("generate", "build", "verify", "tune")
    for number, failing in enumerate(steps):
        out = tmp_path / failing
        gpu = fake_gpu(tmp_path, "10.0")
        said = run(VENV=str(tmp_path), PATH=gpu, OUT=str(out), FAILING=failing)
        assert said.returncode == 7
        assert [word for word in steps if f"{word} ran" in said.stdout] == list(steps[: number + 1])
        kept = out / "quickstart-sm_100a" / f"{failing}.txt"
        assert kept.read_text() == f"{failing} ran\n" if failing != "generate" else not kept.exists()


def test_the_script_is_sound_shell() -> None:
    for shell in ("sh", "bash"):
        assert subprocess.run([shell, "-n", str(SCRIPT)], check=False).returncode == 0
    assert os.access(SCRIPT, os.X_OK)


def test_peers_know_the_shapes(tmp_path: Path) -> None:
    out = tmp_path / "peers.json"
    script = SCRIPT.with_name("peers.py")
    spec = ROOT / "specs" / "quickstart.yaml"
    subprocess.run([sys.executable, str(script), str(spec), str(out), "--dry-run"], cwd=ROOT, check=True)
    rows = json.loads(out.read_text())["rows"]
    assert {(row["op"], row["n"], row["k"]) for row in rows} == {("gemm1", 320, 256), ("gemm2", 256, 160)}
    assert [row["m"] for row in rows if row["op"] == "gemm1"] == [3, 12, 48, 192, 768]
    assert all(row["median_us"] > 0 for row in rows)
