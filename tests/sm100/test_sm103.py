"""sm_103a takes the templates of sm_100a: one kernel of each op renders and compiles for it, without a GPU."""

from pathlib import Path

from runtime.packages import generate_package, spec_with

from moegen.build.builder import build
from moegen.build.toolchain import PTX
from moegen.core.enums import OpKind, Target
from moegen.core.package import read_manifest

TILE = {"rows": 128, "cols": 16, "k": 128, "stages": 3, "acc_stages": 2, "cta_group": 1, "ctas": 3, "swap_ab": True}


def test_one_kernel_of_each_op_compiles(tmp_path: Path) -> None:
    spec = spec_with(
        name="ultra",
        geometry={"hidden": 256, "intermediate": 128, "experts": 4, "top_k": 2},
        targets=["sm_103a"],
        epilogues=["interleaved"],
    )
    made = generate_package(spec | {"schedules": {"sm_103a": {"tile": [TILE]}}}, tmp_path)
    report = build(made.directory, [Target.SM_103A], store=made.store)
    assert not report.disabled
    assert not report.failed, report.failed[0].log
    package = read_manifest(made.directory).targets[Target.SM_103A]
    built = {step.op.kind for pipeline in package.pipelines for step in pipeline.steps}
    assert built == {
        OpKind.ROUTE,
        OpKind.QUANTIZE,
        OpKind.GEMM1,
        OpKind.DEINTERLEAVE_QUANTIZE,
        OpKind.GEMM2,
        OpKind.COMBINE,
    }
    for item in report.variants:
        artifact = made.store.lookup(item.key)
        assert artifact is not None
        assert ".target sm_103a" in (artifact.directory / PTX).read_text()
