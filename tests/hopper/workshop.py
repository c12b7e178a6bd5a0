"""Renders, compiles and loads single sm_90a variants through the code that serves users, each once a session."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from moegen.build.nvcc import Nvcc
from moegen.build.toolchain import CompileJob, Outcome, Status
from moegen.codegen.catalogs.sm90 import LADDER, ROUTE, STREAM
from moegen.codegen.catalogs.sm90_block import CATALOG
from moegen.codegen.render import Rendered, render
from moegen.codegen.variant import Variant
from moegen.core.devices import H200
from moegen.core.enums import OpKind
from moegen.core.ops import OpSpec
from moegen.core.paths import data_root
from moegen.core.runner import Kernel
from moegen.runtime.runners.cpu import OBJECT, load_entry
from moegen.store.locks import work_lock


def ladder_variant(op: OpSpec, ladder: str, warpgroups: int = 4, tiles: int = 1, blocks: int = 1) -> Variant:
    """A gemm with a schedule that must be legal."""
    schedule = LADDER.make(ladder=ladder, warpgroups=warpgroups, tiles=tiles, blocks=blocks)
    verdict = CATALOG.verdict(op, schedule, H200)
    assert verdict.legal, str(verdict)
    return Variant(op=op, schedule=schedule)


def stream_variant(op: OpSpec, route_blocks: int = 1) -> Variant:
    """Any other op."""
    schedule = ROUTE.make(threads=1024, blocks=route_blocks) if op.kind is OpKind.ROUTE else STREAM.make()
    return Variant(op=op, schedule=schedule)


class Workshop:
    """Compiled objects by variant, and their entries where a GPU can load them.

    An object's folder is named after the source and the templates that it includes, so objects may outlive both.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._folders: dict[str, Path] = {}
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, variant: Variant) -> Kernel:
        """One kernel, compiled when it is new."""
        if variant.name not in self._kernels:
            self._kernels[variant.name] = load_entry(self.directory(variant), variant.op.kind.value)
        return self._kernels[variant.name]

    def directory(self, variant: Variant) -> Path:
        """Folder of a variant's files, compiled when it is new."""
        self.prepare([variant])
        return self._folders[variant.name]

    def ptx(self, variant: Variant) -> str:
        """The PTX of a compiled variant."""
        return (self.directory(variant) / "kernel.ptx").read_text()

    def log(self, variant: Variant) -> str:
        """What the compilers said of a compiled variant."""
        return (self.directory(variant) / "log").read_text()

    def prepare(self, variants: Sequence[Variant], jobs: int | None = None) -> None:
        """Compiles what is missing, ``jobs`` (default: the cores) side by side; every compile must succeed, without
        spills. Several processes may share the folder."""
        wanted = {item.name: render(item, CATALOG) for item in variants if item.name not in self._folders}
        places = {name: self._place(rendered) for name, rendered in wanted.items()}
        if self._lacking(places):
            with work_lock(self.folder / "lock", timeout_s=600):
                self._compile({name: wanted[name] for name in self._lacking(places)}, jobs or os.cpu_count() or 1)
        self._folders |= places

    def _place(self, rendered: Rendered) -> Path:
        return self.folder / f"{rendered.source.digest[:16]}{rendered.source.closure[:16]}"

    @staticmethod
    def _lacking(places: Mapping[str, Path]) -> list[str]:
        return [name for name, place in places.items() if not (place / OBJECT).exists()]

    def _compile(self, wanted: Mapping[str, Rendered], parallel: int) -> None:
        names: dict[str, str] = {}
        jobs: dict[str, CompileJob] = {}
        for name, rendered in wanted.items():
            place = self._place(rendered)
            place.mkdir(exist_ok=True)
            source = place / "source.cu"
            source.write_text(rendered.text)
            names[place.name] = name
            jobs[place.name] = CompileJob(
                name=place.name,
                source=source,
                symbol=rendered.source.symbol,
                options=rendered.source.options,
                include=(data_root("templates"),),
            )

        def done(job: CompileJob, outcome: Outcome) -> None:
            assert outcome.status is Status.OK, f"{names[job.name]}\n{outcome.log}"
            (job.source.parent / "log").write_text(outcome.log)
            for name, path in sorted(outcome.files.items(), key=lambda item: item[0] == OBJECT):  # the object last
                path.rename(job.source.parent / name)

        if jobs:
            with tempfile.TemporaryDirectory(dir=self.folder) as work:
                Nvcc("sm_90a").compile(list(jobs.values()), Path(work), parallel, done)
