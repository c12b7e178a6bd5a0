"""Measured pipelines stay in the plan when the time model would drop them, and only while they are legal."""

import pytest

from moegen.codegen.planning import TargetPlan, plan
from moegen.core.enums import Target
from moegen.core.paths import data_root
from moegen.spec.load import load_spec
from moegen.spec.models import LayerSpec


def spec_keeping(pipelines: int) -> LayerSpec:
    data = load_spec(data_root("specs") / "quickstart.yaml").model_dump(mode="json")
    return LayerSpec.model_validate({**data, "tune": {**data["tune"], "pipelines": pipelines}})


def chain(made: TargetPlan, name: str) -> tuple[str, ...]:
    return tuple(step.name for kept in made.kept if kept.candidate.name == name for step in kept.candidate.steps)


@pytest.fixture(scope="module")
def wide() -> TargetPlan:
    return plan(spec_keeping(24), Target.CPU)


@pytest.fixture(scope="module")
def narrow() -> TargetPlan:
    return plan(spec_keeping(3), Target.CPU)


def test_an_incumbent_stays_whatever_the_model_thinks(wide: TargetPlan, narrow: TargetPlan) -> None:
    dropped = next(item.candidate.name for item in narrow.dropped if chain(wide, item.candidate.name))
    again = plan(spec_keeping(3), Target.CPU, incumbents={chain(wide, dropped): "won at T = 4"})
    assert {p.name for p in again.pipelines} == {p.name for p in narrow.pipelines} | {dropped}
    assert [item.reason for item in again.kept if item.candidate.name == dropped] == ["measured: won at T = 4"]
    assert dropped not in {item.candidate.name for item in again.dropped}
    assert again.default == narrow.default
    (twin,) = (p for p in wide.pipelines if p.name == dropped)
    assert twin in again.pipelines


def test_one_that_is_kept_anyway_changes_nothing(narrow: TargetPlan) -> None:
    names = [chain(narrow, pipeline.name) for pipeline in narrow.pipelines]
    assert plan(spec_keeping(3), Target.CPU, incumbents=dict.fromkeys(names, "won")).kept == narrow.kept


def test_unknown_and_foreign_incumbents_are_left_out(wide: TargetPlan, narrow: TargetPlan) -> None:
    dropped = next(item.candidate.name for item in narrow.dropped if chain(wide, item.candidate.name))
    known = chain(wide, dropped)
    gone = ("gemm1-of-an-older-catalog", *known[1:])
    shorter = known[1:]
    assert plan(spec_keeping(3), Target.CPU, incumbents={gone: "won", shorter: "won"}).kept == narrow.kept
