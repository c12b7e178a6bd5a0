"""Mistakes made on purpose in the device library: each must show in a run of a small gemm, in bytes or as a finding."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from blackwell.grid import GemmCase
from blackwell.small import FUSED, FUSED_SWAPPED, PAIR, SWAPPED
from blackwell.workshop import FOUR_SCHEDULES, Workshop
from kernels.cases import buffers
from kernels.compare import check_op

from moegen.core.paths import data_root
from moegen.ptx.errors import ExecutionError


@dataclass(frozen=True)
class Fault:
    """One text of a device module replaced; ``found`` is what the run must say."""

    file: str
    old: str
    new: str
    case: GemmCase
    found: str


FAULTS = {
    "no fence before a sent box": Fault(
        "gemm_boxes.py", 'cute.arch.fence_proxy("async.shared", space="cta")', "pass", PAIR, "proxy-fence"
    ),
    "no wait for loaded accumulators": Fault(
        "gemm_finish.py",
        "cute.arch.fence_view_async_tmem_load()",
        "pass",
        FUSED,
        "tmem-load-wait|uninitialised|race|bytes",
    ),
    "a barrier counts one warp too few": Fault(
        "gemm.py",
        "WARP * len(EPILOGUE_WARPS) * gemm.group)",
        "WARP * (len(EPILOGUE_WARPS) - 1))",
        FUSED,
        "mbarrier|race",
    ),
    "multiplies without waiting for copies": Fault(
        "gemm_multiply.py", "ring.consumer_wait(filled)\n                if", "if", FUSED, "race|uninitialised|mbarrier"
    ),
    "stages are never handed back": Fault(
        "gemm_multiply.py", "ring.consumer_release(filled)\n                if", "if", FUSED, "deadlock"
    ),
    "boxes are filled while they are read": Fault(
        "gemm_boxes.py", "cute.arch.cp_async_bulk_wait_group(BUFFERS - 1, read=True)", "pass", PAIR, "race"
    ),
    "accumulators are turned around without a second barrier": Fault(
        "gemm_finish.py",
        "staged[token, thread] = values[token]\n    epilogue_barrier().arrive_and_wait()",
        "staged[token, thread] = values[token]",
        SWAPPED,
        "race",
    ),
    "scales of B one column off": Fault(
        "gemm_multiply.py", "% SCALE_ROWS // SCALE_COLUMN_ROWS", "% SCALE_ROWS // SCALE_COLUMN_ROWS + 1", FUSED, "."
    ),
    "scales of results one place off": Fault(
        "scale_layouts.py", "// 32 * 4 + column % 4", "// 32 * 4 + (column + 1) % 4", FUSED, "h_scales: .* bytes wrong"
    ),
    "padding of codes and scales is skipped": Fault(
        "epilogue.py", "self.write(arguments, codes, Uint8(0), row, block)", "pass", FUSED, "h_(codes|scales): .* wrong"
    ),
    "scales of rows past the last tile are skipped": Fault(
        "gemm_finish.py", "while beyond < unit_end:", "while beyond < 0:", FUSED_SWAPPED, "h_scales: .* bytes wrong"
    ),
    "the first product of a tile is added to the last tile": Fault(
        "gemm_multiply.py", "tcgen05.Field.ACCUMULATE, k != 0", "tcgen05.Field.ACCUMULATE, True", FUSED, "."
    ),
}


def patched(fault: Fault, folder: Path) -> Path:
    """A copy of the templates with the fault; the replaced text must be there exactly once."""
    templates = folder / "templates"
    shutil.copytree(data_root("templates"), templates)
    module = templates / "sm_100a" / "device" / fault.file
    text = module.read_text()
    assert text.count(fault.old) == 1, f"{fault.file} has {text.count(fault.old)} places of {fault.old!r}"
    module.write_text(text.replace(fault.old, fault.new))
    return templates


@pytest.mark.parametrize(
    "case", [FUSED, FUSED_SWAPPED, PAIR, SWAPPED], ids=["fused", "fused swapped", "pair", "swapped"]
)
def test_without_a_fault_they_are_right(case: GemmCase, blackwell_workshop: Workshop) -> None:
    assert case.wraps
    check_op(blackwell_workshop.kernel(case.variant, FOUR_SCHEDULES), case.op, case.case, buffers(case.case))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    case = fault.case
    workshop = Workshop(tmp_path / "kernels", templates=patched(fault, tmp_path))
    workshop.folder.mkdir()
    workshop.prepare([case.variant])
    kernel = workshop.kernel(case.variant, FOUR_SCHEDULES)
    with pytest.raises((AssertionError, ExecutionError), match=fault.found):
        check_op(kernel, case.op, case.case, buffers(case.case))
