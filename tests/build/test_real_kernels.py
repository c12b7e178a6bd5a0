"""One real kernel of each GPU language, from OpSpec through the builder to a bundle, on a machine without a GPU."""

from pathlib import Path

import pytest

from moegen.build.builder import BUILT, HIT, build
from moegen.codegen.registry import catalog
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.devices import PLANNING_DEVICE
from moegen.core.enums import ActFormat, ActScale, OpKind, ScaleLayout, Target
from moegen.core.ops import Numerics, OpSpec
from moegen.core.package import Source
from moegen.store.artifacts import ArtifactStore
from moegen.store.bundles import read_bundle
from tests.build.helpers import package

QUANTIZE = OpSpec(
    kind=OpKind.QUANTIZE,
    experts=0,
    top_k=3,
    hidden=144,
    intermediate=0,
    act_format=ActFormat.NVFP4,
    scale_layout=ScaleLayout.SWIZZLE_128X4,
    row_tile=16,
    numerics=Numerics(),
    gather=True,
    act_scale=ActScale.STATIC,
)
FILES = {
    Target.SM_90A: {"kernel.so", "kernel.cubin", "kernel.ptx", "source.cu"},
    Target.SM_100A: {"kernel.so", "kernel.o", "kernel.cubin", "kernel.ptx", "source.py"},
    Target.SM_103A: {"kernel.so", "kernel.o", "kernel.cubin", "kernel.ptx", "source.py"},
}


def rendered(target: Target, directory: Path) -> Source:
    """The quantiser's first legal variant on a target, written into a package."""
    offer, device = catalog(target), PLANNING_DEVICE[target]
    schedules = offer.schedules(QUANTIZE, device, None)
    legal = next(item for item in schedules if offer.verdict(QUANTIZE, item, device).legal)
    made = render(Variant(op=QUANTIZE, schedule=legal), offer)
    path = directory / made.source.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.text)
    return made.source


@pytest.mark.parametrize("target", FILES)
def test_quantizer_is_built_and_bundled(target: Target, tmp_path: Path) -> None:
    made = package(tmp_path / "package", {target: [rendered(target, tmp_path / "package")]})
    store = ArtifactStore(tmp_path / "home")
    report = build(tmp_path / "package", store=store)
    assert report.disabled == {}
    assert report.counts() == {BUILT: 1}, report.variants[0].log
    assert report.archs == {target: target.value}
    bundle = read_bundle(store, made.digest, target.value)
    assert bundle is not None
    artifact = store.lookup(bundle.artifacts[report.variants[0].variant])
    assert artifact is not None
    assert set(artifact.manifest.files) == FILES[target]
    assert f".target {target.value}" in artifact.path("kernel.ptx").read_text()
    assert build(tmp_path / "package", store=ArtifactStore(store.home)).counts() == {HIT: 1}
