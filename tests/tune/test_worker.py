"""The worker survives what candidates do to it, and says what happened."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from moegen.core.errors import TuneError
from moegen.tune.worker import Worker, WorkerFailed

FACTORY = "tests.tune.fakes:make_fake"


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(FACTORY, {}, timeout_s=60) as worker:
        yield worker


def test_values_travel_both_ways(worker: Worker) -> None:
    value = {"text": "é\n", "numbers": [1, 2.5, None]}
    assert worker.call("echo", value=value) == value
    assert worker.starts == 1


def test_output_and_input_of_a_candidate_stay_out_of_the_protocol(worker: Worker) -> None:
    assert worker.call("noisy") == ""
    assert worker.call("echo", value=1) == 1


@pytest.mark.parametrize(
    ("method", "status", "note"),
    [
        ("die", "crash", "SIGSEGV; stderr: about to trap"),
        ("leave", "crash", "exited with code 3"),
        ("refuse", "error", "ValueError: no such schedule"),
        ("hoard", "oom", "MemoryError"),
        ("hoard_tensors", "oom", "allocate"),
    ],
)
def test_a_failing_candidate_is_reported_and_the_next_call_works(
    worker: Worker, method: str, status: str, note: str
) -> None:
    first = worker.call("pid")
    with pytest.raises(WorkerFailed) as caught:
        worker.call(method)
    assert caught.value.status == status
    assert note in caught.value.note
    assert worker.call("pid") != first
    assert worker.starts == 2


def test_a_hanging_candidate_is_killed_in_time(worker: Worker) -> None:
    worker.call("pid")
    began = time.monotonic()
    with pytest.raises(WorkerFailed) as caught:
        worker.call("hang", timeout_s=0.3)
    assert caught.value.status == "timeout"
    assert time.monotonic() - began < 20
    assert worker.call("echo", value="alive") == "alive"


def test_a_subject_that_cannot_be_made_stops_the_session() -> None:
    with Worker(FACTORY, {"broken": True}) as worker, pytest.raises(TuneError, match="no device here"):
        worker.call("pid")


def test_ctrl_c_does_not_reach_the_child(worker: Worker) -> None:
    """The terminal signals a whole process group; a candidate killed by it would be recorded as a crash."""
    assert os.getpgid(worker.call("pid")) != os.getpgid(0)


def test_close_ends_the_child(worker: Worker) -> None:
    pid = worker.call("pid")
    assert worker.pid == pid
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.timeout(60)
def test_the_child_dies_with_its_parent() -> None:
    script = (
        "import os, sys\n"
        "from moegen.tune.worker import Worker\n"
        f"worker = Worker({FACTORY!r}, {{}})\n"
        "print(worker.call('pid'), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    parent = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    child = int(parent.stdout)
    deadline = time.monotonic() + 20
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    """False once the process is gone or a zombie that nobody has reaped yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
