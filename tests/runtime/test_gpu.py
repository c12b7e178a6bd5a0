"""The layer on a GPU: streams, graphs and reloads. Kernels are built here, so that the whole way is taken."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from runtime.packages import TestPackage, gpu_package, make_inputs, reference_output
from runtime.writers import fused_forms, random_weights

from moegen.core.enums import Epilogue, Target
from moegen.runtime import LoadedPackage, MoELayer, load, prepare_experts

pytestmark = pytest.mark.gpu

TOKENS = 24
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    return gpu_package(tmp_path_factory.mktemp("gpu"))


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


def test_fr_27_float4_and_column_views_are_the_same_bytes(built: TestPackage) -> None:
    package, weights = loaded(built), random_weights(7, 256, 160, 0)
    plain = package.from_tensors(weights)
    inputs = on_gpu(plain)
    expected = plain(*inputs)
    forms, w2 = fused_forms(weights, "cuda")
    for w13 in forms:
        assert torch.equal(prepare_experts(package, w13, w2)(*inputs), expected)


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


@pytest.mark.parametrize("tokens", [1, TOKENS, 64])
def test_ordered_results_repeat_bit_for_bit(built: TestPackage, tokens: int) -> None:
    layer = layer_of(built)
    inputs = on_gpu(layer, tokens, seed=5)
    first = layer(*inputs)
    assert all(torch.equal(layer(*inputs), first) for _ in range(20))


def test_fr_06_no_tokens_eager_compiled_and_captured(built: TestPackage) -> None:
    layer = layer_of(built)
    empty = on_gpu(layer, 0)
    compiled = torch.compile(lambda *args: layer(*args), backend="aot_eager", fullgraph=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(*empty)
    graph.replay()
    torch.cuda.synchronize()
    for y in (layer(*empty), compiled(*empty), captured):
        assert (y.shape, y.dtype, y.device.type) == ((0, 256), torch.bfloat16, "cuda")


def test_fr_32_threads_that_never_touched_the_gpu_load_and_call_at_once(built: TestPackage) -> None:
    expected = layer_of(built)(*on_gpu(layer_of(built), seed=6)).cpu()
    together = threading.Barrier(8)

    def work(number: int) -> list[torch.Tensor]:
        together.wait()
        layer = layer_of(built)
        inputs = on_gpu(layer, seed=6)
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [layer(*inputs) for _ in range(5)]
            torch.cuda.current_stream().synchronize()
        return [y.cpu() for y in found]

    with ThreadPoolExecutor(8) as pool:
        for outputs in pool.map(work, range(8)):
            assert all(torch.equal(y, expected) for y in outputs)


def test_one_layer_serves_several_threads_each_on_its_stream(built: TestPackage) -> None:
    layer = layer_of(built)
    batches = [on_gpu(layer, tokens, seed=tokens) for tokens in (1, 7, 24, 64)]
    expected = [layer(*batch) for batch in batches]
    torch.cuda.synchronize()

    def work(number: int) -> list[torch.Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [layer(*batches[number]) for _ in range(30)]
            torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(len(batches)) as pool:
        for wanted, outputs in zip(expected, pool.map(work, range(len(batches))), strict=True):
            assert all(torch.equal(y, wanted) for y in outputs)


def test_fr_46_foreign_ids_add_exactly_nothing(built: TestPackage) -> None:
    layer = layer_of(built)
    x, ids, weights = on_gpu(layer, seed=7)
    foreign = ids.clone()
    foreign[::2, 1], foreign[1::4, 2] = -1, 7
    foreign[3] = torch.tensor([7, -5, 2**40], device="cuda")
    name = layer.engine.decide(TOKENS).pipeline
    torch.cuda.empty_cache()
    torch.full((1 << 24,), 0x7F, dtype=torch.uint8, device="cuda")
    got = layer(x, foreign, weights)
    expected = reference_output(layer, name, x, foreign, weights)
    assert torch.count_nonzero(got[3]) == 0
    assert (got.cpu().float() - expected.float()).norm() / expected.float().norm() <= 5e-3
