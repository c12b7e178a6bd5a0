"""A wrong spec file is refused with its line, field, reason and remedy; a right one reads the same in YAML and TOML."""

from pathlib import Path

import pytest

from moegen.core.errors import SpecError
from moegen.spec import load_spec

GOOD = """\
name: tiny
source: made for a test
geometry: {hidden: 256, intermediate: 160, experts: 10, top_k: 3}
activation: {kind: swiglu}
activations:
  format: nvfp4
  activation_scale:
    gemm1: static
    gemm2: static
epilogues: [interleaved, compact, fused_fp4]
targets: [cpu]
schedules: {cpu: {rows: [1, 4], tile: [{cols: 32, k_chunk: 64}]}}
tune: {tokens: [1, 8], routing: [uniform, {effective_experts: 0.25}, one_hot, {zipf: 1.0}]}
"""
TOML = """\
name = "tiny"
source = "made for a test"
epilogues = ["interleaved", "compact", "fused_fp4"]
targets = ["cpu"]
activation = {kind = "swiglu"}

[geometry]
hidden = 256
intermediate = 160
experts = 10
top_k = 3

[activations]
format = "nvfp4"
activation_scale.gemm1 = "static"
activation_scale.gemm2 = "static"

[schedules.cpu]
rows = [1, 4]
tile = [{cols = 32, k_chunk = 64}]

[tune]
tokens = [1, 8]
routing = ["uniform", {effective_experts = 0.25}, "one_hot", {zipf = 1.0}]
"""


def write(folder: Path, text: str, name: str = "spec.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(folder: Path, text: str, name: str = "spec.yaml") -> str:
    with pytest.raises(SpecError) as caught:
        load_spec(write(folder, text, name))
    return str(caught.value).replace(str(folder) + "/", "")


def test_a_good_spec_loads_with_every_value(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, GOOD))
    assert spec.geometry.model_dump() == {"hidden": 256, "intermediate": 160, "experts": 10, "top_k": 3}
    assert spec.tune.tokens == (1, 8)
    assert spec.model_dump(mode="json")["tune"]["routing"] == [
        "uniform",
        {"effective_experts": 0.25},
        "one_hot",
        {"zipf": 1.0},
    ]
    assert spec.model_dump(mode="json")["schedules"] == {"cpu": {"rows": [1, 4], "tile": [{"cols": 32, "k_chunk": 64}]}}


