"""``moegen doctor``: this machine, its compilers, and the health of the store."""

import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import typer

from moegen import __version__
from moegen.cli.console import show_json, show_table, size
from moegen.cli.options import AsJson
from moegen.core.enums import Target


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is well, what was found, and what to do when it is not."""

    subject: str
    well: bool
    found: str
    fix: str = ""


def doctor(as_json: AsJson = False) -> None:
    """Show this machine, compilers found and missing (with how to get them), and the store's health.

    The exit code is 1 when the CPU target cannot be built or the store is damaged: what every machine needs.
    """
    findings = [*_machine(), *_toolchains(), *_store()]
    if as_json:
        show_json([asdict(finding) for finding in findings])
    else:
        rows = [("ok" if f.well else "missing", f.subject, f.found, f.fix) for f in findings]
        show_table(("", "what", "found", "to get it"), rows)
    if any(not f.well for f in findings if f.subject in ("compiler for cpu", "store", "database")):
        raise typer.Exit(1)


def _machine() -> Iterator[Finding]:
    import torch

    from moegen.runtime.runners import CpuRunner

    yield Finding("moegen", True, f"{__version__} on Python {platform.python_version()}, {sys.platform}")
    yield Finding("torch", True, torch.__version__)
    facts = CpuRunner().facts
    yield Finding("cpu", True, f"{facts.name}, {facts.arch}, {facts.cores} threads")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield Finding("gpu", True, ", ".join(names))
    else:
        yield Finding("gpu", False, "torch sees none", "not needed to generate, build, or run the cpu target")


def _toolchains() -> Iterator[Finding]:
    from moegen.build.toolchains import toolchains_for
    from moegen.core.errors import ToolchainMissing

    for target in Target:
        for suffix, toolchain in toolchains_for(target).items():
            subject = f"compiler for {target.value}" + (f" ({suffix})" if target is not Target.CPU else "")
            try:
                yield Finding(subject, True, f"{toolchain.name} {toolchain.discover()}")
            except ToolchainMissing as missing:
                yield Finding(subject, False, f"{toolchain.name}: {missing.what}", missing.fix)


def _store() -> Iterator[Finding]:
    from moegen.cli.cache import open_store
    from moegen.core.errors import MoegenError
    from moegen.core.settings import read_settings
    from moegen.store.database import DATABASE, TrialDatabase
    from moegen.store.trials import Trial
    from moegen.store.upkeep import stat

    store = open_store()
    for root in stat(store):
        found = f"{root.root}: {root.entries} artifacts, {size(root.bytes)}, {root.unreadable} unreadable"
        yield Finding("store", root.unreadable == 0, found, "moegen cache verify" if root.unreadable else "")
    path = read_settings().home / DATABASE
    if not path.exists():
        yield Finding("database", True, "none yet; moegen tune makes it")
        return
    try:
        with TrialDatabase(path) as database:
            yield Finding("database", True, f"{len(database.all(Trial))} trials in {path}")
    except MoegenError as error:
        yield Finding("database", False, error.what, error.fix)
