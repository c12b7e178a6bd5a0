"""The same layers on kernels that g++ built: spec file to output, from every checkpoint dialect."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runtime.packages import SPEC, TestPackage, compiled_package, make_inputs, reference_output
from runtime.writers import (
    COMPRESSED_NVFP4,
    MODELOPT_NVFP4,
    fused,
    per_expert,
    random_weights,
    stacked,
    write_checkpoint,
)

from moegen.core.enums import Epilogue
from moegen.core.errors import NotBuilt, StoreError
from moegen.runtime import CpuRunner, ExpertWeights, Projection

LEAVES = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
W123 = {"gate": "w1", "up": "w3", "down": "w2"}
CONTAINER = "model.layers.0.mlp.experts"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    return compiled_package(SPEC, tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def powers() -> ExpertWeights:
    """Weights whose second-level and input scales are powers of two, so that both checkpoint forms hold them exactly;
    gate's and up's input scales are equal, all experts' second-level scales too (fused files have one)."""

    def exact(side: Projection, second: float, inputs: float) -> Projection:
        return replace(side, second=torch.full((7,), second), input=torch.full((7,), inputs))

    weights = random_weights(experts=7)
    assert weights.gate is not None
    return ExpertWeights(
        gate=exact(weights.gate, 2.0**-6, 2.0**-9),
        up=exact(weights.up, 2.0**-6, 2.0**-9),
        down=exact(weights.down, 2.0**-7, 2.0**-8),
    )


@pytest.mark.parametrize("epilogue", list(Epilogue))
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_kernels_compute_the_reference(compiled: TestPackage, epilogue: Epilogue, threads: int) -> None:
    weights = random_weights(experts=7)
    layer = compiled.load(runner=CpuRunner(threads=threads), epilogue=epilogue).from_tensors(weights)
    for tokens in (1, 13, 64):
        inputs = make_inputs(layer, tokens, seed=tokens)
        expected = reference_output(layer, layer.engine.decide(tokens).pipeline, *inputs).float()
        got = layer(*inputs).float()
        assert (got - expected).norm() / expected.norm() < 2e-3
    empty = make_inputs(layer, 0)
    assert layer(*empty).shape == (0, 64)
    x, ids, router = make_inputs(layer, 5)
    assert torch.count_nonzero(layer(x, torch.full_like(ids, -1), router)) == 0


def test_every_dialect_of_a_checkpoint_gives_the_same_bits(
    compiled: TestPackage, powers: ExpertWeights, tmp_path: Path
) -> None:
    loaded = compiled.load(runner=CpuRunner(threads=1))
    expected = loaded.from_tensors(powers)
    inputs = make_inputs(expected, 21)
    wanted = expected(*inputs)
    forms = {
        "modelopt": (per_expert(powers, CONTAINER, LEAVES), MODELOPT_NVFP4),
        "compressed": (per_expert(powers, CONTAINER, LEAVES, compressed=True), COMPRESSED_NVFP4),
        "w123": (per_expert(powers, "layers.0.ffn.experts", W123), {"quant_method": "fp8", "moe_quant_algo": "NVFP4"}),
        "stacked": (stacked(powers, "model.layers.0.moe"), MODELOPT_NVFP4),
        "columns": (fused(powers, "model.layers.0.feed_forward.experts", interleaved=False), MODELOPT_NVFP4),
        "rows": (fused(powers, CONTAINER, interleaved=False, transposed=False), MODELOPT_NVFP4),
    }
    for name, (tensors, quantization) in forms.items():
        folder = write_checkpoint(tmp_path / name, tensors, quantization, experts=7)
        assert torch.equal(loaded.from_checkpoint(folder, layer=0)(*inputs), wanted), name


def test_compiled_layer_inside_torch_compile(compiled: TestPackage) -> None:
    layer = compiled.load(runner=CpuRunner(threads=1)).from_tensors(random_weights(experts=7))
    call = torch.compile(lambda *args: layer(*args), backend="aot_eager", fullgraph=True)
    inputs = make_inputs(layer, 6)
    assert torch.equal(call(*inputs), layer(*inputs))


def test_a_damaged_kernel_is_not_built_not_a_crash(compiled: TestPackage, tmp_path: Path) -> None:
    """A flipped bit in an object is found by its digest; a bundle alone does not make a kernel."""
    import shutil

    from moegen.store.artifacts import ArtifactStore, StoreWarning

    home = tmp_path / "home"
    shutil.copytree(compiled.store.home, home)
    for path in home.glob("artifacts/v1/*/*/kernel.so"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(bytes(data))
    broken = TestPackage(directory=compiled.directory, store=ArtifactStore(home))
    with pytest.warns(StoreWarning, match="sha256 differs"), pytest.raises(NotBuilt, match="missing or damaged"):
        broken.load(runner=CpuRunner(threads=1))


def test_an_object_without_its_entry_is_named(compiled: TestPackage) -> None:
    runner, loaded = CpuRunner(threads=1), compiled.load(runner=CpuRunner(threads=1))
    variant = next(iter(loaded.pipelines.values())).steps[0].variant
    with pytest.raises(StoreError, match="cannot load nonsense"):
        runner.load(loaded.book.artifact(variant).directory, "nonsense")
    with pytest.raises(StoreError, match=r"kernel\.so"):
        runner.load(compiled.directory, "route")
