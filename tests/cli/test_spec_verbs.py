"""``new``, ``validate``, ``plan`` and ``generate``."""

import json
from pathlib import Path

import pytest

from moegen.core.package import read_manifest
from tests.cli.calls import QUICKSTART, call, failure

CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "moe_intermediate_size": 160,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_act": "silu",
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}


def test_new_writes_a_valid_spec(tmp_path: Path) -> None:
    spec = tmp_path / "mine.yaml"
    call("new", "--name", "mine", "-o", spec)
    found = json.loads(call("validate", spec, "--json"))
    assert (found["name"], found["valid"]) == ("mine", True)
    assert "the file exists" in failure("new", "-o", spec)


@pytest.mark.parametrize("name", ["../mine", "class", "a b"])
def test_new_refuses_a_name_before_it_writes(tmp_path: Path, name: str) -> None:
    assert "where: --name" in failure("new", "--name", name, "-o", tmp_path / "mine.yaml")
    assert not list(tmp_path.iterdir())


def test_new_prints_without_output() -> None:
    assert call("new").startswith("# A layer small enough")


def test_new_reads_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    spec = tmp_path / "q.yaml"
    call("new", "--from-checkpoint", tmp_path, "-o", spec)
    assert "hidden 256, intermediate 160, 8 experts, top_k 2" in call("validate", spec)


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "no config.json"), ("{", "cannot be read"), ("[]", "not a JSON object")]
)
def test_new_refuses_folders_that_are_no_checkpoint(tmp_path: Path, content: str | None, expected: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert expected in failure("new", "--from-checkpoint", tmp_path)


def test_validate_names_line_and_field(tmp_path: Path) -> None:
    spec = tmp_path / "bad.yaml"
    spec.write_text(QUICKSTART.read_text().replace("top_k: 3", "top_k: 30"))
    text = failure("validate", spec)
    assert "top_k is 30 but experts is 10" in text
    assert f"where: {spec}:5" in text


def test_plan_says_why(tmp_path: Path) -> None:
    text = call("plan", QUICKSTART, "--target", "cpu", "--why")
    assert "fused_fp4-ordered" in text
    assert "redundant: half of this k_chunk" in text
    assert "more; --json has all of them" in text
    assert len(text.splitlines()) < 500
    (found,) = json.loads(call("plan", QUICKSTART, "--target", "cpu", "--json"))
    assert found["default"] in {pipeline["name"] for pipeline in found["pipelines"]}
    gemms = [op for op in found["ops"] if op["op"].startswith("gemm1")]
    assert sum(op["legal"] for op in gemms) >= 24


def test_generate_then_check_then_stale(tmp_path: Path) -> None:
    out = tmp_path / "package"
    found = json.loads(call("generate", QUICKSTART, "--target", "cpu", "--out", out, "--json"))
    assert found["digest"] == read_manifest(out).digest
    assert "up to date" in call("generate", QUICKSTART, "--target", "cpu", "--out", out, "--check")
    kernel = next(out.glob("cpu/gemm1_*.cc"))
    kernel.write_text(kernel.read_text() + "\n")
    assert f"changed: cpu/{kernel.name}" in failure("generate", QUICKSTART, "--target", "cpu", "--out", out, "--check")


def test_a_package_of_another_spec_state_is_stale(tmp_path: Path) -> None:
    spec = tmp_path / "quickstart.yaml"
    spec.write_text(QUICKSTART.read_text())
    call("generate", spec, "--target", "cpu", "--out", tmp_path / "quickstart")
    spec.write_text(QUICKSTART.read_text().replace("top_k: 3", "top_k: 2"))
    assert "generated from another state" in failure("build", spec, "--generated", tmp_path)
