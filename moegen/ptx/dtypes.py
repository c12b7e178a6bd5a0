"""PTX fundamental types: width, class, NumPy storage.

Registers are stored as unsigned integers of their width, one element per lane (``.pred`` as bool): a value has one
representation, and instructions reinterpret it with ``.view``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

LANES = 32
#: One value per lane.
Lane = NDArray[np.generic]
Mask = NDArray[np.bool_]

ALL: Mask = np.ones(LANES, np.bool_)
ALL.flags.writeable = False
LANE_IDS = np.arange(LANES, dtype=np.uint32)
LANE_IDS.flags.writeable = False


@dataclass(frozen=True)
class PtxType:
    """One fundamental type.

    Attributes:
        name: without the dot, such as ``u32``.
        kind: ``u``, ``s``, ``f``, ``b`` or ``p`` (predicate).
        bits: width of a register of this type.
        store: NumPy type a register is kept in.
        view: NumPy type that arithmetic sees, where NumPy has one.
    """

    name: str
    kind: str
    bits: int
    store: DTypeLike
    view: DTypeLike

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.bits // 8


def _table() -> dict[str, PtxType]:
    table = {"pred": PtxType("pred", "p", 1, np.bool_, np.bool_)}
    for bits in (8, 16, 32, 64):
        unsigned, signed = np.dtype(f"u{bits // 8}"), np.dtype(f"i{bits // 8}")
        table[f"b{bits}"] = PtxType(f"b{bits}", "b", bits, unsigned, unsigned)
        table[f"u{bits}"] = PtxType(f"u{bits}", "u", bits, unsigned, unsigned)
        table[f"s{bits}"] = PtxType(f"s{bits}", "s", bits, unsigned, signed)
    for bits in (16, 32, 64):
        table[f"f{bits}"] = PtxType(f"f{bits}", "f", bits, np.dtype(f"u{bits // 8}"), np.dtype(f"f{bits // 8}"))
    table["bf16"] = PtxType("bf16", "f", 16, np.dtype("u2"), np.dtype("u2"))
    for name, bits in (("f16x2", 32), ("bf16x2", 32), ("f32x2", 64), ("u16x2", 32), ("s16x2", 32)):
        table[name] = PtxType(name, "b", bits, np.dtype(f"u{bits // 8}"), np.dtype(f"u{bits // 8}"))
    # Complex numbers are the 16-byte elements that NumPy gathers and selects fastest; they are moved, never added.
    table["b128"] = PtxType("b128", "b", 128, np.dtype("c16"), np.dtype("c16"))
    return table


TYPES = _table()
