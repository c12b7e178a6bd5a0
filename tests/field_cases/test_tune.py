"""Field cases of the tuner: what must never win, never end a session, and never be mixed up."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moegen.codegen.packaging import generate_in_memory
from moegen.core.enums import Target, TokenDtype
from moegen.core.errors import TableError
from moegen.core.package import Package
from moegen.core.paths import data_root
from moegen.numerics import ActivationQuantizer, LayerWeights, layer_reference, pair_from_decode
from moegen.numerics.layouts import Projection as Half
from moegen.runtime.checkpoint import ExpertWeights, Projection
from moegen.runtime.checkpoint.weights import check_weights
from moegen.runtime.decision import Decider, Decision, Evidence, Source
from moegen.spec import LayerSpec, load_spec
from moegen.store.database import TrialDatabase
from moegen.store.tables import Fit, Match, find_tables, freeze, match
from moegen.store.trials import Subject
from moegen.tune.freeze import freeze_tables
from moegen.tune.gate import gate_tolerance, judge
from moegen.tune.inputs import LayerShape, make_tokens, make_weights
from moegen.tune.planning import tune_points
from moegen.tune.policy import Effort, SelectPolicy, measure_policy
from moegen.tune.routing import parse_routing
from moegen.tune.session import Ending, SessionReport, TuneSession
from moegen.tune.worker import Worker
from tests.tune.packages import simple_package

POLICY = measure_policy(Target.CPU, Effort.QUICK)
Tune = Callable[..., SessionReport]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TrialDatabase]:
    with TrialDatabase(tmp_path / "trials.db") as db:
        yield db


@pytest.fixture
def tune(database: TrialDatabase) -> Iterator[Tune]:
    workers: list[Worker] = []

    def run(
        package: Package, times_us: dict[str, float], behaviours: dict[str, str], real_gate: bool = False
    ) -> SessionReport:
        options: dict[str, Any] = {"times_us": times_us, "behaviours": behaviours, "real_gate": real_gate}
        workers.append(Worker("tests.tune.fakes:make_fake", options, timeout_s=3.0))
        return TuneSession(package, Target.CPU, workers[-1], database, POLICY).run(tune_points(package))

    yield run
    for worker in workers:
        worker.close()


def candidates(database: TrialDatabase, package: Package) -> set[str]:
    """Every pipeline that a table frozen now would let a decision pick."""
    (table,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    return {candidate.pipeline for point in table.points for candidate in point.candidates}


def variants_of_quickstart() -> dict[str, Package]:
    """Packages of equal shapes that differ in one thing each."""
    spec = load_spec(data_root("specs") / "quickstart.yaml")
    data = spec.model_dump(mode="json")
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "scale layout": {"scale_layout": {"activations": "linear", "weights": "swizzle_128x4"}},
        "activation": {"activation": {"kind": "geglu_tanh"}},
        "gate/up order": {"weights": {**data["weights"], "gate_up_order": "up_gate"}},
    }
    made = {}
    for name, change in changes.items():
        text = LayerSpec.model_validate({**data, **change, "targets": ["cpu"], "schedules": {"cpu": "auto"}})
        made[name] = generate_in_memory(text, ("spec.yaml", b""), (Target.CPU,)).package
    return made


def test_fr_33_equal_shapes_never_share_an_entry(tune: Tune, database: TrialDatabase, tmp_path: Path) -> None:
    packages = variants_of_quickstart()
    assert len({package.layer_digest(Target.CPU) for package in packages.values()}) == len(packages)
    first, other = simple_package("default", "fast"), packages["scale layout"]
    ours, theirs = first.offer_digest(Target.CPU), other.offer_digest(Target.CPU)
    layer = other.layer_digest(Target.CPU)
    tune(first, {"default": 100.0, "fast": 50.0}, {})
    (table,) = freeze_tables(database.results(), first, Target.CPU, SelectPolicy())
    freeze(table, tmp_path / "one.table.json")
    assert find_tables([tmp_path], ours, table.environment)
    assert find_tables([tmp_path], theirs, table.environment, layer=layer) == []
    with pytest.raises(TableError, match="package is"):
        match(table, theirs, table.environment, layer=layer)
    with pytest.raises(TableError, match="arch is"):
        match(table, ours, replace(table.environment, arch="sm_90a"))
    assert database.results(package=theirs) == []


def test_fr_38_every_token_count_finds_a_legal_pipeline_and_a_fallback_is_said_once(
    tune: Tune, database: TrialDatabase
) -> None:
    package = simple_package("default", "fast", "slow")
    tune(package, {"default": 100.0, "fast": 50.0, "slow": 900.0}, {})
    (table,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    said: list[Decision] = []
    decider = Decider(
        pipelines={pipeline.name: pipeline for pipeline in package.targets[Target.CPU].pipelines},
        default="default",
        evidence=[Evidence(table=table, match=Match(fit=Fit.EXACT))],
        notify=said.append,
    )
    most = max(point.tokens for point in table.points)
    decisions = {tokens: decider.decide(tokens) for tokens in range(1, 2 * most + 1)}
    assert {decision.pipeline for decision in decisions.values()} == {"fast"}
    exact = {tokens for tokens, decision in decisions.items() if decision.source is Source.EXACT}
    assert exact == {point.tokens for point in table.points} == {point.tokens for point in tune_points(package)}
    assert [decision.source for decision in said] == [Source.CLAMPED]


@pytest.mark.parametrize("behaviour", ["nan", "wrong_row"])
def test_fr_39_a_fast_candidate_with_wrong_output_never_wins(
    tune: Tune, database: TrialDatabase, behaviour: str
) -> None:
    package = simple_package("default", "cheat", "honest")
    report = tune(package, {"default": 100.0, "cheat": 1.0, "honest": 80.0}, {"cheat": behaviour}, real_gate=True)
    assert (report.ending, report.explored) == (Ending.DONE, 2)
    assert candidates(database, package) == {"default", "honest"}
    wrong = [r.trial for r in database.results(subject=Subject.PIPELINE) if r.trial.variant == "cheat"]
    assert {trial.status.value for trial in wrong} == {"wrong"}
    assert all(trial.median_us is None for trial in wrong), "a wrong candidate was timed"
    assert all("seed 0, row" in trial.note and "block" in trial.note for trial in wrong)


def test_fr_41_candidates_that_break_the_device_are_recorded_and_tuning_goes_on(
    tune: Tune, database: TrialDatabase
) -> None:
    bad = {
        "check:die": "crash",
        "sample:die": "crash",
        "check:hang": "timeout",
        "sample:hoard": "oom",
        "check:refuse": "crash",
        "sample:bad_timer": "crash",
    }
    package = simple_package("default", "good", *bad)
    times = {"default": 100.0, "good": 50.0, **dict.fromkeys(bad, 1.0)}
    report = tune(package, times, {behaviour: behaviour for behaviour in bad})
    assert (report.ending, report.explored, report.duels) == (Ending.DONE, 2, 2)
    assert report.excluded.keys() == bad.keys()
    for behaviour, status in bad.items():
        assert report.excluded[behaviour].startswith(f"{status} at T=4 uniform")
        trials = [result.trial for result in database.results() if result.trial.variant == behaviour]
        assert {trial.status.value for trial in trials} == {status}
        assert sum("not run again" in trial.note for trial in trials) == 1
    (table,) = freeze_tables(database.results(), package, Target.CPU, SelectPolicy())
    assert [point.winner for point in table.points] == ["good", "good"]
    assert candidates(database, package) == {"default", "good"}


@pytest.mark.parametrize("profile", ["uniform", "one_hot", "zipf=1.2", "effective_experts=0.3"])
@pytest.mark.parametrize("gated", [True, False])
def test_fr_42_what_the_tuner_feeds_candidates_keeps_the_contract(profile: str, gated: bool) -> None:
    shape = LayerShape(
        experts=8,
        top_k=2,
        hidden=144,
        intermediate=80,
        gated=gated,
        bias=True,
        dtype=TokenDtype.BF16,
        w4a4=True,
        static_scales=True,
    )
    weights, inputs = make_weights(shape, seed=5), make_tokens(shape, 33, parse_routing(profile), seed=5)
    check_weights(weights, hidden=144, intermediate=80, where="tuner")
    assert (inputs.topk_ids.dtype, inputs.x.dtype) == (torch.int64, torch.bfloat16)
    assert all(len(set(ids)) == 2 and min(ids) >= 0 and max(ids) < 8 for ids in inputs.topk_ids.tolist())
    for side in filter(None, (weights.gate, weights.up, weights.down)):
        assert not ((side.scales & 0x7F) == 0x7F).any(), "a NaN scale byte"
        assert not (side.scales & 0x80).any(), "a negative scale"
        assert int(side.scales.max()) - int(side.scales.min()) >= 16, "scales span less than two binades"
        assert side.codes.is_contiguous()
    output = reference(weights, inputs.x, inputs.topk_ids, inputs.topk_weights, shape)
    assert output.isfinite().all()
    assert 0.05 < output.square().mean().sqrt() < 20, "no layer has such a gain"


def test_sd_03_the_gate_names_seed_row_block_and_first_element() -> None:
    reference_output = torch.randn(5, 64, generator=torch.Generator().manual_seed(9))
    output = reference_output.clone()
    output[3, 32:48] *= 2
    verdict = judge(output, reference_output, gate_tolerance(w4a4=True, intermediate=1 << 14), seed=9)
    assert not verdict.passed
    assert (verdict.row, verdict.block) == (3, 2)
    assert verdict.reason.startswith("seed 9, row 3, block 2, column 3")
    assert "1 of 5 rows differ" in verdict.reason


def reference(
    weights: ExpertWeights, x: torch.Tensor, ids: torch.Tensor, topk: torch.Tensor, shape: LayerShape
) -> torch.Tensor:
    """The layer in fp64 with the tuner's own activation scales."""
    from moegen.core.enums import ActivationKind, Contract
    from moegen.core.ops import Activation

    sides: list[Projection] = [side for side in (weights.gate, weights.up) if side is not None]
    assert weights.up.input is not None
    assert weights.down.input is not None
    assert weights.down.bias is not None
    layer = LayerWeights(
        w1=tuple(Half(codes=side.codes, scales=side.scales) for side in sides),
        w2=Half(codes=weights.down.codes, scales=weights.down.scales),
        w1_alpha=torch.stack([side.second for side in sides], dim=1),
        w2_alpha=weights.down.second[:, None],
        w1_bias=tuple(side.bias for side in sides if side.bias is not None),
        w2_bias=weights.down.bias,
    )
    quantizer = ActivationQuantizer(
        contract=Contract.TE,
        x_scale=pair_from_decode(weights.up.input.max().reshape(1)),
        h_scale=pair_from_decode(weights.down.input),
    )
    kind = ActivationKind.SWIGLU if shape.gated else ActivationKind.SILU
    return layer_reference(x, ids, topk, layer, Activation(kind=kind), quantizer=quantizer)
