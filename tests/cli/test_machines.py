"""Which machine runs a target's kernels."""

import pytest

from moegen.cli.machines import runner_here
from moegen.core.enums import Target
from moegen.core.errors import MoegenError
from moegen.ptx.runner import InterpreterRunner
from moegen.runtime import CpuRunner


def test_the_cpu_runs_its_own_kernels() -> None:
    runner, interpreted = runner_here(Target.CPU)
    assert isinstance(runner, CpuRunner)
    assert not interpreted


@pytest.mark.parametrize("target", [Target.SM_90A, Target.SM_100A, Target.SM_103A])
def test_a_gpu_that_is_not_here_is_interpreted(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_device(wanted: Target) -> None:
        raise MoegenError(f"target {wanted.value} needs a CUDA device, torch sees none")

    monkeypatch.setattr("moegen.runtime.runners.default_runner", no_device)
    runner, interpreted = runner_here(target)
    assert isinstance(runner, InterpreterRunner)
    assert interpreted
    assert "(interpreted)" in runner.facts.name
    assert all(options.races for options in runner.schedules)
    with pytest.raises(MoegenError):
        runner_here(Target.CPU)
