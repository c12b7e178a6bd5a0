"""Records our sm_90a kernels with the interpreter: ``python -m benchmarks.ptx.h200_own.record FOLDER``.

Each case is compiled as a package would, its host function is called, and the launches it makes are kept with the PTX
text, parameters, and memory before and after: one file a case, plus ``index.json``.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from hopper.workshop import Workshop  # noqa: E402
from kernels.cases import Case  # noqa: E402
from kernels.compare import DTYPES  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks.ptx.h200_own.cases import OwnCase, own_cases  # noqa: E402
from moegen.codegen.catalogs.sm90 import CATALOG  # noqa: E402
from moegen.codegen.context import entry_arguments  # noqa: E402
from moegen.codegen.render import render  # noqa: E402
from moegen.core.enums import Target  # noqa: E402
from moegen.ptx import Options  # noqa: E402
from moegen.ptx.record import Recording  # noqa: E402
from moegen.ptx.runner import InterpreterRunner  # noqa: E402

POISON = 0xFF


def _aligned(tensor: Tensor) -> Tensor:
    """A copy at a 512-byte boundary, as a device allocates it."""
    room = torch.zeros(tensor.nbytes + 512, dtype=torch.uint8)
    start = -room.data_ptr() % 512
    return room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _arguments(item: OwnCase) -> tuple[list[Tensor | int], list[str]]:
    """What the host function is called with (inputs, outputs full of 0xFF bytes, zeroed scratch), and their dtypes."""
    case: Case = item.case
    scratch = CATALOG.scratch(item.variant.op, item.variant.schedule)
    values: list[Tensor | int] = []
    dtypes: list[str] = []
    for argument in entry_arguments(item.variant.op, Target.SM_90A, scratch):
        dtypes.append(argument.dtype)
        if argument.dtype == "int":
            values.append(case.first_expert)
        elif argument.name == "scratch":
            values.append(_aligned(torch.zeros(scratch.fixed, dtype=torch.uint8)))
        elif argument.access == "write":
            tensor = torch.empty(case.dims().shape(argument), dtype=DTYPES[argument.dtype])
            tensor.view(torch.uint8).fill_(POISON)
            values.append(_aligned(tensor))
        else:
            values.append(_aligned(item.given[argument.name]))
    return values, dtypes


def main() -> None:
    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    workshop = Workshop(target / "build")
    workshop.folder.mkdir(exist_ok=True)
    index = []
    for item in own_cases():
        workshop.prepare([item.variant])
        directory = workshop.folder / render(item.variant, CATALOG).source.digest[:32]
        recording = Recording()
        runner = InterpreterRunner(Target.SM_90A, (Options(resident_clusters=0),), recorder=recording)
        values, dtypes = _arguments(item)
        runner.load(directory, item.variant.op.kind.value)(*values)
        recording.save(target / f"{item.name}.npz")
        index.append({"name": item.name, "variant": item.variant.name, "rule": item.rule, "dtypes": dtypes})
        count = sum(result.stats.instructions for result in runner.results)
        print(f"{item.name}: {len(recording.steps)} calls, {count} warp-instructions", flush=True)
    (target / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