def test_yaml_and_toml_of_one_spec_are_one_spec(tmp_path: Path) -> None:
    yaml_spec = load_spec(write(tmp_path, GOOD))
    toml_spec = load_spec(write(tmp_path, TOML, "spec.toml"))
    assert yaml_spec == toml_spec
    assert yaml_spec.digest == toml_spec.digest


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "hidden: 256",
            "hidden: 256, hidden_size: 256",
            "spec.yaml:3: geometry.hidden_size: unknown key. To fix: did you mean hidden?",
        ),
        ("hidden: 256, ", "", "spec.yaml:3: geometry.hidden: missing. To fix: add it"),
        ("hidden: 256", "hidden: 250", "spec.yaml:3: geometry.hidden: 250 is not a multiple of 16"),
        ("intermediate: 160", "intermediate: 168", "spec.yaml:3: geometry.intermediate: 168 is not a multiple of 16"),
        ("hidden: 256", "hidden: 256.0", "spec.yaml:3: geometry.hidden: 256.0: input should be a valid integer"),
        ("hidden: 256", "hidden: '256'", "spec.yaml:3: geometry.hidden: '256': input should be a valid integer"),
        ("hidden: 256", "hidden: 4194304", "input should be less than or equal to 1048576"),
        ("hidden: 256", "hidden: -256", "input should be greater than or equal to 1"),
        ("top_k: 3", "top_k: true", "spec.yaml:3: geometry.top_k: True: input should be a valid integer"),
        ("top_k: 3", "top_k: .nan", "spec.yaml:3: geometry.top_k: nan: input should be a valid integer"),
        (
            "kind: swiglu",
            "kind: swigluu",
            "spec.yaml:4: activation.kind: 'swigluu' is not known. To fix: use 'swiglu', ",
        ),
        ("kind: swiglu", "kind: swiglu_clamp", "spec.yaml:4: activation.limit: swiglu_clamp needs limit"),
        ("kind: swiglu", "kind: swiglu, limit: 7.0", "spec.yaml:4: activation.limit: swiglu has no limit"),
        ("kind: swiglu", "kind: swiglu_clamp, limit: .nan", "spec.yaml:4: activation.limit: nan"),
        ("kind: swiglu", "kind: swiglu_clamp, limit: .inf", "spec.yaml:4: activation.limit: inf"),
        ("kind: swiglu", "kind: swiglu_clamp, limit: 0.0", "input should be greater than 0"),
        ("kind: swiglu", "kind: situ, beta: -4.0", "spec.yaml:4: activation.beta: situ divides by beta, which is -4.0"),
        ("kind: swiglu", "kind: relu2", "epilogues.0: interleaved pairs a gate with an up half"),
        (
            "gemm2: static",
            "gemm2: dynamic_tensor",
            "epilogues.2: fused_fp4 quantises a row before the tensor's amax is known",
        ),
        (
            "gemm2: static",
            "gemm2: sometimes",
            "spec.yaml:9: activations.activation_scale.gemm2: 'sometimes' is not known",
        ),
        (
            "format: nvfp4",
            "format: fp8",
            "spec.yaml:6: activations.format: 'fp8' is not known. To fix: use 'nvfp4' or 'bf16'",
        ),
        ("compact, ", "compact, compact, ", "spec.yaml:10: epilogues: "),
        ("[interleaved, compact, fused_fp4]", "[]", "spec.yaml:10: epilogues: "),
        ("targets: [cpu]", "targets: [sm_90a]", "spec.yaml:12: schedules.cpu: this target is not in targets"),
        ("rows: [1, 4]", "rows: []", "spec.yaml:12: schedules.cpu.rows: no value to consider"),
        ("rows: [1, 4]", "rows: [{cols: 1}]", "spec.yaml:12: schedules.cpu.rows: a mapping where a value belongs"),
        ("rows: [1, 4]", "'../x': [1]", "is not a name"),
        ("name: tiny", "name: ../tiny", "spec.yaml:1: name: '../tiny' is not a name"),
        ("name: tiny", "name: ..", "is not a name"),
        ("name: tiny", "name: a/b", "is not a name"),
        ("name: tiny", "name: ''", "is not a name"),
        ("name: tiny", "name: class", "spec.yaml:1: name: 'class' is no name that Python can import. To fix: begin"),
        ("name: tiny", "name: 3b", "spec.yaml:1: name: '3b' is no name that Python can import"),
        ("tokens: [1, 8]", "tokens: [8, 1]", "spec.yaml:13: tune.tokens: [8, 1]: token counts must rise"),
        ("tokens: [1, 8]", "tokens: [0]", "spec.yaml:13: tune.tokens.0: 0: input should be greater than or equal to 1"),
        ("{zipf: 1.0}", "{zipf: -1.0}", "spec.yaml:13: tune.routing.3.zipf: -1.0"),
        (
            "one_hot",
            "one_hott",
            "spec.yaml:13: tune.routing.2: 'one_hott' is not known. To fix: use 'uniform' or 'one_hot'",
        ),
        ("name: tiny", "name: tiny\nname: other", "spec.yaml:2: key 'name' is given twice (first on line 1)"),
        ("name: tiny", "name: &a tiny", "spec.yaml:1: YAML anchors and aliases are not used in specs"),
        ("name: tiny", "name: !!python/object:os.system tiny", "spec.yaml:1: YAML tag"),
        ("name: tiny", "name: " + "[" * 40, "spec.yaml:1: nested deeper than 16"),
        ("targets: [cpu]", "targets: [cpu", "malformed YAML"),
        ("name: tiny", "name: tiny\n---\nname: other", "malformed YAML"),
        ("name: tiny", "1: tiny", "spec.yaml:1: key 1 is not a word"),
        ("name: tiny", "name: 2026-11-29", "spec.yaml:1: name: "),
        ("name: tiny", "name: 2026-99-99", "spec.yaml:1: malformed YAML value"),
        ("top_k: 3", "top_k: " + "9" * 5000, "spec.yaml:3: malformed YAML value"),
        ("name: tiny", "<<: {name: tiny}", "malformed YAML"),
    ],
)
def test_a_wrong_spec_says_where_and_what(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    assert message in refusal(tmp_path, GOOD.replace(old, new, 1))


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    text = (
        GOOD.replace("hidden: 256", "hidden: 250")
        .replace("top_k: 3", "top_k: 11")
        .replace("swiglu}", "swiglu, beta: 1.0}")
    )
    message = refusal(tmp_path, text)
    assert "3 problems" in message
    for part in ("line 3, geometry.hidden", "line 3, geometry.top_k", "line 4, activation.beta"):
        assert part in message


def test_w4a16_has_no_activation_scale_and_w4a4_needs_one(tmp_path: Path) -> None:
    bf16 = GOOD.replace("format: nvfp4", "format: bf16")
    assert "line 7, activations.activation_scale: bf16 rows have no scale" in refusal(tmp_path, bf16)
    head, _, tail = GOOD.partition("  activation_scale:")
    without = head + tail.partition("gemm2: static\n")[2]
    assert "activations.activation_scale: FP4 rows need a second-level scale" in refusal(tmp_path, without)


def test_toml_errors_have_lines_too(tmp_path: Path) -> None:
    assert "spec.toml:9: geometry.intermediate: 168" in refusal(tmp_path, TOML.replace("160", "168"), "spec.toml")
    assert "spec.toml:15: activations.activation_scale.gemm1: 'x'" in refusal(
        tmp_path, TOML.replace('gemm1 = "static"', 'gemm1 = "x"'), "spec.toml"
    )
    assert "malformed TOML" in refusal(tmp_path, TOML + "\n[tune]\n", "spec.toml")


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (b"\xff\xfe", "spec.yaml", "cannot be read"),
        (b"", "spec.yaml", "a spec is a mapping"),
        (b"- a\n", "spec.yaml", "a spec is a mapping"),
        (b"name: tiny", "spec.json", "unknown file type '.json'"),
        (b"#" * (1 << 20) + b"\n", "spec.yaml", "a spec has at most"),
        (b"\x00\x01", "spec.yaml", "malformed YAML"),
    ],
)
def test_files_that_are_no_specs(tmp_path: Path, data: bytes, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / name)
    assert message in str(caught.value)


def test_a_missing_file_is_a_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(tmp_path / "absent.yaml")
