"""Runs a case in the interpreter."""

from typing import Any

import numpy as np

from benchmarks.ptx.h200_proof.scalar import Case
from moegen.ptx import Module, Options, load, tensormap

_MODULES: dict[int, Module] = {}


def encoded(case: Case, address_of: dict[int, int]) -> dict[int, bytes]:
    """Tensor maps of a case by argument index, for arrays at given addresses."""
    found = {}
    for argument, (array, fields) in case.maps.items():
        ones = (1,) * len(fields["dims"])
        item = tensormap.TensorMap(
            address_of[array],
            fields["format"],
            fields["dims"],
            fields["strides"],
            fields["box"],
            ones,
            fields["swizzle"],
        )
        found[argument] = tensormap.encode(item)
    return found


def aligned_copy(data: Any) -> Any:
    """A copy at a 256-byte boundary, as a device allocation has it."""
    room = np.zeros(data.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    view = room[start : start + data.nbytes].view(data.dtype)
    view[:] = data
    return view


def run(case: Case, options: Options | None = None) -> dict[int, Any]:
    """Results by argument index."""
    if hash(case.text) not in _MODULES:
        _MODULES[hash(case.text)] = load(case.text, case.name)
    module = _MODULES[hash(case.text)]
    arrays = {k: aligned_copy(v) for k, v in enumerate(case.args) if isinstance(v, np.ndarray)}
    maps = encoded(case, {k: v.ctypes.data for k, v in arrays.items()})
    count = len(module.kernel(case.entry).entry.params)
    args = [maps.get(k, arrays.get(k, case.args[k])) for k in range(count)]
    for k, array in arrays.items():
        module.memory.register(array.ctypes.data, array.nbytes, f"argument {k}", keep=array)
    module.launch(
        case.entry,
        grid=case.grid,
        block=case.block,
        cluster=case.cluster,
        args=args,
        dynamic_smem=case.smem,
        options=options,
    )
    return {k: arrays[k] for k in case.outputs}
