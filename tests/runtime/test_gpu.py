"""The layer on a GPU: streams, graphs and reloads. Kernels are built here, so that the whole way is taken."""

import pytest
import torch
from runtime.packages import TestPackage, generate_package, make_inputs, reference_output, spec_with
from runtime.writers import random_weights

from moegen.build.builder import build
from moegen.core.enums import Epilogue, Target
from moegen.runtime import LoadedPackage, MoELayer, load

pytestmark = pytest.mark.gpu

TOKENS = 24
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    spec = spec_with(
        geometry={"hidden": 256, "intermediate": 160, "experts": 7},
        targets=["sm_90a"],
        schedules=None,
        tune={"pipelines": 3, "tokens": [64]},
    )
    made = generate_package(spec, tmp_path_factory.mktemp("gpu"))
    report = build(made.directory, [Target.SM_90A], store=made.store)
    assert not report.disabled
    assert not report.failed, report.failed[0].log
    return made


def loaded(built: TestPackage, **options: object) -> LoadedPackage:
    return load(built.directory, target=Target.SM_90A, store=built.store, **options)


def layer_of(built: TestPackage, seed: int = 0, **options: object) -> MoELayer:
    return loaded(built, **options).from_tensors(random_weights(7, 256, 160, seed))


def on_gpu(layer: MoELayer, tokens: int = TOKENS, seed: int = 0) -> Inputs:
    x, ids, weights = make_inputs(layer, tokens, seed)
    return x.cuda(), ids.cuda(), weights.cuda()


@pytest.mark.parametrize("epilogue", list(Epilogue))
def test_layer_computes_the_reference(built: TestPackage, epilogue: Epilogue) -> None:
    layer = layer_of(built, epilogue=epilogue.value)
    inputs = on_gpu(layer)
    name = layer.engine.decide(TOKENS).pipeline
    got = layer(*inputs).cpu().float()
    expected = reference_output(layer, name, *inputs).float()
    assert (got - expected).norm() / expected.norm() <= 5e-3
    assert layer(*on_gpu(layer, 0)).shape == (0, 256)
    x, ids, weights = inputs
    assert torch.count_nonzero(layer(x, torch.full_like(ids, -1), weights)) == 0


def test_fr_29_first_call_inside_a_capture(built: TestPackage) -> None:
    layer = layer_of(built)
    inputs = on_gpu(layer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(*inputs)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, layer(*inputs))


def test_fr_30_no_sync_and_new_routing_in_a_replay(built: TestPackage) -> None:
    layer = layer_of(built)
    x, ids, weights = on_gpu(layer)
    layer(x, ids, weights)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x, ids, weights)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x, ids, weights)
    crowded = torch.tensor([0, 1, 2], device="cuda").expand(TOKENS, 3)
    for other in ((ids + 1) % 7, crowded, torch.full_like(ids, -1)):
        ids.copy_(other)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, layer(x, ids, weights))


def test_fr_31_work_goes_to_the_callers_stream(built: TestPackage) -> None:
    layer = layer_of(built)
    x, ids, weights = on_gpu(layer, seed=1)
    expected = layer(x, ids, weights)
    late, stream = torch.zeros_like(x), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(x)
        y = layer(late, ids, weights)
    stream.synchronize()
    assert torch.equal(y, expected)


def test_fr_28_replay_sees_reloaded_weights(built: TestPackage) -> None:
    layer, fresh = layer_of(built, seed=1), layer_of(built, seed=2)
    inputs = on_gpu(layer)
    layer(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(*inputs)
    layer.reload(random_weights(7, 256, 160, 2))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, fresh(*inputs))


def test_compiled_layer_equals_eager(built: TestPackage) -> None:
    layer = layer_of(built)
    compiled = torch.compile(lambda *args: layer(*args), backend="aot_eager", fullgraph=True)
    inputs = on_gpu(layer)
    assert torch.equal(compiled(*inputs), layer(*inputs))


def test_two_streams_have_workspaces_of_their_own(built: TestPackage) -> None:
    layer = layer_of(built)
    first, second = on_gpu(layer, seed=3), on_gpu(layer, seed=4)
    expected = layer(*first), layer(*second)
    torch.cuda.synchronize()
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(20):
        outputs = []
        for stream, inputs in zip(streams, (first, second), strict=True):
            with torch.cuda.stream(stream):
                outputs.append(layer(*inputs))
        torch.cuda.synchronize()
        assert all(torch.equal(got, wanted) for got, wanted in zip(outputs, expected, strict=True))
    assert layer.engine.pool.allocated_bytes == 3 * layer.workspace_bytes
