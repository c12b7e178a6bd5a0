"""Runs whole example programs that expect a GPU: torch's CUDA calls land on host memory, launches in the
interpreter.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from benchmarks.ptx.sm100a.checkout import example
from moegen.ptx import Options, capture
from moegen.ptx.memory import Block, GlobalMemory, MemoryFault

_ALIGN = 512


def aligned(tensor: Any) -> Any:
    """The tensor at a 512-byte boundary with the same strides: device code rounds pointers."""
    size = tensor.untyped_storage().nbytes()
    if not size or tensor.data_ptr() % _ALIGN == 0:
        return tensor
    room = torch.zeros(size + _ALIGN, dtype=torch.uint8)
    start = -room.data_ptr() % _ALIGN
    raw = room[start : start + size]
    source = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    raw.copy_(source)
    moved = raw.view(tensor.dtype)
    return moved.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset() + moved.storage_offset())


class _OnHost(TorchFunctionMode):
    """Sends everything that names the CUDA device to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        moved = str(kwargs.get("device", "")).startswith("cuda")
        if moved:
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return aligned(args[0].clone())
        if func is torch.Tensor.to and len(args) > 1 and str(args[1]).startswith("cuda"):
            return aligned(args[0].clone())
        result = func(*args, **kwargs)
        return aligned(result) if moved and isinstance(result, torch.Tensor) else result


class HostMemory(GlobalMemory):
    """Every mapped page of the process: examples allocate where nobody can watch."""

    def find(self, address: int, count: int = 1) -> Block:
        """The mapping that holds an address."""
        try:
            return super().find(address, count)
        except MemoryFault:
            for line in Path("/proc/self/maps").read_text().splitlines():
                match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
                if match and int(match[1], 16) <= address < int(match[2], 16):
                    for block in [b for b in self.blocks if b.name == "mapping"]:
                        self.remove(block)
                    self.register(int(match[1], 16), int(match[2], 16) - int(match[1], 16), "mapping")
                    return super().find(address, count)
            raise


class ExampleSession(capture.Session):
    """Runs each launch at once; PTX comes from the folder that the compiler dumps to."""

    def __init__(self, folder: Path, options: Options | None) -> None:
        super().__init__(options)
        self.memory = HostMemory()
        self.folder = folder

    def enqueue(self, name: str, shape: list[int], arguments: Any) -> None:
        """Looks for the kernel among dumped files, then runs it."""
        if name not in self.modules:
            for path in self.folder.rglob("*.ptx"):
                self.add_ptx(path.read_text(), path.name[:60])
        super().enqueue(name, shape, arguments)
        self.flush()


def _dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    def capsule(self: Any, **_: Any) -> Any:
        made = original(self)
        ctypes.c_int.from_address(pointer(made, b"dltensor") + 8).value = 2
        return made

    return capsule


