"""Small packages and fake compilers for build tests."""

import hashlib
import os
import stat
import textwrap
from collections.abc import Sequence
from pathlib import Path

from moegen.build.toolchain import CompileJob, Outcome
from moegen.codegen.closure import closure, closure_digest
from moegen.core.enums import Target
from moegen.core.package import Package, Source, TargetPackage, write_manifest
from moegen.core.paths import data_root

TEMPLATES = data_root("templates").resolve()
PLAIN_C = 'extern "C" __attribute__((visibility("default"))) int {symbol}() {{ return {value}; }}\n'


def source(directory: Path, target: Target, name: str, text: str, symbol: str, options: Sequence[str] = ()) -> Source:
    """Writes one source of a package and describes it."""
    path = directory / target.value / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return Source(
        variant=f"variant-{path.stem}",
        path=f"{target.value}/{name}",
        digest=hashlib.sha256(text.encode()).hexdigest(),
        closure=closure_digest(closure(text, path.suffix.removeprefix("."), TEMPLATES)),
        symbol=symbol,
        options=tuple(options),
    )


def package(directory: Path, sources: dict[Target, list[Source]]) -> Package:
    """A manifest of sources alone: all that a build reads."""
    targets = {
        target: TargetPackage(default="", pipelines=(), sources=tuple(entries)) for target, entries in sources.items()
    }
    made = Package(name="small", spec_digest="s" * 64, layer={}, targets=targets)
    write_manifest(made, directory)
    return made


def plain_package(directory: Path, count: int = 2, value: int = 7) -> Package:
    """A CPU package of C++ sources that include nothing and compile in tens of milliseconds."""
    entries = [
        source(
            directory, Target.CPU, f"f{index}.cc", PLAIN_C.format(symbol=f"f{index}", value=value + index), f"f{index}"
        )
        for index in range(count)
    ]
    return package(directory, {Target.CPU: entries})


def compile_all(toolchain: object, jobs: Sequence[CompileJob], work: Path, parallel: int = 2) -> dict[str, Outcome]:
    """Compiles jobs and returns the outcome of each by name."""
    work.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Outcome] = {}
    toolchain.compile(jobs, work, parallel, lambda job, outcome: outcomes.__setitem__(job.name, outcome))  # type: ignore[attr-defined]
    assert set(outcomes) == {job.name for job in jobs}
    return outcomes


def fake_program(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + textwrap.dedent(body))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def path_without(program: str, tmp_path: Path) -> str:
    """A PATH with links to every program of this one but ``program``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for entry in Path(place).glob("*") if Path(place).is_dir() else ():
            link = folder / entry.name
            link.unlink(missing_ok=True)
            if entry.name != program:
                link.symlink_to(entry)
    return str(folder)
