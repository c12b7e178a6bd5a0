"""Builds a generated package: every source that has no artifact yet is compiled, and bundles say what serves what."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from moegen.build.toolchain import CompileJob, Outcome, Status, Toolchain, abi_tag
from moegen.build.toolchains import toolchains_for
from moegen.codegen.closure import closure, closure_digest
from moegen.core.enums import Target
from moegen.core.errors import BuildRefused, StaleGenerated, ToolchainMissing
from moegen.core.package import Package, Source, read_manifest
from moegen.core.paths import data_root
from moegen.core.settings import Settings, read_settings
from moegen.store.artifacts import ArtifactStore
from moegen.store.bundles import read_bundle, write_bundle
from moegen.store.keys import ArtifactKey, Identity

SOURCE_STEM = "source"
HIT = "hit"
BUILT = "built"


@dataclass(frozen=True, kw_only=True)
class VariantReport:
    """What became of one variant: ``hit``, ``built``, or a failed :class:`Status` with its log."""

    target: Target
    variant: str
    result: str
    key: str
    log: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True when the variant has an artifact."""
        return self.result in (HIT, BUILT)


@dataclass(kw_only=True)
class BuildReport:
    """Result of :func:`build`.

    Attributes:
        variants: one entry a variant of every target that could be built.
        disabled: targets without a toolchain, with the reason and the way to get one.
        archs: architecture tag that each target was built for.
        notices: what a person should know about those, such as a CPU below the usual baseline.
    """

    package: str
    variants: list[VariantReport] = field(default_factory=list)
    disabled: dict[Target, str] = field(default_factory=dict)
    archs: dict[Target, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[VariantReport]:
        """Variants without an artifact."""
        return [variant for variant in self.variants if not variant.ok]

    def counts(self) -> dict[str, int]:
        """Number of variants by result."""
        return dict(Counter(variant.result for variant in self.variants))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """State of a target's build after ``variant`` was finished."""

    target: Target
    done: int
    total: int
    variant: str
    result: str


ProgressCallback = Callable[[Progress], None]
Compilers = Mapping[str, Toolchain]
"""Source suffix (``.cc``, ``.cu``, ``.py``) → compiler; all of one architecture."""


def build(
    package_dir: Path,
    targets: Iterable[Target] | None = None,
    *,
    jobs: int | None = None,
    progress: ProgressCallback | None = None,
    store: ArtifactStore | None = None,
    toolchains: Mapping[Target, Compilers] | None = None,
    settings: Settings | None = None,
) -> BuildReport:
    """Compiles what is missing and writes a bundle for each target.

    Args:
        package_dir: a folder that ``moegen generate`` wrote.
        targets: which of the package's targets; None: all.
        jobs: compilers at once; None: one for each core of this process.
        progress: called after every variant.
        store, toolchains, settings: stand-ins for the environment's, for tests and embedders.

    Raises:
        BuildRefused: a source has to be compiled, but ``MOEGEN_NO_BUILD=1``.
        StaleGenerated: the package's files, or the device library, are not those of its manifest.
        StoreError: no manifest, a store that cannot be written, or a full disk.
    """
    settings = settings or read_settings()
    store = store or ArtifactStore.from_settings(settings)
    package = read_manifest(package_dir)
    report = BuildReport(package=package.digest)
    for target in _wanted(package, targets, package_dir):
        try:
            compilers = _compilers(package, target, (toolchains or {}).get(target) or toolchains_for(target))
        except ToolchainMissing as missing:
            report.disabled[target] = str(missing)
            continue
        work = _TargetBuild(package_dir, package, target, compilers, store, progress)
        report.archs[target] = work.arch
        report.notices += sorted({compiler.notice for compiler in compilers.values()} - {""})
        report.variants += work.run(jobs or _cores(), settings.no_build)
    return report


def artifact_key(source: Source, toolchain: Toolchain, identity: Identity | None = None) -> ArtifactKey:
    """Identity of the artifact that ``toolchain`` makes of ``source``.

    Asking a compiler for its version costs a process, so whoever needs many keys passes ``toolchain.identity()``.

    Raises:
        ToolchainMissing: the compiler is absent or unfit.
    """
    return ArtifactKey(
        source=source.digest,
        closure=source.closure,
        toolchain=toolchain.identity() if identity is None else identity,
        arch=toolchain.arch,
        options=source.options,
        symbol=source.symbol,
        abi=abi_tag(),
    )


class _TargetBuild:
    """One target of one package."""

    def __init__(
        self,
        directory: Path,
        package: Package,
        target: Target,
        compilers: Compilers,
        store: ArtifactStore,
        progress: ProgressCallback | None,
    ) -> None:
        self._directory = directory
        self._package = package
        self._target = target
        self._compilers = compilers
        self._store = store
        self._progress = progress
        self._sources = package.targets[target].sources
        identities = {suffix: compiler.identity() for suffix, compiler in compilers.items()}
        self._keys = {
            item.variant: artifact_key(item, compilers[_suffix(item)], identities[_suffix(item)])
            for item in self._sources
        }
        self._templates = data_root("templates").resolve()
        self._reports: dict[str, VariantReport] = {}
        self.arch = next(iter(compilers.values())).arch

    def run(self, parallel: int, no_build: bool) -> list[VariantReport]:
        """Builds what is missing, writes the bundle, and reports in the order of the manifest."""
        missing = self._take_hits(self._sources)
        if missing:
            if no_build:
                raise BuildRefused(
                    f"{len(missing)} of {len(self._sources)} variants have no artifact, and MOEGEN_NO_BUILD=1",
                    str(self._directory),
                    f"unset MOEGEN_NO_BUILD, or: moegen build {self._directory} --target {self._target.value}",
                )
            self._store.prepare_home()
            self._check_sources(missing)
            with self._store.lock(f"build-{self._package.digest[:32]}-{self.arch}"):
                still_missing = self._take_hits(missing)
                for suffix, compiler in self._compilers.items():
                    self._compile([item for item in still_missing if _suffix(item) == suffix], compiler, parallel)
        self._write_bundle()
        return [self._reports[source.variant] for source in self._sources]

    def _take_hits(self, sources: Sequence[Source]) -> list[Source]:
        """Reports the sources that have an artifact; returns the others."""
        missing = []
        for source in sources:
            if self._store.lookup(self._keys[source.variant].digest) is None:
                missing.append(source)
            else:
                self._report(source, HIT)
        return missing

    def _check_sources(self, sources: Sequence[Source]) -> None:
        """A key names contents, so what is compiled must be exactly that."""
        for source in sources:
            path = self._directory / source.path
            fix = f"moegen generate {self._directory / 'spec.yaml'}"
            if not path.is_file():
                raise StaleGenerated("source is missing", str(path), fix)
            if sha256(path.read_bytes()).hexdigest() != source.digest:
                raise StaleGenerated("source was changed after it was generated", str(path), fix)
            library = closure(path.read_text(), path.suffix.removeprefix("."), self._templates)
            if closure_digest(library) != source.closure:
                raise StaleGenerated("the device library changed after this source was generated", str(path), fix)

    def _compile(self, sources: Sequence[Source], compiler: Toolchain, parallel: int) -> None:
        if not sources:
            return
        # Variants may share one source (equal keys): compile it once.
        by_key = {self._keys[source.variant].digest: source for source in sources}
        jobs = [self._job(key, source) for key, source in by_key.items()]

        def done(job: CompileJob, outcome: Outcome) -> None:
            self._publish(by_key[job.name], job, outcome)
            for source in sources:
                if self._keys[source.variant].digest == job.name:
                    self._report(source, BUILT if outcome.status is Status.OK else outcome.status.value, outcome)

        # A compiler that is being ended may still write: that must not hide why the build was left.
        with tempfile.TemporaryDirectory(prefix="moegen-build-", ignore_cleanup_errors=True) as work:
            compiler.compile(jobs, Path(work), parallel, done)

    def _job(self, key: str, source: Source) -> CompileJob:
        return CompileJob(
            name=key,
            source=(self._directory / source.path).resolve(),
            symbol=source.symbol,
            options=source.options,
            include=(self._templates,),
        )

    def _publish(self, source: Source, job: CompileJob, outcome: Outcome) -> None:
        if outcome.status is not Status.OK:
            return
        files: dict[str, Path | bytes] = dict(outcome.files)
        files[SOURCE_STEM + job.source.suffix] = job.source
        meta = {"variant": source.variant, "compile_s": round(outcome.seconds, 3), **outcome.meta}
        self._store.publish(self._keys[source.variant], files, meta)

    def _report(self, source: Source, result: str, outcome: Outcome | None = None) -> None:
        self._reports[source.variant] = VariantReport(
            target=self._target,
            variant=source.variant,
            result=result,
            key=self._keys[source.variant].digest,
            log=outcome.log if outcome else "",
            seconds=outcome.seconds if outcome else 0.0,
        )
        if self._progress:
            total = len(self._sources)
            self._progress(
                Progress(
                    target=self._target, done=len(self._reports), total=total, variant=source.variant, result=result
                )
            )

    def _write_bundle(self) -> None:
        """Writes down what serves each variant, unless a bundle says so already (a read-only store may be complete)."""
        artifacts = {name: report.key for name, report in self._reports.items() if report.ok}
        known = read_bundle(self._store, self._package.digest, self.arch)
        if known is None or any(known.artifacts.get(name) != key for name, key in artifacts.items()):
            write_bundle(self._store, self._package.digest, self.arch, artifacts)


def _suffix(source: Source) -> str:
    return Path(source.path).suffix


def _compilers(package: Package, target: Target, offered: Compilers) -> Compilers:
    """The compilers that a target's sources need, each found and fit; raises ToolchainMissing."""
    needed = {_suffix(source) for source in package.targets[target].sources}
    for suffix in sorted(needed):
        if suffix not in offered:
            raise ToolchainMissing(f"no compiler for {suffix} sources", target.value, "generate the package again")
        offered[suffix].discover()
    return {suffix: offered[suffix] for suffix in sorted(needed)}


def _wanted(package: Package, targets: Iterable[Target] | None, where: Path) -> list[Target]:
    chosen = list(package.targets) if targets is None else list(targets)
    for target in chosen:
        package.offer(target, where)
    return chosen


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
