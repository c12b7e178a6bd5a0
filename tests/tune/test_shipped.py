"""The tables that come with moegen: true to their digests and trials, in force where they measured; needs no GPU."""

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest

from moegen.codegen.packaging import generate_in_memory
from moegen.core.devices import H200
from moegen.core.enums import Epilogue, Target
from moegen.core.errors import TableError
from moegen.core.package import Package
from moegen.core.paths import data_root
from moegen.runtime.choice import Choice, matching
from moegen.runtime.decision import Decider, Evidence, Source
from moegen.runtime.environment import current_environment
from moegen.runtime.explain import explain_offline
from moegen.spec.load import load_spec
from moegen.store.database import TrialDatabase
from moegen.store.tables import SUFFIX, Table, find_tables, load
from moegen.store.trials import Subject
from moegen.tune.fidelity import leave_one_out
from moegen.tune.freeze import class_defaults, numerics_text, table_view
from moegen.tune.policy import SelectPolicy
from moegen.tune.select import choose
from moegen.tune.tables import SHIPPED, shipped_winners

FOLDER = data_root("specs") / SHIPPED
MODELS = ("deepseek_v4_flash", "dsv3", "gpt_oss_120b", "qwen3_30b_a3b")
ROUTINGS = ("uniform", "zipf=1")
LARGEST_TUNED = 16384
#: Token counts measured in each routing, at least, and the largest step from one to the next.
MEASURED = {"deepseek_v4_flash": (8, 4), "dsv3": (8, 4), "qwen3_30b_a3b": (8, 4), "gpt_oss_120b": (15, 2)}
#: Bounds on the regret of a table's decisions at a point left out, mean and worst.
MEAN_REGRET, WORST_REGRET = 0.1, 0.35
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


def tables_of(model: str) -> list[Table]:
    return [load(path) for path in sorted(FOLDER.glob(f"{model}-*{SUFFIX}"))]


def decider_of(package: Package, routing: str, epilogue: Epilogue | None = None) -> Decider:
    offered = matching(package, package.targets[Target.SM_90A], Choice(epilogue=epilogue))
    numerics = offered[0].numerics
    return Decider(
        pipelines={pipeline.name: pipeline for pipeline in offered},
        default=package.targets[Target.SM_90A].default,
        evidence=[item for item in evidence_of(package) if item.table.numerics == numerics],
        routing=routing,
    )


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("model", MODELS)
def test_measurements_decide_wherever_they_reach_and_it_is_said_where_they_do_not(model: str, routing: str) -> None:
    decider = decider_of(package_of(model), routing)
    powers = (1 << exponent for exponent in range(15))
    inside = {*range(1, 300), *range(1, LARGEST_TUNED + 1, 61), *powers}
    decisions = [decider.decide(tokens) for tokens in sorted(inside)]
    assert {decision.source for decision in decisions} <= BY_MEASUREMENT
    assert {decision.routing for decision in decisions} == {routing}
    assert not any("no trials under" in decision.reason for decision in decisions)
    outside = [decider.decide(tokens) for tokens in range(LARGEST_TUNED + 1, LARGEST, 607)]
    assert {decision.source for decision in outside} <= {Source.CLAMPED, Source.MODEL}
    assert all("outside the tuned points" in d.reason for d in outside if d.source is Source.CLAMPED)
    assert all("no usable trials there" in d.reason for d in outside if d.source is Source.MODEL)


@pytest.mark.parametrize("model", MODELS)
def test_every_class_is_measured_from_end_to_end_in_both_routings(model: str) -> None:
    package, (fewest, step) = package_of(model), MEASURED[model]
    tables = tables_of(model)
    assert {table.numerics for table in tables} == set(class_defaults(package.targets[Target.SM_90A]))
    for table, routing in product(tables, ROUTINGS):
        counts = [point.tokens for point in table.points if point.routing == routing]
        assert (counts[0], counts[-1]) == (1, LARGEST_TUNED)
        assert len(counts) >= fewest
        assert max(after / before for before, after in pairwise(counts)) <= step
        assert all(len(point.candidates) > 1 for point in table.points)


@pytest.mark.parametrize("model", MODELS)
def test_routing_that_nobody_measured_falls_back_to_uniform_trials_and_says_so(model: str) -> None:
    decision = decider_of(package_of(model), "one_hot").decide(4)
    assert decision.source in BY_MEASUREMENT
    assert "no trials under one_hot" in decision.reason


@pytest.mark.parametrize("model", MODELS)
def test_decisions_between_tuned_points_cost_little(model: str) -> None:
    package = package_of(model)
    for table in tables_of(model):
        pipelines = {p.name: p for p in package.targets[Target.SM_90A].pipelines if p.numerics == table.numerics}
        found = leave_one_out(table, pipelines)
        assert found.regret is not None
        assert len(found.unknown) <= len(found.decided) // 4
        assert found.regret.mean < MEAN_REGRET
        assert found.regret.worst < WORST_REGRET


def test_explain_says_why_without_a_gpu() -> None:
    package = package_of("dsv3")
    for choice in (Choice(), Choice(routing="zipf=1"), Choice(routing="zipf=1", epilogue=Epilogue.COMPACT)):
        found = explain_offline(package, Path("package"), Target.SM_90A, evidence_of(package), 100, choice)
        assert found.device == "NVIDIA H200"
        text = str(found)
        assert f"T = 100, routing {choice.routing}" in text
        assert "between T=64 and T=" in text
        assert found.table is not None
        assert found.table.table.digest[:16] in text
        assert all(step.variant in text for step in found.steps)
        assert choice.epilogue in (None, found.pipeline.epilogue)


def test_a_table_serves_its_layer_whatever_became_of_its_kernels() -> None:
    """A table belongs to a layer on a target: with every source rendered anew it decides as before, and says so."""
    package = package_of("qwen3_30b_a3b")
    offer = package.targets[Target.SM_90A]
    sources = tuple(replace(source, digest=f"{int(source.digest, 16) ^ 1:064x}") for source in offer.sources)
    anew = replace(package, targets={Target.SM_90A: replace(offer, sources=sources)})
    assert anew.offer_digest(Target.SM_90A) != package.offer_digest(Target.SM_90A)
    for routing in ROUTINGS:
        before, after = decider_of(package, routing), decider_of(anew, routing)
        for tokens in (1, 6, 100, 3000, 16384):
            now = after.decide(tokens)
            assert now.pipeline == before.decide(tokens).pipeline
            assert "kernels were rendered anew since" in now.reason


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
