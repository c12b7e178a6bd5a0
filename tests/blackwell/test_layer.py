"""A whole layer for sm_100a: spec file to output through the public layer, on interpreted kernels."""

import pytest
import torch
from runtime.packages import TestPackage, generate_package, make_inputs, reference_output, spec_with
from runtime.writers import random_weights

from moegen.build.builder import build
from moegen.core.enums import Target
from moegen.ptx.options import Options
from moegen.ptx.runner import InterpreterRunner
from moegen.runtime import load

EXPERTS = 4
SPEC = spec_with(
    name="blackwell",
    geometry={"hidden": 256, "intermediate": 128, "experts": EXPERTS, "top_k": 2},
    targets=["sm_100a"],
    epilogues=["fused_fp4"],
    # What the checkpoint has; kernels keep block scales in 128x4 tiles.
    scale_layout={"activations": "linear", "weights": "linear"},
) | {
    "schedules": {
        "sm_100a": {
            "tile": [{"rows": 128, "cols": 32, "k": 256}],
            "stages": [3],
            "acc_stages": [2],
            "cta_group": [1],
            "swap_ab": [True],
            "ctas": [3],
        }
    }
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    made = generate_package(SPEC, tmp_path_factory.mktemp("layer"))
    report = build(made.directory, [Target.SM_100A], store=made.store)
    assert not report.disabled, report.disabled
    assert not report.failed, report.failed[0].log
    return made


def test_a_layer_gives_the_references_bytes(package: TestPackage) -> None:
    """On random data: the interpreter's tensor core sums exactly, as the reference does."""
    runner = InterpreterRunner(Target.SM_100A, (Options(races=True), Options(seed=7)))
    loaded = load(package.directory, target=Target.SM_100A, store=package.store, runner=runner)
    layer = loaded.from_tensors(random_weights(experts=EXPERTS, hidden=256, intermediate=128))
    for tokens in (32, 1):
        inputs = make_inputs(layer, tokens, seed=tokens, experts=EXPERTS)
        expected = reference_output(layer, layer.engine.decide(tokens).pipeline, *inputs)
        assert torch.equal(layer(*inputs), expected)
    assert layer(*make_inputs(layer, 0, experts=EXPERTS)).shape == (0, 256)
    x, ids, weights = make_inputs(layer, 5, experts=EXPERTS)
    assert torch.count_nonzero(layer(x, torch.full_like(ids, -1), weights)) == 0
    assert not [report for result in runner.results for report in result.reports]
