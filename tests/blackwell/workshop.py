"""Compiles single Blackwell variants without a GPU and runs them in the interpreter.

Compiled kernels lie below the workshop's folder by content, so that a workshop opened there again finds them.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor
from w4a16.workshop import aligned

from moegen.build.toolchain import OBJECT, PTX, CompileJob, Outcome, Status, Toolchain
from moegen.build.toolchains import toolchains_for
from moegen.codegen.catalogs.sm100 import AUTO_GEMM, CATALOGS, Sm100Catalog
from moegen.codegen.render import Rendered, render
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
    """Compiled variants by name.

    Args:
        folder: where they lie.
        target: what they are compiled for.
        templates: the templates folder; the project's own by default.
    """

    def __init__(self, folder: Path, target: Target = Target.SM_100A, templates: Path | None = None) -> None:
        self.folder = folder
        self.target = target
        self.templates = (templates or data_root("templates")).resolve()
        self._directories: dict[str, Path] = {}

    @property
    def catalog(self) -> Sm100Catalog:
        """The target's catalog."""
        return CATALOGS[self.target]

    def rendered(self, variant: Variant) -> Rendered:
        """A variant's source."""
        return render(variant, self.catalog, self.templates)

    def directory(self, variant: Variant) -> Path:
        """Where a variant's object and PTX lie; it is compiled when it is new."""
        self.prepare([variant])
        return self._directories[variant.name]

    def ptx(self, variant: Variant) -> str:
        """A variant's PTX."""
        return (self.directory(variant) / PTX).read_text()

    def prepare(self, variants: Sequence[Variant], parallel: int = 1) -> None:
        """Compiles what is missing, ``parallel`` at a time, in worker processes that stay for all of them."""
        jobs: dict[str, list[CompileJob]] = {}
        for variant in {item.name: item for item in variants if item.name not in self._directories}.values():
            rendered = self.rendered(variant)
            suffix = Path(rendered.source.path).suffix
            directory = self.folder / f"{rendered.source.digest[:24]}-{rendered.source.closure[:16]}"
            self._directories[variant.name] = directory
            if (directory / OBJECT).is_file():
                continue
            directory.mkdir(parents=True, exist_ok=True)
            source = directory / f"source{suffix}"
            source.write_text(rendered.text)
            made = CompileJob(
                name=directory.name, source=source, symbol=rendered.source.symbol, include=(self.templates,)
            )
            jobs.setdefault(suffix, []).append(made)
        for suffix, items in jobs.items():
            self._compile(toolchains_for(self.target)[suffix], items, parallel)

    def _compile(self, compiler: Toolchain, jobs: Sequence[CompileJob], parallel: int) -> None:
        def done(job: CompileJob, outcome: Outcome) -> None:
            assert outcome.status is Status.OK, outcome.log
            for name, path in sorted(outcome.files.items(), key=lambda item: item[0] == OBJECT):
                path.rename(job.source.parent / name)

        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            compiler.compile(jobs, Path(work), parallel, done)

    def kernel(self, variant: Variant, schedules: Sequence[Options] = SCHEDULES) -> Kernel:
        """The entry: every call runs under each schedule, must write the same bytes, and must report nothing.

        It takes one trailing argument that it ignores, the CPU kernels' number of threads.
        """
        return checked(InterpreterRunner(self.target, schedules), self.directory(variant), variant.op.kind.value)


def checked(runner: InterpreterRunner, directory: Path, symbol: str) -> Kernel:
    """The entry of an artifact, whose calls must report nothing; a trailing argument is ignored.

    Tensors lie where a device would put them: torch aligns to 64 bytes on the host, and kernels may rely on more.
    """
    entry = runner.load(directory, symbol)

    def call(*arguments: object) -> None:
        given = arguments[:-1]
        placed = [aligned(item) if isinstance(item, Tensor) else item for item in given]
        entry(*placed)
        reports = [report for result in runner.results for report in result.reports]
        assert not reports, reports[0]
        for item, copy in zip(given, placed, strict=True):
            if isinstance(item, Tensor) and isinstance(copy, Tensor):
                item.copy_(copy)

    return call
