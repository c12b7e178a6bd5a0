"""Compiles single Blackwell variants without a GPU and runs them in the interpreter, each compiled once a session."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from moegen.build.cutedsl import CuTeDSL
from moegen.build.toolchain import PTX, CompileJob, Outcome, Status
from moegen.codegen.catalogs.sm100 import AUTO_GEMM, CATALOGS, Sm100Catalog
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.devices import PLANNING_DEVICE
from moegen.core.enums import Target
from moegen.core.ops import OpSpec
from moegen.core.paths import data_root
from moegen.core.runner import Kernel
from moegen.ptx.options import ADVERSARIES, Options
from moegen.ptx.runner import InterpreterRunner

#: A schedule without random time-outs, and the interpreter's adversaries.
SCHEDULES = (Options(seed=0, timeout_probability=0.0), *ADVERSARIES)
#: The same without random time-outs, and three random ones: with the race detector, all late, tensor cores late.
FOUR_SCHEDULES = (SCHEDULES[0], ADVERSARIES[0], ADVERSARIES[1], ADVERSARIES[3])


def gemm_variant(op: OpSpec, target: Target = Target.SM_100A, **schedule: int | bool) -> Variant:
    """A gemm with a schedule, which must be legal; a field that is not given has planning's first value."""
    first = {name: values[0] for name, values in AUTO_GEMM.items()}
    made = CATALOGS[target].gemm.make(**{**first, **schedule})
    verdict = CATALOGS[target].verdict(op, made, PLANNING_DEVICE[target])
    assert verdict.legal, str(verdict)
    return Variant(op=op, schedule=made)


def row_variant(op: OpSpec, target: Target = Target.SM_100A, threads: int = 128) -> Variant:
    """Any other op that is written in CuTeDSL."""
    return Variant(op=op, schedule=CATALOGS[target].rows.make(threads=threads))


class Workshop:
    """Compiled variants by name."""

    def __init__(self, folder: Path, target: Target = Target.SM_100A) -> None:
        self.folder = folder
        self.target = target
        self._directories: dict[str, Path] = {}

    @property
    def catalog(self) -> Sm100Catalog:
        """The target's catalog."""
        return CATALOGS[self.target]

    def directory(self, variant: Variant) -> Path:
        """Where a variant's object and PTX lie; it is compiled when it is new."""
        self.prepare([variant])
        return self._directories[variant.name]

    def ptx(self, variant: Variant) -> str:
        """A variant's PTX."""
        return (self.directory(variant) / PTX).read_text()

    def prepare(self, variants: Sequence[Variant]) -> None:
        """Compiles what is missing, one after the other in one worker process."""
        missing = {item.name: item for item in variants if item.name not in self._directories}
        jobs: list[CompileJob] = []
        for name, variant in missing.items():
            rendered = render(variant, self.catalog)
            directory = self.folder / rendered.source.digest[:32]
            directory.mkdir(exist_ok=True)
            source = directory / "source.py"
            source.write_text(rendered.text)
            self._directories[name] = directory
            include = (data_root("templates").resolve(),)
            jobs.append(CompileJob(name=directory.name, source=source, symbol=rendered.source.symbol, include=include))

        def done(job: CompileJob, outcome: Outcome) -> None:
            assert outcome.status is Status.OK, outcome.log
            for name, path in outcome.files.items():
                path.rename(job.source.parent / name)

        if jobs:
            with tempfile.TemporaryDirectory(dir=self.folder) as work:
                CuTeDSL(self.target.value).compile(jobs, Path(work), 1, done)

    def kernel(self, variant: Variant, schedules: Sequence[Options] = SCHEDULES) -> Kernel:
        """The entry: every call runs under each schedule, must write the same bytes, and must report nothing.

        It takes one trailing argument that it ignores, the CPU kernels' number of threads.
        """
        runner = InterpreterRunner(self.target, schedules)
        entry = runner.load(self.directory(variant), variant.op.kind.value)

        def call(*arguments: object) -> None:
            entry(*arguments[:-1])
            reports = [report for result in runner.results for report in result.reports]
            assert not reports, reports[0]

        return call
