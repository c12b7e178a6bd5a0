"""Every field case has a test named after it, and one on a GPU where a kernel or a device takes part."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
ALL = {f"{number:02}" for number in range(1, 49)}
#: Decided before anything is launched: reading and checking files, specs and keys, planning, caching, choosing.
HOST = {
    "02", "14", "15", "17", "20", "21", "22", "23", "24", "25", "26", "33", "34", "35", "36", "37", "38", "39", "40",
    "42", "43", "47", "48",
}  # fmt: skip
NAMED = re.compile(r"(?:def test_|_|\")fr_(\d\d)")


def cases(on_gpu: bool) -> set[str]:
    """Numbers of the cases that tests are named after, or their parameters, in files for a GPU or not."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        if ("pytestmark = pytest.mark.gpu" in text) == on_gpu:
            found.update(NAMED.findall(text))
    return found


def test_every_case_has_a_test_without_a_gpu() -> None:
    devices = {"29", "30", "31"}  # captures, synchronisation, streams
    assert cases(on_gpu=False) | devices == ALL


def test_every_case_of_kernels_and_devices_has_a_test_on_a_gpu() -> None:
    assert cases(on_gpu=True) == ALL - HOST
