"""The tables that come with moegen: true to their digests and trials, in force where they measured; needs no GPU."""

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from moegen.codegen.packaging import generate_in_memory
from moegen.core.devices import H200
from moegen.core.enums import Target
from moegen.core.errors import TableError
from moegen.core.package import Package
from moegen.core.paths import data_root
from moegen.runtime.choice import Choice, matching
from moegen.runtime.decision import Decider, Evidence, Source
from moegen.runtime.environment import current_environment
from moegen.runtime.explain import explain_offline
from moegen.spec.load import load_spec
from moegen.store.database import TrialDatabase
from moegen.store.tables import SUFFIX, find_tables, load
from moegen.store.trials import Subject
from moegen.tune.freeze import numerics_text, table_view
from moegen.tune.policy import SelectPolicy
from moegen.tune.select import choose
from moegen.tune.tables import SHIPPED, shipped_winners

FOLDER = data_root("specs") / SHIPPED
#: (fewest, most) tokens measured, by model and routing.
MEASURED = {
    ("dsv3", "uniform"): (1, 16384),
    ("deepseek_v4_flash", "uniform"): (1, 8192),
    ("qwen3_30b_a3b", "uniform"): (1, 8192),
    ("gpt_oss_120b", "uniform"): (1, 4096),
}
LARGEST = 40_000
DEVICE = "nvidia_h200"
BY_MEASUREMENT = {Source.EXACT, Source.INTERPOLATED}


@cache
def package_of(model: str) -> Package:
    spec = load_spec(data_root("specs") / "models" / f"{model}.yaml")
    return generate_in_memory(spec, ("spec.yaml", b""), (Target.SM_90A,), incumbents=shipped_winners).package


def evidence_of(package: Package) -> list[Evidence]:
    """What a process on an H200 would find; nothing here asks a driver."""
    target = Target.SM_90A
    offer, layer = package.offer_digest(target), package.layer_digest(target)
    found = find_tables([FOLDER], offer, current_environment(H200), layer=layer)
    return [Evidence(table=table, match=match, path=path) for table, match, path in found]


def decider_of(package: Package, routing: str) -> Decider:
    offered = matching(package, package.targets[Target.SM_90A], Choice())
    numerics = offered[0].numerics
    return Decider(
        pipelines={pipeline.name: pipeline for pipeline in offered},
        default=package.targets[Target.SM_90A].default,
        evidence=[item for item in evidence_of(package) if item.table.numerics == numerics],
        routing=routing,
    )


@pytest.mark.parametrize(("model", "routing"), MEASURED)
def test_measurements_decide_wherever_they_reach_and_it_is_said_where_they_do_not(model: str, routing: str) -> None:
    decider, (fewest, most) = decider_of(package_of(model), routing), MEASURED[model, routing]
    powers = (1 << exponent for exponent in range(15))
    inside = {*range(fewest, min(most, 300)), *range(fewest, most + 1, 61), *(t for t in powers if fewest <= t <= most)}
    found = Counter(decider.decide(tokens).source for tokens in sorted(inside))
    assert found.keys() <= BY_MEASUREMENT, found
    outside = [decider.decide(tokens) for tokens in (*range(1, fewest), *range(most + 1, LARGEST, 607))]
    assert {decision.source for decision in outside} <= {Source.CLAMPED, Source.MODEL}
    assert all("outside the tuned points" in d.reason for d in outside if d.source is Source.CLAMPED)
    assert all("no usable trials there" in d.reason for d in outside if d.source is Source.MODEL)


@pytest.mark.parametrize("model", sorted({model for model, _ in MEASURED}))
def test_routing_that_nobody_measured_falls_back_to_uniform_trials_and_says_so(model: str) -> None:
    decision = decider_of(package_of(model), "one_hot").decide(4)
    assert decision.source in BY_MEASUREMENT
    assert "no trials under one_hot" in decision.reason


def test_explain_says_why_without_a_gpu() -> None:
    package = package_of("dsv3")
    found = explain_offline(package, Path("package"), Target.SM_90A, evidence_of(package), 100)
    assert found.device == "NVIDIA H200"
    text = str(found)
    assert "between T=64 and T=128" in text
    assert found.table is not None
    assert found.table.table.digest[:16] in text
    assert all(step.variant in text for step in found.steps)


@pytest.mark.parametrize("path", sorted(FOLDER.glob(f"*{SUFFIX}")), ids=lambda path: path.name[:40])
def test_a_table_is_what_its_trials_select_and_an_edit_is_noticed(path: Path, tmp_path: Path) -> None:
    table = load(path)
    with TrialDatabase(tmp_path / "trials.db") as database:
        database.import_pack(FOLDER / f"{table.name}-{DEVICE}.jsonl")
        results = database.results(package=table.package, target=table.environment.target)
    assert all(r.trial.clock_mhz for r in results if r.trial.median_us and r.problem.subject is Subject.PIPELINE)
    choices = choose(table_view(results), table.default, numerics_text(table.numerics), SelectPolicy())
    assert [(c.tokens, c.routing, c.winner, c.candidates) for c in choices] == [
        (point.tokens, point.routing, point.winner, point.candidates) for point in table.points
    ]
    assert table.layer == package_of(table.name).layer_digest(Target.SM_90A)
    body = json.loads(path.read_text())
    body["table"]["points"][0]["candidates"][0]["median_us"] *= 0.5
    edited = tmp_path / path.name
    edited.write_text(json.dumps(body))
    with pytest.raises(TableError, match="digest"):
        load(edited)