@contextmanager
def gpu(multiprocessors: int = 4, options: Options | None = None) -> Iterator[ExampleSession]:
    """Inside, torch's CUDA is host memory and kernels for sm_100a run in the interpreter."""
    folder = Path(os.environ["CUTE_DSL_DUMP_DIR"])
    with ExitStack() as stack:
        cutlass = example("cutlass")
        executor = example("cutlass.cutlass_dsl.cuda_jit_executor")
        patch = mock.patch.object
        original = torch.Tensor.__dlpack__
        stack.enter_context(patch(torch.Tensor, "__dlpack__", _dlpack(original)))
        stack.enter_context(patch(torch.Tensor, "__dlpack_device__", lambda self: (2, 0)))
        stack.enter_context(patch(torch.cuda, "is_available", return_value=True))
        stack.enter_context(patch(torch.cuda, "synchronize"))
        for name in ("current_stream", "default_stream"):
            stack.enter_context(patch(torch.cuda, name, return_value=mock.Mock(cuda_stream=0)))
        stack.enter_context(patch(executor.CudaDialectJitCompiledFunction, "num_devices", 1))
        facts = mock.Mock(get_max_active_clusters=lambda size, *_: max(multiprocessors // size, 1))
        hardware = mock.Mock(return_value=facts)
        stack.enter_context(patch(cutlass.utils, "HardwareInfo", hardware))
        stack.enter_context(_OnHost())
        session = ExampleSession(folder, options)
        with session.active(flush=False):
            yield session


def scaled_grouped(
    scenario: str,
    kind: str,
    *,
    tokens: int = 128,
    experts: int = 4,
    hidden: int = 256,
    intermediate: int = 256,
    pair: bool = False,
    tile: tuple[int, int, int] = (128, 128, 128),
    cluster: tuple[int, int, int] = (1, 1, 1),
    seed: int = 0,
    options: Options | None = None,
) -> dict[str, Any]:
    """``moe/torch_scaled_grouped_mm`` with its own inputs and its own reference; the largest difference."""
    with gpu(options=options) as session:
        module = example("blackwell.kernel.moe.torch_scaled_grouped_mm")
        example("numpy").random.seed(seed)
        torch.manual_seed(seed)
        problem = module.ProblemDesc(tokens, experts, 2, False, hidden, intermediate, scenario, kind)
        impl = module.ImplDesc(tile, cluster, pair)
        tester = module.ScaledGroupedGemmTester(problem, impl, module.MiscDesc())
        tester.generate_inputs()
        for name in ("A_tensor", "B_tensor", "C_tensor", "scale_a_tensor", "scale_b_tensor", "offs_tensor"):
            setattr(tester, name, aligned(getattr(tester, name)))
        with mock.patch.object(module, "l2_flush"):
            tester.run_kernel(tester.create_kernel())
        manual = tester._compute_reference_manual_2d2d if scenario == "2Dx2D" else tester._compute_reference_manual_2d3d
        reference = manual()
        difference = (tester.C_tensor.double() - reference.double()).abs()
        groups = module.offs_to_group_sizes(tester.offs_tensor)
        reports = [str(report) for result in session.results for report in result.reports]
        return {
            "groups": [int(g) for g in groups],
            "values": difference.numel(),
            "max_difference": float(difference.max()),
            "instructions": sum(result.stats.instructions for result in session.results),
            "reports": reports,
        }


def grouped_block_scaled(
    sizes: list[tuple[int, int, int, int]],
    *,
    fmt: str = "nvfp4",
    tile: tuple[int, int] = (128, 128),
    cluster: tuple[int, int] = (1, 1),
    options: Options | None = None,
) -> dict[str, Any]:
    """``blockscaled_grouped_gemm``: the program's own ``run``, which raises when a group is wrong."""
    with gpu(options=options) as session:
        module = example("blackwell.kernel.blockscaled_grouped_gemm.grouped_blockscaled_gemm")
        cutlass = example("cutlass")
        element = cutlass.Float8E4M3FN if fmt == "mxfp8" else cutlass.Float4E2M1FN
        scale = cutlass.Float8E4M3FN if fmt == "nvfp4" else cutlass.Float8E8M0FNU
        with mock.patch.object(example("cutlass.cute.testing"), "benchmark", return_value=1.0):
            module.run(
                len(sizes),
                sizes,
                True,
                element,
                scale,
                16 if fmt == "nvfp4" else 32,
                cutlass.Float32,
                "k",
                "k",
                "n",
                tile,
                cluster,
                1e-5,
            )
        reports = [str(report) for result in session.results for report in result.reports]
        return {
            "groups": sizes,
            "launches": len(session.results),
            "instructions": sum(result.stats.instructions for result in session.results),
            "reports": reports,
        }


def in_process(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs one example of this module in a process of its own: it changes torch and the compiler's environment.

    Raises:
        RuntimeError: the example failed; the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        variables = {"CUTE_DSL_ARCH": "sm_100a", "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": folder}
        command = [sys.executable, "-m", "benchmarks.ptx.sm100a.pretend", function, json.dumps(arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def _plain(value: Any) -> Any:
    return tuple(_plain(v) for v in value) if isinstance(value, list) else value


def main() -> None:
    """``pretend <function> <arguments as JSON>``: prints the result as the last line."""
    chosen = {"scaled_grouped": scaled_grouped, "grouped_block_scaled": grouped_block_scaled}[sys.argv[1]]
    arguments = json.loads(sys.argv[2])
    settings = arguments.pop("options", None)
    options = Options(**settings, stop_at_error=False) if settings else None
    print(json.dumps(chosen(**{k: _plain(v) for k, v in arguments.items()}, options=options)))


if __name__ == "__main__":
    main()
