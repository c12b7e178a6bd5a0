"""Renders, compiles and loads single CPU variants through the code that serves users, each once a session."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from moegen.build.gxx import Gxx
from moegen.build.toolchain import CompileJob, Outcome, Status
from moegen.codegen.catalogs.cpu import CATALOG, PANEL, STREAM
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.devices import CPU_GENERIC
from moegen.core.ops import OpSpec
from moegen.core.paths import data_root
from moegen.core.runner import Kernel
from moegen.runtime.runners.cpu import load_entry

COMPILERS = 2


def gemm_variant(op: OpSpec, cols: int = 32, k_chunk: int = 64, unroll: int = 2) -> Variant:
    """A gemm with a schedule at the op's row tile, which must be legal."""
    schedule = PANEL.make(rows=op.row_tile, cols=cols, k_chunk=k_chunk, unroll=unroll)
    verdict = CATALOG.verdict(op, schedule, CPU_GENERIC)
    assert verdict.legal, str(verdict)
    return Variant(op=op, schedule=schedule)


def stream_variant(op: OpSpec) -> Variant:
    """Any other op."""
    return Variant(op=op, schedule=STREAM.make())


class Workshop:
    """Compiled kernels by variant. Entries take the ABI's arguments and the number of threads.

    ``templates``: the templates folder; the installed one by default.
    """

    def __init__(self, folder: Path, templates: Path | None = None) -> None:
        self.folder = folder
        self.templates = templates or data_root("templates")
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, variant: Variant) -> Kernel:
        """One kernel, compiled when it is new."""
        self.prepare([variant])
        return self._kernels[variant.name]

    def prepare(self, variants: Sequence[Variant]) -> None:
        """Compiles what is missing, side by side."""
        missing = {item.name: item for item in variants if item.name not in self._kernels}
        jobs, directories = [], {}
        for name, variant in missing.items():
            rendered = render(variant, CATALOG, self.templates)
            directory = self.folder / rendered.source.digest[:32]
            directory.mkdir(exist_ok=True)
            source = directory / "source.cc"
            source.write_text(rendered.text)
            directories[name] = directory
            jobs.append(
                CompileJob(
                    name=directory.name,
                    source=source,
                    symbol=rendered.source.symbol,
                    options=(*rendered.source.options, "-Wall", "-Wextra", "-Werror"),
                    include=(self.templates,),
                )
            )

        def done(job: CompileJob, outcome: Outcome) -> None:
            assert outcome.status is Status.OK, outcome.log
            for name, path in outcome.files.items():
                path.rename(job.source.parent / name)

        if jobs:
            with tempfile.TemporaryDirectory(dir=self.folder) as work:
                Gxx().compile(jobs, Path(work), COMPILERS, done)
        for name, directory in directories.items():
            self._kernels[name] = load_entry(directory, missing[name].op.kind.value)
