"""An explanation with a table and trials behind it: every link of the chain is named and can be followed."""

from dataclasses import replace
from pathlib import Path

import pytest
from runtime.packages import TestPackage

from moegen.core.canonical import canonical_json
from moegen.core.enums import Target
from moegen.runtime import ExpertWeights
from moegen.runtime.environment import current_environment
from moegen.store.artifacts import ArtifactStore
from moegen.store.database import DATABASE, TrialDatabase
from moegen.store.tables import Candidate, Point, Table, freeze, table_path
from moegen.store.trials import Policy, Problem, Routing, Session, Subject, Trial, TrialStatus


def tuned(tiny: TestPackage, folder: Path) -> tuple[TestPackage, Table, dict[tuple[int, str], str]]:
    """The package with a database of one trial for each (T, pipeline), and the table made of them."""
    loaded = tiny.load()
    names = sorted(loaded.decider.pipelines)
    numerics = loaded.pipelines[next(iter(loaded.pipelines))].numerics
    environment = current_environment(loaded.runner.facts)
    routing = Routing(label="uniform", parameters={}, seed=0, active_experts=7)
    policy = Policy(timer="wall", cache="hot", parameters={})
    session = Session(
        started=0.0, host="h", command="c", effort="quick", budget_s=None, seed=0, revision="r", dirty=False
    )
    store = ArtifactStore(folder, (tiny.store.home,))
    ids: dict[tuple[int, str], str] = {}
    with TrialDatabase(folder / DATABASE) as database:
        for tokens in (4, 64):
            problem = Problem(
                package=loaded.package.offer_digest(loaded.target),
                name="tiny",
                target=Target.CPU.value,
                subject=Subject.PIPELINE,
                tokens=tokens,
                top_k=3,
                experts=7,
                hidden=64,
                intermediate=48,
                numerics=canonical_json(numerics).decode(),
            )
            for rank, name in enumerate(names):
                trial = Trial(
                    problem=problem.id,
                    routing=routing.id,
                    environment=environment.id,
                    policy=policy.id,
                    session=session.id,
                    variant=name,
                    artifacts=(),
                    status=TrialStatus.OK,
                    median_us=float(tokens * (rank + 1)),
                    n=9,
                    rounds=3,
                )
                database.add([problem, routing, environment, policy, session, trial])
                ids[tokens, name] = trial.id
    points = tuple(
        Point(
            tokens=tokens,
            routing="uniform",
            winner=names[0],
            candidates=tuple(
                Candidate(pipeline=name, median_us=float(tokens * (rank + 1))) for rank, name in enumerate(names)
            ),
        )
        for tokens in (4, 64)
    )
    table = Table(
        package=loaded.package.offer_digest(loaded.target),
        name="tiny",
        environment=environment,
        policy={},
        selection={},
        numerics=numerics,
        points=points,
        trials="f" * 64,
    )
    freeze(table, table_path(folder, table))
    return TestPackage(directory=tiny.directory, store=store), table, ids


def test_every_link_is_named(tiny: TestPackage, weights: ExpertWeights, tmp_path: Path) -> None:
    made, table, ids = tuned(tiny, tmp_path)
    layer = made.load().from_tensors(weights)
    found = layer.explain(tokens=16)
    chosen = found.decision.pipeline
    assert found.decision.source.value == "interpolated"
    assert found.decision.predicted_us == pytest.approx(16.0)
    assert found.table is not None
    assert found.table.table.digest == table.digest
    assert sorted(found.trials) == sorted([ids[4, chosen], ids[64, chosen]])
    text = str(found)
    assert str(table_path(tmp_path, table)) in text
    assert table.digest[:16] in text
    for trial in found.trials:
        assert trial[:16] in text
    assert [step.variant for step in found.steps] == [step.variant for step in found.pipeline.steps]
    for step in found.steps:
        assert step.variant in step.source.read_text(), "the rendered source says which variant it is"


def test_exact_point_names_its_own_trial_only(tiny: TestPackage, weights: ExpertWeights, tmp_path: Path) -> None:
    made, _, ids = tuned(tiny, tmp_path)
    found = made.load().from_tensors(weights).explain(tokens=64)
    assert found.trials == (ids[64, found.decision.pipeline],)
    assert "fit exact" in str(found)


def test_without_a_database_the_table_still_speaks(tiny: TestPackage, weights: ExpertWeights, tmp_path: Path) -> None:
    made, table, _ = tuned(tiny, tmp_path)
    (tmp_path / DATABASE).unlink()
    found = made.load().from_tensors(weights).explain(tokens=64)
    assert found.trials == ()
    assert f"not readable on this machine (table made from {table.trials[:16]}…)" in str(found)
    assert not (tmp_path / DATABASE).exists(), "explaining writes nothing"
    (tmp_path / DATABASE).write_bytes(b"no database" * 100)
    assert made.load().from_tensors(weights).explain(tokens=64).trials == ()


def test_a_table_of_a_sister_device_is_named_as_such(tiny: TestPackage, tmp_path: Path) -> None:
    made, table, _ = tuned(tiny, tmp_path)
    table_path(tmp_path, table).unlink()
    sister = replace(table, environment=replace(table.environment, device="another machine"))
    freeze(sister, table_path(tmp_path, sister))
    decision = made.load().decider.decide(64)
    assert decision.source.value == "family"
    assert "measured on another machine" in decision.reason


def test_the_routing_that_a_caller_declares_picks_its_own_winners(tiny: TestPackage, tmp_path: Path) -> None:
    """One table with two routing classes: the layer runs the declared class's winner, and says which trials it used."""
    made, table, _ = tuned(tiny, tmp_path)
    table_path(tmp_path, table).unlink()
    slow, *_, fast = sorted(made.load().decider.pipelines)
    skewed = tuple(
        Point(
            tokens=point.tokens,
            routing="zipf=1",
            winner=fast,
            candidates=(Candidate(pipeline=fast, median_us=1.0), Candidate(pipeline=slow, median_us=2.0)),
        )
        for point in table.points
    )
    points = tuple(sorted((*table.points, *skewed), key=lambda point: (point.tokens, point.routing)))
    both = replace(table, points=points)
    freeze(both, table_path(tmp_path, both))
    for tokens in (4, 16, 64):
        uniform, declared = (made.load(**choice).decider.decide(tokens) for choice in ({}, {"routing": "zipf=1"}))
        assert (uniform.pipeline, uniform.routing) == (slow, "uniform")
        assert (declared.pipeline, declared.routing) == (fast, "zipf=1")
        assert "no trials under" not in declared.reason
    other = made.load(routing="zipf=2").decider.decide(16)
    assert (other.pipeline, other.routing) == (slow, "uniform")
    assert "no trials under zipf=2, uniform used" in other.reason
