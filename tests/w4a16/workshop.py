"""Variants of the W4A16 family and its copies, and what the interpreter runs them with."""

import torch
from torch import Tensor

from moegen.codegen.catalogs.sm100 import CATALOGS
from moegen.codegen.schedule import Value
from moegen.codegen.variant import Variant
from moegen.core.devices import PLANNING_DEVICE
from moegen.core.enums import Target
from moegen.core.ops import OpSpec
from moegen.ptx import Options, Policy

#: One schedule finds races; in the other everything asynchronous is late.
SCHEDULES = (Options(seed=1, races=True), Options(policy=Policy.LAZY))


def variant_of(op: OpSpec, target: Target = Target.SM_100A, **schedule: Value) -> Variant:
    """An op with a schedule of the family that has these fields, which must be legal."""
    catalog = CATALOGS[target]
    names = set(schedule)
    family = next(item for item in catalog.families(op.kind) if {field.name for field in item.fields} == names)
    made = family.make(**schedule)
    verdict = catalog.verdict(op, made, PLANNING_DEVICE[target])
    assert verdict.legal, str(verdict)
    return Variant(op=op, schedule=made)


def aligned(tensor: Tensor) -> Tensor:
    """A copy at a 512-byte boundary, as a device allocates it."""
    room = torch.zeros(tensor.nbytes + 512, dtype=torch.uint8)
    start = -room.data_ptr() % 512
    return room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
