"""Mistakes made on purpose in the W4A16 device library: each must show in a small gemm, in bytes or as a finding."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from blackwell.workshop import Workshop
from kernels.cases import buffers
from kernels.compare import check_op
from w4a16.grid import AXES, GemmCase
from w4a16.workshop import SCHEDULES

from moegen.core.paths import data_root
from moegen.ptx.errors import ExecutionError

SMALL = GemmCase(
    {name: values[0] for name, values in AXES.items()} | {"bias": True, "geometry": (272, 176), "routing": "mixed"}
)


@dataclass(frozen=True)
class Fault:
    """One text of a device header replaced; ``found`` is what the run must say."""

    file: str
    old: str
    new: str
    found: str


FAULTS = {
    "multiplies before copies have arrived": Fault(
        "w4a16_gemm.cuh", "wait_copies<S::kStages - 2>", "wait_copies<S::kStages - 1>", "uninitialised|race"
    ),
    "refills a stage that others read": Fault(
        "w4a16_gemm.cuh", "__syncthreads();", "__syncwarp();", "uninitialised|race"
    ),
    "K is not ended": Fault("w4a16_gemm.cuh", "step < steps && row >= 0", "row >= 0", "wrong"),
    "the second block's scale for the first": Fault(
        "w4a16_gemm.cuh", "scales[f][half][i / 2]", "scales[f][half][1]", "wrong"
    ),
    "one alpha for both halves": Fault("w4a16_epilogue.cuh", "alphas[A::kHalves - 1]", "alphas[0]", "wrong"),
    "padding rows hold the activated bias": Fault("w4a16_epilogue.cuh", "if (!real[b]) return 0.0f;", "", "wrong"),
}


def buffers_with_a_nan_token() -> dict[str, torch.Tensor]:
    """A NaN token behind one that has rows, as it does: what its rows hold must not reach others."""
    given = buffers(SMALL.case)
    routed = (given["slot_row"].view(-1, SMALL.case.top_k) >= 0).any(1)
    first = int((routed[:-1] & routed[1:]).nonzero()[0])
    given["x"][first + 1] = float("nan")
    return given


def test_a_nan_token_spoils_its_own_rows_alone(tmp_path: Path) -> None:
    variant = SMALL.variant()
    check_op(Workshop(tmp_path).kernel(variant, SCHEDULES), variant.op, SMALL.case, buffers_with_a_nan_token())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    templates = tmp_path / "templates"
    shutil.copytree(data_root("templates"), templates)
    path = templates / "sm_100a" / "device" / fault.file
    text = path.read_text()
    assert text.count(fault.old) == 1
    path.write_text(text.replace(fault.old, fault.new))
    variant = SMALL.variant()
    kernel = Workshop(tmp_path, templates=templates).kernel(variant, SCHEDULES)
    with pytest.raises((AssertionError, ExecutionError), match=fault.found):
        check_op(kernel, variant.op, SMALL.case, buffers_with_a_nan_token())
