"""Compiles single CUDA variants of the Blackwell targets without a GPU and runs them in the interpreter."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from moegen.build.nvcc import Nvcc
from moegen.build.toolchain import PTX, CompileJob, Outcome, Status
from moegen.codegen.catalogs.sm100 import CATALOGS
from moegen.codegen.render import render
from moegen.codegen.schedule import Value
from moegen.codegen.variant import Variant
from moegen.core.devices import PLANNING_DEVICE
from moegen.core.enums import Target
from moegen.core.ops import OpSpec
from moegen.core.paths import data_root
from moegen.core.runner import Kernel
from moegen.ptx import Options, Policy
from moegen.ptx.runner import InterpreterRunner

#: One schedule finds races; in the other everything asynchronous is late. No block waits for another.
SCHEDULES = (Options(seed=1, races=True), Options(policy=Policy.LAZY))
COMPILERS = 2


def variant_of(op: OpSpec, target: Target = Target.SM_100A, **schedule: Value) -> Variant:
    """An op with a schedule of its first family that fits, which must be legal."""
    catalog = CATALOGS[target]
    family = next(
        family for family in catalog.families(op.kind) if {field.name for field in family.fields} == set(schedule)
    )
    made = family.make(**schedule)
    verdict = catalog.verdict(op, made, PLANNING_DEVICE[target])
    assert verdict.legal, str(verdict)
    return Variant(op=op, schedule=made)


def aligned(tensor: Tensor) -> Tensor:
    """A copy at a 512-byte boundary, as a device allocates it."""
    room = torch.zeros(tensor.nbytes + 512, dtype=torch.uint8)
    start = -room.data_ptr() % 512
    return room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


class Workshop:
    """Compiled variants by name; every compile must succeed, without spills.

    ``templates``: the templates folder; the installed one by default.
    """

    def __init__(self, folder: Path, target: Target = Target.SM_100A, templates: Path | None = None) -> None:
        self.folder = folder
        self.target = target
        self.templates = (templates or data_root("templates")).resolve()
        self.outcomes: dict[str, Outcome] = {}
        self._directories: dict[str, Path] = {}

    def ptx(self, variant: Variant) -> str:
        """A variant's PTX."""
        self.prepare([variant])
        return (self._directories[variant.name] / PTX).read_text()

    def prepare(self, variants: Sequence[Variant]) -> None:
        """Compiles what is missing, side by side."""
        jobs: list[CompileJob] = []
        names: dict[str, str] = {}
        for variant in {item.name: item for item in variants if item.name not in self._directories}.values():
            rendered = render(variant, CATALOGS[self.target], self.templates)
            directory = self.folder / rendered.source.digest[:32]
            directory.mkdir(exist_ok=True)
            source = directory / "source.cu"
            source.write_text(rendered.text)
            self._directories[variant.name] = directory
            names[directory.name] = variant.name
            symbol, include = rendered.source.symbol, (self.templates,)
            jobs.append(CompileJob(name=directory.name, source=source, symbol=symbol, include=include))

        def done(job: CompileJob, outcome: Outcome) -> None:
            assert outcome.status is Status.OK, f"{names[job.name]}\n{outcome.log}"
            self.outcomes[names[job.name]] = outcome
            for name, path in outcome.files.items():
                path.rename(job.source.parent / name)

        if jobs:
            with tempfile.TemporaryDirectory(dir=self.folder) as work:
                Nvcc(self.target.value).compile(jobs, Path(work), COMPILERS, done)

    def kernel(self, variant: Variant, schedules: Sequence[Options] = SCHEDULES) -> Kernel:
        """The entry: every call runs under each schedule, must write the same bytes, and must report nothing.

        It takes one trailing argument that it ignores, the CPU kernels' number of threads.
        """
        self.prepare([variant])
        runner = InterpreterRunner(self.target, schedules)
        entry = runner.load(self._directories[variant.name], variant.op.kind.value)

        def call(*arguments: Tensor | int) -> None:
            given = arguments[:-1]
            copies = [aligned(item) if isinstance(item, Tensor) else item for item in given]
            entry(*copies)
            reports = [report for result in runner.results for report in result.reports]
            assert not reports, reports[0]
            for item, copy in zip(given, copies, strict=True):
                if isinstance(item, Tensor) and isinstance(copy, Tensor):
                    item.copy_(copy)

        return call
