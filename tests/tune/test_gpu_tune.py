"""Tuning on a GPU: a package end to end through the command line, and a candidate that leaves the device unusable."""

import json
import os
from pathlib import Path

import pytest
from runtime.packages import gpu_package

from moegen.core.enums import Target
from moegen.core.package import read_manifest
from moegen.runtime import load
from moegen.runtime.decision import Source
from moegen.store.database import DATABASE, TrialDatabase
from moegen.store.trials import Subject, TrialStatus
from moegen.tune.worker import Worker, WorkerFailed
from tests.cli.calls import call

pytestmark = pytest.mark.gpu
TUNE = {"pipelines": 4, "tokens": [1, 40, 600], "routing": ["uniform", {"zipf": 1.0}]}
PACKAGES = [{"tune": TUNE}]
"""Every package that these tests build."""


def test_a_package_is_tuned_and_served_from_its_table(
    tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = gpu_package(tmp_path, **PACKAGES[0])
    monkeypatch.setenv("MOEGEN_HOME", str(made.store.home))
    monkeypatch.setenv("MOEGEN_PACKS", os.pathsep.join(map(str, made.store.packs)))
    report = json.loads(call("tune", made.directory, "--target", "sm_90a", "--effort", "quick", "--json"))
    assert report["session"]["ending"] == "done"
    assert report["session"]["excluded"] == {}
    offer = read_manifest(made.directory).offer_digest(Target.SM_90A)
    with TrialDatabase(made.store.home / DATABASE) as database:
        trials = [result.trial for result in database.results(package=offer, subject=Subject.PIPELINE)]
    assert {trial.status for trial in trials} <= {TrialStatus.OK, TrialStatus.NOISY}, "a shared GPU may be noisy"
    assert all(trial.clock_mhz and trial.clock_mhz > 300 for trial in trials)
    checked = [trial.err_rel for trial in trials if trial.err_rel is not None]
    assert checked
    assert max(checked) <= 5e-3  # exactly 0 where every partial sum fits fp32
    for routing in ("uniform", "zipf=1"):
        package = load(made.directory, target=Target.SM_90A, store=made.store, routing=routing)
        sources = {package.decider.decide(tokens).source for tokens in range(1, 601)}
        assert sources == {Source.EXACT, Source.INTERPOLATED}
    again = json.loads(call("tune", made.directory, "--target", "sm_90a", "--effort", "quick", "--json"))
    assert (again["session"]["explored"], again["session"]["skipped"]) == (0, 6)


def test_fr_41_a_device_error_does_not_outlive_its_candidate() -> None:
    """An index out of bounds on the device makes every later call of that process fail."""
    with Worker("tests.tune.fakes:make_fake", {}, timeout_s=120) as worker:
        assert worker.call("multiply_on_gpu") == 2048.0
        with pytest.raises(WorkerFailed) as caught:
            worker.call("break_gpu")
        assert caught.value.status in ("error", "crash")
        assert worker.call("multiply_on_gpu") == 2048.0
        with pytest.raises(WorkerFailed) as caught:
            worker.call("hoard_gpu")
        assert caught.value.status == "oom"
        assert worker.call("multiply_on_gpu") == 2048.0
