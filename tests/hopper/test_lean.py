"""The branch-free sigmoid forms return the bits of the plain ones, and the approximate ones come as near as the
epilogue takes them to be: sampled in the interpreter, all of them on a GPU."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moegen.build.nvcc import Nvcc
from moegen.build.toolchain import CompileJob, Outcome, Status
from moegen.core.enums import Target
from moegen.core.paths import data_root
from moegen.core.runner import Kernel
from moegen.numerics.elementary import scaled_silu, silu
from moegen.ptx.runner import InterpreterRunner
from moegen.runtime.runners.cpu import load_entry

SOURCE = Path(__file__).parent / "lean.cu"
ALPHAS = (1.0, 1.702)
NEAR = 11
"""Units in the last place; 10 found on an H200. A product may double them, and rounds twice: ``kMargin`` is 24."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both forms, compiled."""
    made = Path(tmp_path_factory.mktemp("lean"))
    job = CompileJob(name="lean", source=SOURCE, symbol="lean", include=(data_root("templates"),))

    def done(job: CompileJob, outcome: Outcome) -> None:
        assert outcome.status is Status.OK, outcome.log
        for name, path in outcome.files.items():
            path.rename(made / name)

    with tempfile.TemporaryDirectory(dir=made) as work:
        Nvcc("sm_90a").compile([job], Path(work), 1, done)
    return made


def evaluate(kernel: Kernel, arguments: Tensor, alpha: float) -> tuple[Tensor, Tensor, bool]:
    """(plain, lean) results as bits, every NaN as one pattern; and whether any rounding was in doubt.

    Demands of the approximation that it is near where its argument leaves no doubt, and rounds alike where none is
    left.
    """
    plain, lean, near, doubts = (torch.empty_like(arguments) for _ in range(4))
    kernel(arguments, plain, lean, near, doubts, alpha)
    plain, lean, near = one_nan(plain), one_nan(lean), one_nan(near)
    distance = (near.long() - lean.long()).abs()  # of unlike signs: huge
    assert int(torch.where(doubts & 1 == 0, distance, 0).max()) <= NEAR
    rounded = near.view(torch.float32).bfloat16(), lean.view(torch.float32).bfloat16()
    assert torch.equal(*(torch.where(doubts == 0, value.view(torch.int16), 0) for value in rounded))
    return plain, lean, bool((doubts >= 2).any())


def one_nan(bits: Tensor) -> Tensor:
    """Bits of fp32 values with every NaN the same: its payload is no part of a result."""
    return torch.where(bits.view(torch.float32).isnan(), 0x7FC00000, bits)


def samples() -> Tensor:
    """All signs and exponents with three mantissas, the neighbours of limits, and arguments that matter most."""
    patterns = torch.arange(1 << 9, dtype=torch.int64)[:, None] << 23 | torch.tensor([0, 1, 0x3FFFFF])
    limits = torch.tensor([16.6355, 32.0, 87.3365, 88.7228, 89.0, 104.0, 2.0**-23]).view(torch.int32).long()
    near = (limits[:, None] + torch.arange(-4, 5)).flatten()
    dense = torch.randn(3000, generator=torch.Generator().manual_seed(1)).mul(12).view(torch.int32).long()
    every = torch.cat((patterns.flatten(), near, near | 1 << 31, dense))
    return torch.where(every >= 1 << 31, every - (1 << 32), every).int()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_sampled_arguments_in_the_interpreter(folder: Path, alpha: float) -> None:
    kernel = InterpreterRunner(Target.SM_90A).load(folder, "lean")
    arguments = samples()
    plain, lean, doubted = evaluate(kernel, arguments, alpha)
    assert torch.equal(plain, lean)
    assert doubted
    x = arguments.view(torch.float32)
    value = torch.tensor(alpha, dtype=torch.float32)
    expected = silu(x) if alpha == 1.0 else scaled_silu(x, float(value))
    assert torch.equal(lean, one_nan(expected.view(torch.int32)))


@pytest.mark.gpu
@pytest.mark.parametrize("alpha", ALPHAS)
def test_all_arguments_on_a_gpu(folder: Path, alpha: float) -> None:
    kernel = load_entry(folder, "lean")
    step, doubts = 1 << 28, []
    for first in range(-(1 << 31), 1 << 31, step):
        arguments = torch.arange(first, first + step, dtype=torch.int32, device="cuda")
        plain, lean, doubted = evaluate(kernel, arguments, alpha)
        assert torch.equal(plain, lean), f"arguments from {first}"
        doubts.append(doubted)
    assert any(doubts)  # not all: large negative arguments are in doubt as such
