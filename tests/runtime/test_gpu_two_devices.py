"""Weights on one GPU while another is the current one; run alone on a machine with two: ``pytest -m two_gpus``."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from runtime.packages import TestPackage, gpu_package, make_inputs
from runtime.writers import random_weights

from moegen.core.enums import Target
from moegen.core.errors import TensorError
from moegen.runtime import MoELayer, load

pytestmark = [pytest.mark.gpu, pytest.mark.two_gpus]
DEVICES = ("cuda:0", "cuda:1")
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> TestPackage:
    return gpu_package(tmp_path_factory.mktemp("two"))


def layers(built: TestPackage) -> list[MoELayer]:
    """The same layer on both GPUs, of one loaded package."""
    package = load(built.directory, target=Target.SM_90A, store=built.store)
    return [package.from_tensors(random_weights(7, 256, 160, 1), device=device) for device in DEVICES]


def inputs_on(layer: MoELayer, device: str) -> Inputs:
    x, ids, weights = make_inputs(layer, 24, 2)
    return x.to(device), ids.to(device), weights.to(device)


@pytest.mark.parametrize("current", [0, 1])
def test_the_current_device_need_not_be_the_tensors(built: TestPackage, current: int) -> None:
    made = layers(built)
    outputs = []
    for layer, device in zip(made, DEVICES, strict=True):
        inputs = inputs_on(layer, device)
        with torch.cuda.device(current):
            y = layer(*inputs)
            assert torch.cuda.current_device() == current
        assert str(y.device) == device
        outputs.append(y.cpu())
    assert torch.equal(*outputs)


def test_a_graph_of_the_other_device_replays(built: TestPackage) -> None:
    first, second = layers(built)
    inputs = inputs_on(second, "cuda:1")
    expected = second(*inputs)
    torch.cuda.synchronize("cuda:1")
    with torch.cuda.device(1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = second(*inputs)
    first(*inputs_on(first, "cuda:0"))
    graph.replay()
    torch.cuda.synchronize("cuda:1")
    assert torch.equal(y, expected)


def test_both_devices_at_once_from_threads(built: TestPackage) -> None:
    made = layers(built)
    batches = [inputs_on(layer, device) for layer, device in zip(made, DEVICES, strict=True)]
    expected = made[0](*batches[0]).cpu()

    def work(number: int) -> list[torch.Tensor]:
        return [made[number](*batches[number]).cpu() for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        assert all(torch.equal(y, expected) for found in pool.map(work, (0, 1)) for y in found)


def test_tensors_of_the_wrong_device_are_refused(built: TestPackage) -> None:
    first, _ = layers(built)
    with pytest.raises(TensorError, match="where the weights are"):
        first(*inputs_on(first, "cuda:1"))
