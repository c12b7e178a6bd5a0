"""Runs many compiler commands in parallel through ninja, each with its log, its exit status and a time limit.

ninja is only the job runner: outputs are named by content in a fresh folder, so its time stamps decide nothing.
"""

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moegen.build.timing import FIRST_LIMIT_S, TimeLimit
from moegen.build.toolchain import Status, clean_environment
from moegen.core.errors import ToolchainMissing

_POLL_S = 0.01
_TIMED_OUT, _KILLED = 124, 137
#: step=$1, then the command: runs it under the limit of the moment; the status file appears whole.
#: timeout makes a process group of its own, which ninja's signals would miss, so they are passed on.
_SCRIPT = """\
step=$1; shift
limit=$(cat limit)
begin=$(date +%s.%N)
timeout -k 5 "$limit" "$@" >"$step.log" 2>&1 </dev/null &
compiler=$!
trap 'kill "$compiler"' INT TERM HUP
wait "$compiler"
code=$?
echo "$code $limit $begin $(date +%s.%N)" >"$step.tmp" && mv "$step.tmp" "$step.status"
exit $code
"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command.

    Attributes:
        name: unique; names log and status files.
        program: the compiler.
        arguments: passed through a response file, so their length has no limit.
        output: file in the work folder that the command must write.
        needs: outputs of other steps.
    """

    name: str
    program: str
    arguments: tuple[str, ...]
    output: str
    needs: tuple[str, ...] = ()
    response: str = "@"
    """How ``program`` is told to read arguments from a file; the file's name follows directly."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """How a step ended: its status, log and wall seconds."""

    status: Status
    log: str = ""
    seconds: float = 0.0


def ninja_program() -> str:
    """Path of ninja: the wheel's, else the system's.

    Raises:
        ToolchainMissing: neither is installed.
    """
    try:
        import ninja

        candidate = shutil.which("ninja", path=ninja.BIN_DIR)
    except ImportError:
        candidate = None
    found = candidate or shutil.which("ninja")
    if found is None:
        raise ToolchainMissing("ninja not found", "", "pip install ninja")
    return found


def run_steps(
    steps: Sequence[Step],
    work: Path,
    parallel: int,
    done: Callable[[Step, StepResult], None],
    limit_s: float = FIRST_LIMIT_S,
) -> None:
    """Runs every step whose needs succeed; reports each that ran, in order of completion.

    Args:
        work: existing folder; commands run in it.
        limit_s: time limit of a step until enough have finished to derive one.

    Raises:
        ToolchainMissing: no ninja.
    """
    program = ninja_program()
    limit = TimeLimit(limit_s)
    _write_limit(work, limit)
    (work / "run.sh").write_text(_SCRIPT)
    (work / "build.ninja").write_text(_ninja_file(steps))
    pending = {step.name: step for step in steps}
    process = subprocess.Popen(
        [program, "-k", "0", "-j", str(parallel), "--quiet"],
        cwd=work,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while True:
            ended = process.poll() is not None
            for name in [name for name in pending if (work / f"{name}.status").exists()]:
                result = _read(pending[name], work)
                limit.add(result.seconds)
                _write_limit(work, limit)
                done(pending.pop(name), result)
            if ended:
                return
            time.sleep(_POLL_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _write_limit(work: Path, limit: TimeLimit) -> None:
    stage = work / "limit.tmp"
    stage.write_text(f"{limit.seconds:.3f}\n")
    os.replace(stage, work / "limit")


def _read(step: Step, work: Path) -> StepResult:
    code, limit, begin, end = map(float, (work / f"{step.name}.status").read_text().split())
    log = (work / f"{step.name}.log").read_text(errors="replace")
    # A killed compiler (137) timed out if it outlived its limit; otherwise somebody else killed it, or memory ran out.
    timed_out = code == _TIMED_OUT or (code == _KILLED and end - begin >= limit)
    status = Status.TIMEOUT if timed_out else _status(int(code), log)
    if status is Status.OK and not (work / step.output).is_file():
        status, log = Status.CRASH, f"{log}\nthe compiler succeeded but wrote no {step.output}"
    return StepResult(status=status, log=log, seconds=end - begin)


def _status(code: int, log: str) -> Status:
    if code == 0:
        return Status.OK
    if code > 128 or "internal compiler error" in log or "Killed signal" in log:
        return Status.CRASH
    return Status.COMPILE_ERROR


def _ninja_file(steps: Sequence[Step]) -> str:
    """One rule for each program, one build statement for each step; inputs are left out on purpose."""
    lines: list[str] = []
    rules: dict[str, str] = {}
    for step in steps:
        if step.program not in rules:
            rules[step.program] = f"rule{len(rules)}"
            lines += [
                f"rule {rules[step.program]}",
                f"  command = sh run.sh $name {_escape(shlex.quote(step.program))} {step.response}$name.rsp",
                "  rspfile = $name.rsp",
                "  rspfile_content = $arguments",
            ]
        lines += [
            f"build {step.output}: {rules[step.program]} {' '.join(step.needs)}",
            f"  name = {step.name}",
            f"  arguments = {_escape(shlex.join(step.arguments))}",
        ]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("$", "$$")
