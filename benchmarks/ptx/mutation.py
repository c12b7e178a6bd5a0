"""Mutation test: one instruction of a correct kernel is deleted or changed; does the interpreter notice?

``python -m benchmarks.ptx.mutation benchmarks/ptx/mutation.json [per-kernel limit [part of a kernel's name]]``

A mutant is killed by a wrong result, an error, a deadlock or a finding in one of the schedules. Survivors are listed
with line and text, to be classified by hand.
"""

import json
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.ptx.sm100a import published
from moegen.ptx import ADVERSARIES, Check, ExecutionError, Options, PtxError, Severity, capture
from moegen.ptx.parser import parse

#: Opcodes whose deletion or change is tried everywhere they occur.
_TARGETS = (
    "mbarrier.",
    "fence.",
    "cp.async",
    "tcgen05.",
    "bar.sync",
    "barrier.",
    "elect.sync",
    "st.shared",
    "ld.shared",
    "mapa",
)
#: Substitutions: pattern, replacement, what it stands for.
_SWAPS = (
    (r"(mbarrier\.init\.shared\.b64\s+\[[^\]]+\], )(%r\d+)", r"\g<1>3", "other arrival count"),
    (r"(mbarrier\.try_wait[^;]*\], )(%r\d+)", r"\g<1>0", "constant parity"),
    (r"(mbarrier\.arrive\.expect_tx[^;]*\], )(%r\d+)", r"\g<1>64", "other byte count"),
    (r"(tcgen05\.mma[^;]*, )(%p\d+)$", r"\g<1>1", "always accumulate"),
    (r"(tcgen05\.mma[^;]*, )(%p\d+)$", r"\g<1>0", "never accumulate"),
    (r"(tcgen05\.mma[^;]*\] *, )(%rd\d+), (%rd\d+)", r"\g<1>\g<3>, \g<2>", "operands swapped"),
    (r"bulk\.wait_group(\.read)? *\t?0", r"bulk.wait_group\g<1> 3", "weaker wait"),
    (r"bar\.sync\s+(\d+)", r"bar.sync 7", "other barrier"),
)


def mutants(text: str) -> list[tuple[int, str, str]]:
    """(line, description, mutated text): deletions and changes of synchronising and asynchronous instructions, and
    immediates.
    """
    lines = text.splitlines()
    found: list[tuple[int, str, str]] = []

    def add(index: int, what: str, new: str) -> None:
        found.append(
            (index + 1, f"{what}: {lines[index].strip()[:110]}", "\n".join([*lines[:index], new, *lines[index + 1 :]]))
        )

    body = next(k for k, line in enumerate(lines) if line.startswith("{"))
    for index, line in enumerate(lines[body:], body):
        code = line.strip().rstrip(";").strip()
        bare = re.sub(r"^@!?%?\w+\s+", "", code)
        if bare.startswith(_TARGETS) and code:
            if "try_wait" in bare:
                register = re.search(r"(%p\d+|P1)", bare)
                assert register is not None
                # The wait is replaced by its success.
                add(index, "wait deleted", f"mov.pred {register[1]}, 1;")
            elif bare.startswith("elect.sync"):
                register = re.search(r"\|(%p\d+)", bare)
                assert register is not None
                add(index, "all lanes elected", f"mov.pred {register[1]}, 1;")
            else:
                add(index, "deleted", "")
        for pattern, new, what in _SWAPS:
            swapped = re.sub(pattern, new, code)
            if swapped != code:
                add(index, what, swapped + ";")
    return found + _immediates(lines, body)


def _immediates(lines: list[str], body: int) -> list[tuple[int, str, str]]:
    """Integer immediates of arithmetic, changed by one (a sample, fixed by a seed)."""
    spots = []
    for index, line in enumerate(lines[body:], body):
        match = re.match(
            r"(\s*(?:add|mul|shl|shr|and|or|xor|mad|setp|selp)[\w.]*\s[^;]*?, )(\d+)(;.*| *, .*;.*)$", line
        )
        if match:
            spots.append((index, match))
    chosen = random.Random(5).sample(spots, min(40, len(spots)))
    found = []
    for index, match in sorted(chosen, key=lambda item: item[0]):
        new = f"{match[1]}{int(match[2]) + 1}{match[3]}"
        text = "\n".join([*lines[:index], new, *lines[index + 1 :]])
        found.append((index + 1, f"immediate +1: {lines[index].strip()[:110]}", text))
    return found


class Subject:
    """A kernel under test: its launch is captured once, then mutated texts run in its place."""

    def __init__(self, case: Any) -> None:
        self.case = case
        self.text = case.ptx
        self.expected = case.want

    def run(self, text: str, options: Options) -> str:
        """How a text fared: ``ok`` or the way it was killed."""
        case = self.case
        case.output[:] = 0
        session = capture.Session(options)
        session.add_ptx(text, "mutant")
        for buffer in case.buffers:
            session.register(buffer)
        capture.one_device(case.call)
        with session.active():
            case.call(*case.arguments)
        got = case.output.view(case.want.dtype).reshape(case.want.shape)
        return "ok" if (got == case.want).all() else "wrong result"


def judge(subject: Subject, text: str) -> str:
    """Runs a mutant under every schedule until one kills it."""
    try:
        parse(text)
    except PtxError:
        return "invalid"
    for options in ADVERSARIES:
        # The unchanged kernels release accumulators without a wait for their loads; that known finding is left out.
        checked = replace(options, races=True, max_steps=400_000, severity={Check.TMEM_LOAD_WAIT: Severity.OFF})
        try:
            outcome = subject.run(text, checked)
        except ExecutionError as error:
            return error.report.check.value if error.report is not None else "error"
        except PtxError as error:
            return type(error).__name__
        if outcome != "ok":
            return outcome
    return "survived"


def kernels() -> dict[str, Callable[[], Subject]]:
    """Two kernels whose problems wrap every pipeline: several tiles per CTA, more K blocks than stages."""
    return {
        "gemm 128x128, 1 CTA": lambda: Subject(published.gemm((512, 256, 1536, 1), (128, 128), (1, 1), active=2)),
        "gemm 256x128, CTA pairs": lambda: Subject(published.gemm((1024, 128, 1024, 1), (256, 128), (2, 1), active=1)),
    }


def main() -> None:
    target, limit = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10**9
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    table: dict[str, Any] = json.loads(target.read_text())["kernels"] if target.exists() else {}
    for name, make in kernels().items():
        if wanted not in name:
            continue
        subject = make()
        assert judge(subject, subject.text) == "survived", "the unchanged kernel must pass"
        candidates = mutants(subject.text)
        if len(candidates) > limit:
            candidates = sorted(random.Random(1).sample(candidates, limit))
        kills: dict[str, int] = {}
        survivors: list[dict[str, Any]] = []
        start = time.perf_counter()
        for line, what, text in candidates:
            verdict = judge(subject, text)
            kills[verdict] = kills.get(verdict, 0) + 1
            if verdict == "survived":
                survivors.append({"line": line, "mutant": what})
                print(name, line, what, flush=True)
        valid = len(candidates) - kills.get("invalid", 0)
        table[name] = {
            "mutants": valid,
            "killed": valid - len(survivors),
            "score": round((valid - len(survivors)) / valid, 3),
            "by": kills,
            "survivors": survivors,
            "seconds": round(time.perf_counter() - start),
        }
        print(name, {key: table[name][key] for key in ("mutants", "killed", "score", "by", "seconds")}, flush=True)
        target.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "kernels": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
