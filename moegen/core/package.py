"""The manifest of a generated package: what serving needs to know of a spec, without the spec's own machinery."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moegen.core.canonical import LATER, canonical_json, digest
from moegen.core.enums import CombineMode, Epilogue, Target
from moegen.core.errors import MoegenError, StoreError
from moegen.core.ops import Numerics, OpSpec, numerics_from_json, op_from_json

SCHEMA = 1
MANIFEST = "manifest.json"
LAYER_FACTS = ("geometry", "activation", "weights", "activations", "scale_layout", "numerics")
"""Sections of ``Package.layer`` that say what is computed; the others say how to look for kernels."""
_INNERMOST_LIST = re.compile(r"\[[^][{}\"]*\]")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One rendered kernel file.

    ``path`` is relative to the package; ``digest`` is the SHA-256 of its bytes; ``closure`` is the digest of every
    device library file it includes, by normalised relative name and content; ``symbol`` is the exported entry.
    """

    variant: str
    path: str
    digest: str
    closure: str
    symbol: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One launch of a pipeline. Scratch is ``scratch_fixed + scratch_per_row * R`` bytes, zero before the first launch;
    a kernel leaves it zeroed."""

    op: OpSpec
    variant: str
    scratch_fixed: int = 0
    scratch_per_row: int = 0


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The unit that is tuned and chosen: an epilogue mode and one variant per op over one weight pack.

    ``model_us`` holds the time model's prediction at rising token counts under uniform routing (microseconds): ranks
    candidates only, never shown as a measurement. ``most_tokens``: it serves no larger call; None: any.
    """

    name: str
    target: Target
    epilogue: Epilogue
    combine: CombineMode
    numerics: Numerics
    row_tile: int
    steps: tuple[Step, ...]
    model_us: tuple[tuple[int, float], ...]
    most_tokens: int | None = field(default=None, metadata=LATER)

    def serves(self, tokens: int) -> bool:
        """True when a call may have this many tokens."""
        return self.most_tokens is None or tokens <= self.most_tokens


@dataclass(frozen=True, kw_only=True)
class TargetPackage:
    """Everything one target offers. ``default`` names the pipeline that others must beat; ``rejected`` maps a pipeline
    or a mode to the reason why it is not offered."""

    default: str
    pipelines: tuple[Pipeline, ...]
    sources: tuple[Source, ...]
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Package:
    """A generated package's manifest.

    ``layer`` is the plain form of the spec's facts that loaders need: geometry, activation, weight format,
    gate/up order, bias, scale layouts, activation scales, tuned token counts and routings.
    """

    name: str
    spec_digest: str
    layer: dict[str, Any]
    targets: dict[Target, TargetPackage]
    schema: int = SCHEMA

    @property
    def digest(self) -> str:
        """Identity of the package: any change of a source, a pipeline or the layer changes it."""
        return digest(self, "moegen.package")

    def offer_digest(self, target: Target) -> str:
        """Identity of what one target offers: it changes with the layer, the target's pipelines and their sources, and
        with nothing that other targets do."""
        return digest({"layer": self._facts(), "offer": self.targets[target]}, "moegen.offer")

    def layer_digest(self, target: Target) -> str:
        """Identity of the layer itself on a target, whatever kernels serve it."""
        return digest({"layer": self._facts(), "target": target}, "moegen.layer")

    def _facts(self) -> dict[str, Any]:
        return {name: self.layer[name] for name in LAYER_FACTS if name in self.layer}

    def offer(self, target: Target, where: object = "") -> TargetPackage:
        """What the package offers on a target; ``where`` (by default its name) says in the message which package.

        Raises:
            MoegenError: it has no such target.
        """
        if target not in self.targets:
            names = ", ".join(offered.value for offered in self.targets)
            raise MoegenError(f"no target {target.value}", str(where or self.name), f"use one of: {names}")
        return self.targets[target]

    def pipeline(self, target: Target, name: str) -> Pipeline:
        """Raises KeyError when the target has no such pipeline."""
        for pipeline in self.targets[target].pipelines:
            if pipeline.name == name:
                return pipeline
        raise KeyError(name)


def manifest_text(package: Package) -> str:
    """The manifest and its digest in a stable, reviewable form: one value a line, innermost lists on one line."""
    data = {"digest": package.digest, **json.loads(canonical_json(package))}
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    return _INNERMOST_LIST.sub(lambda found: re.sub(r"\n *", " ", found[0]).replace("[ ", "[").replace(" ]", "]"), text)


def write_manifest(package: Package, directory: Path) -> Path:
    """Writes the manifest and returns its path."""
    path = directory / MANIFEST
    path.write_text(manifest_text(package))
    return path


def read_manifest(directory: Path) -> Package:
    """Reads a package's manifest.

    Raises:
        StoreError: the file is missing, damaged, edited, or of another schema.
    """
    path = directory / MANIFEST
    try:
        data = json.loads(path.read_text())
        if data["schema"] != SCHEMA:
            raise StoreError(
                f"manifest schema {data['schema']}, this moegen reads {SCHEMA}", str(path), "moegen generate SPEC"
            )
        package = package_from_json(data)
        if package.digest != data["digest"]:
            raise StoreError("manifest does not match its own digest", str(path), "moegen generate SPEC")
        return package
    except FileNotFoundError as error:
        raise StoreError("no manifest", str(path), "moegen generate SPEC") from error
    except OSError as error:
        raise StoreError(f"manifest cannot be read ({error.strerror})", str(path), "check the path") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StoreError(f"damaged manifest ({error!r})", str(path), "moegen generate SPEC") from error


def package_from_json(data: dict[str, Any]) -> Package:
    """Inverse of ``canonical.plain(package)``; raises KeyError, TypeError or ValueError on damage."""
    targets = {Target(name): _target(value) for name, value in data["targets"].items()}
    return Package(
        name=data["name"], spec_digest=data["spec_digest"], layer=data["layer"], targets=targets, schema=data["schema"]
    )


def _target(data: dict[str, Any]) -> TargetPackage:
    return TargetPackage(
        default=data["default"],
        pipelines=tuple(pipeline_from_json(item) for item in data["pipelines"]),
        sources=tuple(Source(**(item | {"options": tuple(item["options"])})) for item in data["sources"]),
        rejected=tuple((name, reason) for name, reason in data["rejected"]),
    )


def pipeline_from_json(data: dict[str, Any]) -> Pipeline:
    """Inverse of ``canonical.plain(pipeline)``; raises as :func:`package_from_json`."""
    return Pipeline(
        name=data["name"],
        target=Target(data["target"]),
        epilogue=Epilogue(data["epilogue"]),
        combine=CombineMode(data["combine"]),
        numerics=numerics_from_json(data["numerics"]),
        row_tile=data["row_tile"],
        steps=tuple(Step(**(item | {"op": op_from_json(item["op"])})) for item in data["steps"]),
        model_us=tuple((tokens, time_us) for tokens, time_us in data["model_us"]),
        most_tokens=data.get("most_tokens"),
    )


__all__ = [
    "LAYER_FACTS",
    "MANIFEST",
    "Package",
    "Pipeline",
    "Source",
    "Step",
    "TargetPackage",
    "manifest_text",
    "package_from_json",
    "pipeline_from_json",
    "read_manifest",
    "write_manifest",
]
