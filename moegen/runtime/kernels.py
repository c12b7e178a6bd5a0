"""From a variant's name to a loaded kernel: bundle → artifact → object. Each kernel of a process is loaded once."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from moegen.core.enums import Target
from moegen.core.errors import NotBuilt
from moegen.core.package import Package, Pipeline, Source
from moegen.core.runner import Kernel, Runner
from moegen.store.artifacts import Artifact, ArtifactStore
from moegen.store.bundles import Bundle, read_bundle


@dataclass(kw_only=True)
class KernelBook:
    """The kernels of one package on one target.

    Args:
        package: the manifest.
        directory: the package's folder, for the command that builds it.
        target: whose kernels.
        runner: loads and launches them.
        store: where artifacts and bundles are.
    """

    package: Package
    directory: Path
    target: Target
    runner: Runner
    store: ArtifactStore
    _loaded: dict[str, Kernel] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        bundle = read_bundle(self.store, self.package.digest, self.runner.facts.arch)
        self.bundle: Bundle | None = bundle
        self._sources = {source.variant: source for source in self.package.targets[self.target].sources}

    @property
    def build_command(self) -> str:
        """The command that builds everything this target offers."""
        return f"moegen build {self.directory} --target {self.target.value}"

    def is_built(self, pipeline: Pipeline) -> bool:
        """True when the bundle names an artifact for every step."""
        known = self.bundle.artifacts if self.bundle else {}
        return all(step.variant in known for step in pipeline.steps)

    def built(self) -> tuple[Pipeline, ...]:
        """Pipelines of the target that are built, in the manifest's order.

        Raises:
            NotBuilt: there is none.
        """
        offered = self.package.targets[self.target].pipelines
        built = tuple(pipeline for pipeline in offered if self.is_built(pipeline))
        if not built:
            known = len(self.bundle.artifacts) if self.bundle else 0
            raise NotBuilt(
                f"none of {len(offered)} pipelines of {self.package.name} is built for {self.runner.facts.arch}"
                f" ({known} kernels are)",
                ", ".join(map(str, self.store.roots)),
                self.build_command,
            )
        return built

    def source(self, variant: str) -> Source:
        """The rendered source of a variant."""
        return self._sources[variant]

    def artifact(self, variant: str) -> Artifact:
        """The checked artifact of a variant.

        Raises:
            NotBuilt: the bundle has none, or it is gone or damaged.
        """
        key = self.bundle.artifacts.get(variant) if self.bundle else None
        artifact = self.store.lookup(key) if key else None
        if artifact is None:
            what = f"its artifact {key[:16]}… is missing or damaged" if key else "no artifact is known"
            raise NotBuilt(f"kernel is not built: {what}", f"{self.package.name}, {variant}", self.build_command)
        return artifact

    def kernel(self, variant: str) -> Kernel:
        """The loaded kernel of a variant.

        Raises:
            NotBuilt: as :meth:`artifact`.
            StoreError: the object cannot be loaded here.
        """
        with self._lock:
            if variant not in self._loaded:
                directory = self.artifact(variant).directory
                self._loaded[variant] = self.runner.load(directory, self.source(variant).symbol)
            return self._loaded[variant]

    def load_all(self, pipelines: Iterable[Pipeline]) -> None:
        """Loads every kernel of the pipelines now, so that no call, and no graph capture, has to."""
        for pipeline in pipelines:
            for step in pipeline.steps:
                self.kernel(step.variant)
