"""The chain through the command line, on a layer of two pipelines: build, verify, tune, freeze, explain, report."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import call, failure

SPEC = """
name: tiny
source: made for this test
geometry: {hidden: 80, intermediate: 48, experts: 7, top_k: 2}
activation: {kind: swiglu}
activations: {format: nvfp4, activation_scale: {gemm1: static, gemm2: static}}
numerics: {pre_quant_round: bf16}
epilogues: [compact, fused_fp4]
targets: [cpu]
schedules: {cpu: {rows: [4], cols: [32], k_chunk: [64], unroll: [4]}}
tune: {tokens: [1, 5], routing: [uniform], pipelines: 2}
"""


class Chain:
    """A built package, with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = folder / "tiny.yaml"
        self.package = folder / "generated" / "tiny"

    def json(self, *arguments: object) -> Any:
        return json.loads(call(*arguments, "--json"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    chain = Chain(tmp_path_factory.mktemp("chain"))
    chain.spec.write_text(SPEC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOEGEN_HOME", str(chain.folder / "home"))
        patch.setenv("MOEGEN_THREADS", "1")
        call("generate", chain.spec, "--out", chain.package)
        built = chain.json("build", chain.package)
        assert built["counts"] == {"built": len(built["variants"])}
        call("tune", chain.package, "--effort", "quick")
        yield chain


@pytest.fixture
def chain(made: Chain, monkeypatch: pytest.MonkeyPatch) -> Chain:
    """The built and tuned package; the suite's private home is replaced by its own."""
    monkeypatch.setenv("MOEGEN_HOME", str(made.folder / "home"))
    monkeypatch.setenv("MOEGEN_THREADS", "1")
    return made


def test_a_second_build_finds_everything(chain: Chain) -> None:
    assert set(chain.json("build", chain.package)["counts"]) == {"hit"}
    assert "have artifacts for cpu" in call("cache", "why-miss", chain.package)


def test_verify_passes_every_pipeline(chain: Chain) -> None:
    said = chain.json("verify", chain.package)
    rows = said["pipelines"]
    assert len(rows) == 2
    assert {(row["by"], row["result"]) for row in said["proven"]} == {("this machine", "2 of 2 pipelines")}
    assert {(row["exact sums"], row["stale memory"], row["verdict"]) for row in rows} == {("equal", "equal", "pass")}


def test_verify_takes_names_and_batches_and_refuses_others(chain: Chain) -> None:
    name = chain.json("verify", chain.package)["pipelines"][0]["pipeline"]
    rows = chain.json("verify", chain.package, "--pipeline", name, "--tokens", 2)["pipelines"]
    assert [row["pipeline"] for row in rows] == [name]
    assert f"use one of: {name}" in failure("verify", chain.package, "--pipeline", "nope")
    assert "at least one token" in failure("verify", chain.package, "--tokens", 0)


def test_tuning_again_has_nothing_to_do(chain: Chain) -> None:
    found = chain.json("tune", chain.package, "--effort", "quick")["session"]
    assert (found["ending"], found["explored"], found["skipped"]) == ("done", 0, 2)


def test_a_dry_run_measures_nothing(chain: Chain) -> None:
    before = len(chain.json("db", "ls"))
    found = chain.json("tune", chain.package, "--effort", "quick", "--again", "--dry-run", "--tokens", "3")
    assert found["points"] == 1
    assert found["calls"] > 0
    assert len(chain.json("db", "ls")) == before


def test_trials_can_be_listed_shown_exported_and_imported(chain: Chain, tmp_path: Path) -> None:
    trials = chain.json("db", "ls", "--package", "tiny", "--tokens", 5)
    assert {trial["tokens"] for trial in trials} == {5}
    assert {"final"} <= {trial["stage"] for trial in trials}
    shown = json.loads(call("db", "show", trials[0]["trial"]))
    assert shown["problem"]["name"] == "tiny"
    assert shown["environment"]["target"] == "cpu"
    pack, other = tmp_path / "tiny.jsonl", tmp_path / "other.db"
    call("db", "export", pack, "--package", "tiny")
    assert "new records" in call("db", "import", pack, "--db", other)
    assert call("db", "import", pack, "--db", other).strip().endswith(" 0 new records")
    assert call("db", "merge", other).strip().endswith(" 0 new records")
    assert call("db", "ls", "--db", other) == call("db", "ls")


@pytest.mark.parametrize("more", [(), ("--whole",), ("--package", "tiny", "--whole")])
def test_replaying_an_exported_pack_gives_the_same_table(chain: Chain, tmp_path: Path, more: tuple[str, ...]) -> None:
    call("db", "export", tmp_path / "pack.jsonl", *more)
    call("db", "import", tmp_path / "pack.jsonl", "--db", tmp_path / "other.db")
    tables = []
    for name, database in (("ours", ()), ("theirs", ("--db", tmp_path / "other.db"))):
        (path,) = call("db", "freeze", chain.package, "-o", tmp_path / name, *database).split()
        tables.append(json.loads(Path(path).read_text()))
    assert tables[0] == tables[1]


def test_a_pin_rules_the_next_freeze(chain: Chain, tmp_path: Path) -> None:
    manifest = json.loads((chain.package / "manifest.json").read_text())["targets"]["cpu"]
    other = next(p["name"] for p in manifest["pipelines"] if p["name"] != manifest["default"])
    call("db", "export", tmp_path / "pack.jsonl")
    database = ("--db", tmp_path / "pinned.db")
    call("db", "import", tmp_path / "pack.jsonl", *database)
    call("db", "pin", chain.package, other, "--reason", "incident 7", "--tokens", 5, *database)
    (path,) = call("db", "freeze", chain.package, "-o", tmp_path / "pinned", *database).split()
    points = {point["tokens"]: point for point in json.loads(Path(path).read_text())["table"]["points"]}
    assert (points[5]["winner"], points[5]["pinned"], points[1]["pinned"]) == (other, True, False)
    assert "no pipeline 'nonsense'" in failure("db", "pin", chain.package, "nonsense", "--reason", "x", *database)


def test_explain_walks_back_to_the_spec(chain: Chain) -> None:
    exact, between, beyond = chain.json("explain", chain.package, "--tokens", 5, "--tokens", 3, "--tokens", 9)
    assert [item["source"] for item in (exact, between, beyond)] == ["exact", "interpolated", "clamped"]
    assert exact["trials"]
    assert exact["spec"][0].startswith(str(chain.package / "spec.yaml") + ":")
    assert all(Path(step["source"]).is_file() for step in exact["steps"])
    assert "decision   exact" in call("explain", chain.package, "--tokens", 5)


@pytest.mark.parametrize("more", [(), ("--offline",)])
def test_explain_takes_what_a_caller_may_ask_for(chain: Chain, more: tuple[str, ...]) -> None:
    for mode in ("compact", "fused_fp4"):
        said = chain.json("explain", chain.package, "--tokens", 5, "--epilogue", mode, *more)[0]
        assert said["pipeline"].startswith(f"{mode}-")
    skewed = chain.json("explain", chain.package, "--tokens", 5, "--routing", "zipf=1", *more)[0]
    assert "no trials under zipf=1, uniform used" in skewed["reason"]


def test_explain_offline_needs_no_kernels(chain: Chain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, offline = (chain.json("explain", chain.package, "--tokens", 5, *more)[0] for more in ((), ("--offline",)))
    for name in ("pipeline", "source", "reason", "table", "rivals", "device"):
        assert offline[name] == here[name], name
    assert [step["artifact"] for step in offline["steps"]] == [""] * len(here["steps"])
    assert "artifact" not in call("explain", chain.package, "--tokens", 5, "--offline")
    monkeypatch.setenv("MOEGEN_HOME", str(tmp_path / "empty"))
    unmeasured = chain.json("explain", chain.package, "--tokens", 5, "--offline")[0]
    assert (unmeasured["source"], unmeasured["device"]) == ("model", "no device: nothing was measured")
    assert "no target sm_90a" in failure("explain", chain.package, "--tokens", 5, "--offline", "--target", "sm_90a")


def test_bench_compares_pipelines_and_records_nothing(chain: Chain) -> None:
    before = len(chain.json("db", "ls"))
    manifest = json.loads((chain.package / "manifest.json").read_text())
    names = [pipeline["name"] for pipeline in manifest["targets"]["cpu"]["pipelines"]]
    pinned = [option for name in names for option in ("--pipeline", name)]
    rows = chain.json("bench", chain.package, "--tokens", 5, "--effort", "quick", *pinned)
    assert [row["pipeline"] for row in rows] == names
    assert (rows[0]["verdict"], rows[0]["gain"]) == ("base", 0)
    assert all(0 < row["p20_us"] <= row["median_us"] <= row["p80_us"] for row in rows)
    (_, other) = rows
    apart = abs(other["median_us"] - rows[0]["median_us"]) > other["ci_us"] + rows[0]["ci_us"]
    assert other["verdict"] == ("tie" if not apart else "faster" if other["gain"] > 0 else "slower")
    assert len(chain.json("db", "ls")) == before
    served = chain.json("bench", chain.package, "--tokens", 1, "--effort", "quick")
    assert served[0]["pipeline"] == manifest["targets"]["cpu"]["default"]
    assert "no built pipeline nope" in failure("bench", chain.package, "--tokens", 1, "--pipeline", "nope")
    assert "token count 0" in failure("bench", chain.package, "--tokens", 0)


def test_diff_shows_what_sets_two_variants_apart(chain: Chain) -> None:
    found = chain.json("diff", chain.package, "fused", "compact", "--listing", "source", "--context", 0)
    assert [name.split("-")[0] for name in (found["a"], found["b"])] == ["gemm1", "gemm1"]
    lines = found["listings"]["source"]
    assert lines[:2] == [f"--- {found['a']}.source", f"+++ {found['b']}.source"]
    assert any("h_codes" in line for line in lines if line.startswith("-"))
    assert not any("h_codes" in line for line in lines if line.startswith("+"))
    same = call("diff", chain.package, found["a"], found["a"])
    assert same.strip() == "source: equal"
    assert "2 variants have 'gemm1'" in failure("diff", chain.package, "gemm1", "gemm2")
    assert "no variant has 'nope'" in failure("diff", chain.package, "nope", "gemm2")
    assert "its artifact holds no kernel.ptx" in failure("diff", chain.package, "fused", "compact", "--listing", "ptx")
    assert "no target sm_90a" in failure("diff", chain.package, "fused", "compact", "--target", "sm_90a")


def test_the_report_is_one_self_contained_page(chain: Chain, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    found = chain.json("report", chain.package, "-o", page)
    text = page.read_text()
    assert found["points"] == 2
    assert text.count("<svg") >= 3
    assert "<script" not in text
    assert "href=" not in text.replace("xlink:href=", "")
    for heading in ("Latency and winners", "Accuracy", "Builds", "Decision sources", "Environment and policy"):
        assert heading in text
    assert "cold cache; environment" in text
    call("report", chain.package, "-o", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == text


def test_doctor_and_cache_see_the_store(chain: Chain) -> None:
    findings = {item["subject"]: item for item in chain.json("doctor")}
    assert findings["compiler for cpu"]["well"]
    assert "trials in" in findings["database"]["found"]
    (root,) = chain.json("cache", "stat")
    assert root["entries"] == len(chain.json("build", chain.package)["variants"])
    assert chain.json("cache", "verify") == {"sound": root["entries"], "damaged": []}
    collected = chain.json("cache", "gc", "--max-mib", 0)
    assert (collected["removed"], collected["protected"]) == ([], root["entries"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--target", "sm_90a"), "no target sm_90a"),
        (("--tokens", "0"), "token count 0"),
        (("--routing", "dirichlet"), "unknown routing profile"),
        (("--budget", "soon"), "is no duration"),
    ],
)
def test_bad_tuning_requests_are_refused(chain: Chain, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in failure("tune", chain.package, *arguments)


def test_a_package_that_is_not_built_names_the_command(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOEGEN_HOME", str(tmp_path / "empty"))
    for verb in (("explain", "--tokens", 1), ("verify",), ("tune",)):
        assert f"moegen build {chain.package}" in failure(verb[0], chain.package, *verb[1:])


def test_unknown_trials_and_packages_are_typed_errors(chain: Chain, tmp_path: Path) -> None:
    assert "no record 'ffffffff" in failure("db", "show", "f" * 64)
    assert "no trials of a package named nope" in failure("db", "export", tmp_path / "x", "--package", "nope")
    assert "no such database" in failure("db", "merge", tmp_path / "none.db")
