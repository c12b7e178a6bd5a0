"""Public kernels: mutants of a published one must die; NVIDIA's examples must give right results."""

import os
from typing import Any

import pytest

from benchmarks.ptx import mutation
from benchmarks.ptx.sm100a import checkout, pretend, published
from moegen.ptx import Options


@pytest.fixture(scope="module")
def subject() -> mutation.Subject:
    return mutation.Subject(published.gemm((384, 128, 1280, 1), (128, 128), (1, 1), active=2))


def test_the_unchanged_kernel_survives(subject: mutation.Subject) -> None:
    assert mutation.judge(subject, subject.text) == "survived"


@pytest.mark.parametrize(
    ("what", "verdicts"),
    [
        ("deleted: mbarrier.arrive.expect_tx", {"deadlock"}),
        ("other byte count", {"deadlock", "mbarrier"}),
        ("deleted: cp.async.bulk.tensor", {"deadlock"}),
        ("deleted: tcgen05.commit", {"deadlock"}),
        ("deleted: tcgen05.cp", {"uninitialised"}),
        ("deleted: tcgen05.mma", {"wrong result", "uninitialised"}),
        ("operands swapped", {"wrong result"}),
        ("never accumulate", {"wrong result"}),
        ("always accumulate", {"wrong result", "uninitialised"}),
        ("deleted: fence.proxy.async", {"proxy-fence"}),
        ("weaker wait", {"race", "async-exit"}),
        ("deleted: st.shared", {"uninitialised", "wrong result"}),
        ("deleted: tcgen05.dealloc", {"tmem-leak"}),
    ],
)
def test_mutants_die_in_the_expected_way(subject: mutation.Subject, what: str, verdicts: set[str]) -> None:
    chosen = next(text for _, description, text in mutation.mutants(subject.text) if description.startswith(what))
    assert mutation.judge(subject, chosen) in verdicts


foreign = [
    pytest.mark.foreign_checkout,
    pytest.mark.skipif(
        not os.environ.get(checkout.ENVIRONMENT), reason=f"{checkout.ENVIRONMENT} names no CUTLASS checkout"
    ),
]


class TestCheckout:
    """Unmodified examples of a CUTLASS checkout; `benchmarks/ptx/sm100a/prove.py` runs many more."""

    pytestmark = foreign

    @pytest.mark.parametrize(("number", "mnkl"), [(0, (256, 512, 768, 1)), (1, (256, 256, 768, 1))])
    def test_tutorials(self, number: int, mnkl: tuple[int, int, int, int]) -> None:
        row, result = checkout.tutorial(number, mnkl).run(Options(seed=1, races=True, stop_at_error=False))
        assert row["mismatches"] == 0
        assert result.reports == []

    @pytest.mark.parametrize(
        ("mnkl", "tile", "cluster"),
        [
            ((384, 256, 768, 1), (128, 128), (1, 1)),
            ((512, 256, 768, 1), (256, 128), (2, 1)),
            ((512, 512, 512, 2), (256, 256), (2, 2)),
            ((200, 320, 288, 1), (128, 64), (1, 1)),
        ],
    )
    def test_dense(self, mnkl: Any, tile: Any, cluster: Any) -> None:
        row, _ = checkout.dense(mnkl, tile, cluster).run(Options(seed=2))
        assert row["mismatches"] == 0

    def test_dynamic(self) -> None:
        row, _ = checkout.dynamic((512, 384, 256, 1), (128, 128), (1, 1)).run(Options(seed=3))
        assert row["mismatches"] == 0

    @pytest.mark.parametrize("kind", ["nvfp4", "mxfp4", "mxfp8"])
    def test_scaled_grouped(self, kind: str) -> None:
        row = pretend.in_process("scaled_grouped", {"scenario": "2Dx3D", "kind": kind})
        assert row["max_difference"] == 0.0

    def test_grouped_block_scaled(self) -> None:
        row = pretend.in_process("grouped_block_scaled", {"sizes": [[128, 128, 256, 1], [256, 128, 128, 1]]})
        assert row["reports"] == []
