"""What single forms of the sm_100a gemms promise beyond right bytes."""

from collections import defaultdict
from dataclasses import replace

import pytest
from blackwell.grid import FIRST_AXES, GemmCase
from blackwell.workshop import Workshop
from kernels.cases import buffers
from kernels.compare import check_op

from moegen.core.enums import Epilogue
from moegen.ptx.options import Options, Policy, Step

BASE = {name: values[0] for name, values in FIRST_AXES.items()} | {"epilogue": Epilogue.COMPACT, "geometry": (272, 144)}
MMA_WARP = 4
WORK_DEPTH = 4
"""Items of the ring of work."""


class Trace:
    """How many of some instructions each warp of each CTA has executed, in order."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, str]] = []

    def __call__(self, step: Step) -> None:
        for opcode in ("tcgen05.mma", "tcgen05.ld", "griddepcontrol.wait"):
            if opcode in step.text:
                self.steps.append((step.cta, step.warp, opcode))

    def overlaps(self, multiplies: int, loads: int) -> bool:
        """Whether some CTA multiplies for a tile while a warp still has to read an accumulator of the tile before.

        A tile takes ``multiplies`` MMAs, and ``loads`` reads of each epilogue warp.
        """
        issued: dict[int, int] = defaultdict(int)
        read: dict[tuple[int, int], int] = defaultdict(int)
        for cta, warp, opcode in self.steps:
            if opcode == "tcgen05.mma":
                tile = issued[cta] // multiplies
                issued[cta] += 1
                if any(read[cta, other] < tile * loads for other in range(MMA_WARP)):
                    return True
            elif opcode == "tcgen05.ld":
                read[cta, warp] += 1
        return False


@pytest.mark.parametrize(("cols", "accumulators"), [(128, 1), (128, 2), (256, 2)])
def test_two_accumulators_let_the_next_tile_begin(cols: int, accumulators: int, blackwell_workshop: Workshop) -> None:
    """With one accumulator the tensor core waits for the last read of it; two of 256 columns share some."""
    case = GemmCase(BASE | {"form": "plain", "cols": cols, "k": 128, "acc_stages": accumulators, "bulk_stores": False})
    trace = Trace()
    kernel = blackwell_workshop.kernel(case.variant, (Options(policy=Policy.EAGER, trace=trace),))
    check_op(kernel, case.op, case.case, buffers(case.case))
    steps_of_depth = -(-272 // 128) * (128 // 64)
    assert trace.overlaps(multiplies=steps_of_depth, loads=cols // 32) == (accumulators == 2)


@pytest.mark.parametrize("form", ["plain", "swapped"])
def test_more_tiles_than_the_ring_of_work_holds(form: str, blackwell_workshop: Workshop) -> None:
    """One CTA takes every tile, so that the scheduler goes around its ring more than twice."""
    cols = 64 if form == "plain" else 8
    case = GemmCase(BASE | {"form": form, "cols": cols, "k": 256, "bulk_stores": False})
    schedule = case.schedule(1)
    batch = replace(case.case, routing="uniform", tokens=48)
    tiles = batch.dims()["TILES"] * -(-case.op.n // (cols if form == "plain" else 128))
    assert tiles > 2 * WORK_DEPTH
    kernel = blackwell_workshop.kernel(replace(case.variant, schedule=schedule))
    check_op(kernel, case.op, batch, buffers(batch))
