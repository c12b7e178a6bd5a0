"""Packages are written whole or not at all, are the same everywhere, and a stale one is told file by file."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from codegen.specs import QUICKSTART

from moegen.codegen import check_generated, generate, packaging
from moegen.core.enums import Target
from moegen.core.errors import MoegenError, RenderError, SpecError, StaleGenerated
from moegen.core.package import read_manifest

ROOT = Path(__file__).parents[2]
CPU = [Target.CPU]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def package_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packages") / "quickstart"
    generate(QUICKSTART, place)
    return place


def test_a_package_holds_the_spec_the_manifest_and_every_source(package_dir: Path) -> None:
    package = read_manifest(package_dir)
    files = contents(package_dir)
    assert files["spec.yaml"] == QUICKSTART.read_bytes()
    sources = {source.path: source for target in package.targets.values() for source in target.sources}
    assert set(files) == {"__init__.py", "spec.yaml", "manifest.json", *sources}
    assert set(package.targets) == {Target.CPU, Target.SM_90A, Target.SM_100A}
    for target in package.targets.values():
        variants = {source.variant for source in target.sources}
        assert {step.variant for pipeline in target.pipelines for step in pipeline.steps} <= variants


def test_the_layer_record_holds_what_loaders_need(package_dir: Path) -> None:
    layer = read_manifest(package_dir).layer
    assert layer["geometry"] == {"hidden": 256, "intermediate": 160, "experts": 10, "top_k": 3}
    assert layer["weights"] == {"format": "nvfp4", "gate_up_order": "gate_up", "bias": False}
    assert layer["activations"]["activation_scale"] == {"gemm1": "static", "gemm2": "static"}
    assert layer["scale_layout"] == {"activations": "swizzle_128x4", "weights": "swizzle_128x4"}
    assert layer["tune"]["tokens"][0] == 1


def test_the_module_imports_the_runtime_alone(package_dir: Path) -> None:
    tree = ast.parse((package_dir / "__init__.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names} | {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    }
    assert imported == {"pathlib", "typing", "moegen.runtime"}


def test_generated_python_parses(package_dir: Path) -> None:
    sources = list(package_dir.rglob("*.py"))
    assert len(sources) >= 2
    for path in sources:
        ast.parse(path.read_text())


def test_generating_again_changes_nothing(package_dir: Path, tmp_path: Path) -> None:
    generate(QUICKSTART, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(package_dir)
    assert check_generated(QUICKSTART, package_dir) == read_manifest(package_dir)


def test_bytes_do_not_depend_on_cwd_home_or_hash_seed(package_dir: Path, tmp_path: Path) -> None:
    script = f"from moegen.codegen import generate; generate({str(QUICKSTART)!r}, {str(tmp_path / 'other')!r})"
    environment = {**os.environ, "PYTHONHASHSEED": "77", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
    assert contents(tmp_path / "other") == contents(package_dir)


def test_a_subset_of_targets(tmp_path: Path) -> None:
    package = generate(QUICKSTART, tmp_path / "p", CPU)
    assert set(package.targets) == {Target.CPU}
    assert not (tmp_path / "p" / "sm_90a").exists()
    with pytest.raises(SpecError, match="not in the spec's targets"):
        generate(QUICKSTART, tmp_path / "q", [Target.SM_103A])
    with pytest.raises(SpecError, match="no target"):
        generate(QUICKSTART, tmp_path / "q", [])
    assert not (tmp_path / "q").exists()


def test_staleness_is_told_file_by_file(tmp_path: Path) -> None:
    place = tmp_path / "p"
    package = generate(QUICKSTART, place, CPU)
    sources = package.targets[Target.CPU].sources
    (place / sources[0].path).write_text("// edited\n")
    (place / sources[1].path).unlink()
    (place / "cpu" / "extra.cc").write_text("")
    with pytest.raises(StaleGenerated) as caught:
        check_generated(QUICKSTART, place, CPU)
    message = str(caught.value)
    assert f"changed: {sources[0].path}" in message
    assert f"missing: {sources[1].path}" in message
    assert "left over: cpu/extra.cc" in message
    assert message.count("\n  ") == 3
    assert f"moegen generate {QUICKSTART}" in message


def test_a_changed_spec_makes_the_package_stale(tmp_path: Path) -> None:
    place = tmp_path / "p"
    generate(QUICKSTART, place, CPU)
    changed = tmp_path / "changed.yaml"
    changed.write_text(QUICKSTART.read_text().replace("contract: te", "contract: half_step"))
    with pytest.raises(StaleGenerated, match=r"changed: spec\.yaml"):
        check_generated(changed, place, CPU)


def test_regenerating_replaces_stale_files_and_leaves_no_stage_behind(tmp_path: Path) -> None:
    place = tmp_path / "p"
    generate(QUICKSTART, place, CPU)
    (place / "cpu" / "old.cc").write_text("")
    generate(QUICKSTART, place, CPU)
    check_generated(QUICKSTART, place, CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(QUICKSTART.read_text().replace("top_k: 3", "top_k: 30"))
    with pytest.raises(SpecError):
        generate(bad, tmp_path / "p")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_a_refused_schedule_is_placed_on_its_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(QUICKSTART.read_text().replace("{rows: [1, 4, 16]}", "{rows: [1, 4, 16], columns: [32]}"))
    line = next(number for number, text in enumerate(bad.read_text().splitlines(), 1) if "columns" in text)
    with pytest.raises(SpecError) as caught:
        generate(bad, tmp_path / "p")
    assert str(caught.value).startswith(f"{bad}:{line}: schedules.cpu: unknown schedule field 'columns'")


def test_a_failing_template_leaves_the_old_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "p"
    generate(QUICKSTART, place, CPU)
    before = contents(place)

    def fail(*_: object) -> None:
        raise RenderError("broken on purpose")

    monkeypatch.setattr(packaging, "render", fail)
    with pytest.raises(RenderError):
        generate(QUICKSTART, place, CPU)
    assert contents(place) == before


def test_a_failing_rename_leaves_the_old_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "p"
    generate(QUICKSTART, place, CPU)
    before = contents(place)
    rename = os.rename

    def fail_to_publish(source: Path, destination: Path) -> None:
        if Path(source).name == "new":
            raise OSError("no")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fail_to_publish)
    with pytest.raises(MoegenError, match="cannot be written"):
        generate(QUICKSTART, place, CPU)
    assert contents(place) == before
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MoegenError) as caught:
        generate(QUICKSTART, tmp_path / "file" / "p", CPU)
    assert str(tmp_path / "file" / "p") in str(caught.value)
    assert "cannot be written" in str(caught.value)


def test_a_folder_of_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(MoegenError, match="not ours to replace"):
        generate(QUICKSTART, tmp_path / "mine", CPU)
    assert contents(tmp_path / "mine") == {"notes.txt": b"keep"}
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("file", "link"):
        with pytest.raises(MoegenError, match="is not a folder"):
            generate(QUICKSTART, tmp_path / name, CPU)


def test_toml_specs_are_kept_as_they_are(tmp_path: Path) -> None:
    spec = tmp_path / "s.toml"
    spec.write_text(
        'name = "s"\nsource = "test"\nepilogues = ["compact"]\ntargets = ["cpu"]\nactivation = {kind = "silu"}\n'
        'activations = {format = "bf16"}\ngeometry = {hidden = 128, intermediate = 64, experts = 3, top_k = 2}\n'
        "schedules = {cpu = {rows = [2], cols = [32], unroll = [1], k_chunk = [64]}}\n"
    )
    generate(spec, tmp_path / "p")
    assert (tmp_path / "p" / "spec.toml").read_bytes() == spec.read_bytes()
    check_generated(spec, tmp_path / "p")


def test_the_committed_quickstart_is_up_to_date() -> None:
    check_generated(QUICKSTART, ROOT / "generated" / "quickstart")
