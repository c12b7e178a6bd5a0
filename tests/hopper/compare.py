"""Runs one kernel on the GPU over poisoned outputs and compares every byte with the reference op."""

import torch
from hopper.cases import HopperCase, public
from kernels.compare import Buffers, check_written, make_call
from torch import Tensor

from moegen.codegen.catalogs.sm90 import CATALOG
from moegen.codegen.context import entry_arguments
from moegen.codegen.variant import Variant
from moegen.core.abi import Argument
from moegen.core.enums import Target
from moegen.core.runner import Kernel
from moegen.numerics.reference import run_op


def parameters(variant: Variant) -> tuple[Argument, ...]:
    """What a kernel's entry takes, scratch included."""
    return entry_arguments(variant.op, Target.SM_90A, CATALOG.scratch(variant.op, variant.schedule))


def launch(kernel: Kernel, variant: Variant, case: HopperCase, given: Buffers, byte: int) -> dict[str, Tensor]:
    """Calls a kernel; returns on the CPU what it wrote or updated. Inputs and scratch must come out unchanged."""
    scratch = CATALOG.scratch(variant.op, variant.schedule).fixed
    call = make_call(
        parameters(variant),
        given,
        case.dims(),
        first_expert=case.first_expert,
        byte=byte,
        scratch_bytes=scratch,
        place=Tensor.cuda,
    )
    kernel(*call.values)
    torch.cuda.synchronize()
    call.check_kept(variant.op.kind.value)
    return {name: tensor.cpu() for name, tensor in call.written.items()}


def check_op(kernel: Kernel, variant: Variant, case: HopperCase, given: Buffers, *, byte: int = 0xFF) -> None:
    """Launches, then demands the reference's bytes where the ABI defines them, and untouched bytes elsewhere."""
    op = variant.op
    written = launch(kernel, variant, case, given, byte)
    expected = run_op(public(op), given, first_expert=case.first_expert)
    if "y_acc" in written:  # atomic adds: any order
        found, wanted = written.pop("y_acc"), expected.pop("y_acc")
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-4)
    check_written(op, parameters(variant), given, written, expected, byte)
