"""Compiles the device headers once, to compare them with torch bit for bit."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moegen.core.paths import data_root

FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=x86-64-v3",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-shared",
    "-fPIC",
)


class Mirror:
    """The compiled headers; every call copies nothing and checks that tensors are contiguous."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def call(self, name: str, *tensors: Tensor, count: int) -> None:
        """Calls ``name`` with the tensors' addresses and a trailing count."""
        assert all(tensor.is_contiguous() for tensor in tensors)
        addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        self._library[name](*addresses, ctypes.c_size_t(count))

    def map(self, name: str, *inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Calls an elementwise function on equally shaped inputs."""
        output = torch.empty(inputs[0].shape, dtype=dtype)
        self.call(name, *inputs, output, count=output.numel())
        return output


@pytest.fixture(scope="session", params=["cpu", "sm_90a"])
def mirror(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mirror:
    """The headers of one target. nvcc compiles CUDA's with --fmad=false and IEEE division, as g++ does here."""
    library = tmp_path_factory.mktemp("mirror") / "mirror.so"
    source = Path(__file__).parent / "mirror.cpp"
    include = data_root("templates") / request.param / "device"
    macros = ["-DMOEGEN_CUDA", "-Wno-unknown-pragmas"] if request.param != "cpu" else []
    command = ["g++", *FLAGS, *macros, f"-I{include}", f"-I{source.parent}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return Mirror(library)
