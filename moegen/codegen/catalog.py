"""What a target offers: schedules per op, whether each is legal and why not, and about how long it takes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from moegen.codegen.load import Load
from moegen.codegen.schedule import Schedule, ScheduleFamily, Value
from moegen.core.devices import DeviceFacts
from moegen.core.enums import ActFormat, OpKind, ScaleLayout, Target
from moegen.core.errors import SpecError
from moegen.core.ops import OpSpec

#: What a spec asks of a target: field name to the values to consider, ``tile`` to joint values; None is ``auto``.
Choice = Mapping[str, tuple[Value | Mapping[str, Value], ...]] | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Legal, or the predicate that forbids a schedule, with its reason and the numbers that were compared."""

    predicate: str = ""
    reason: str = ""
    numbers: tuple[tuple[str, int | float], ...] = ()

    @property
    def legal(self) -> bool:
        """True when no predicate failed."""
        return not self.predicate

    def __str__(self) -> str:
        if self.legal:
            return "legal"
        numbers = ", ".join(f"{name} = {value}" for name, value in self.numbers)
        return f"{self.predicate}: {self.reason}" + (f" ({numbers})" if numbers else "")


LEGAL = Verdict()


def illegal(predicate: str, reason: str, **numbers: int | float) -> Verdict:
    """A refusal; ``numbers`` are printed in the order given."""
    return Verdict(predicate=predicate, reason=reason, numbers=tuple(numbers.items()))


#: Returns a refusal, or LEGAL when it has no objection.
Predicate = Callable[[OpSpec, Schedule, DeviceFacts], Verdict]


def judge(predicates: Iterable[Predicate], op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """The first refusal among ``predicates``, or LEGAL."""
    for predicate in predicates:
        verdict = predicate(op, schedule, device)
        if not verdict.legal:
            return verdict
    return LEGAL


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """Bytes of scratch a kernel needs: ``fixed + per_row * R``, zero before its first launch and left zeroed."""

    fixed: int = 0
    per_row: int = 0

    @property
    def any(self) -> bool:
        """True when the entry takes a scratch argument."""
        return self.fixed > 0 or self.per_row > 0


class Catalog(Protocol):
    """One target's offer. Implementations are stateless values; the module exports one as ``CATALOG``.

    gemm1, gemm2, route, gather and quantize of one pipeline share ``OpSpec.row_tile``: the planner walks
    :meth:`row_tiles`, builds the ops of each pipeline with it, and asks for schedules that serve exactly that op.
    """

    @property
    def target(self) -> Target:
        """The target whose schedules these are."""
        ...

    def families(self, kind: OpKind) -> tuple[ScheduleFamily, ...]:
        """Schedule families that can serve an op of ``kind``; empty when the target has no such op."""
        ...

    def row_tiles(self, choice: Choice, act_format: ActFormat) -> tuple[int, ...]:
        """Values of ``OpSpec.row_tile`` to consider for rows of ``act_format``, rising.

        Raises:
            SpecError: the choice names a field or a value that this target does not have.
        """
        ...

    def gather_forms(self) -> tuple[bool, ...]:
        """Forms of a W4A16 gemm1, the preferred one first: True (``OpSpec.gather``) reads ``x`` through ``row_slot``,
        False reads the ``x_rows`` that a ``gather`` op wrote."""
        ...

    def rows_layouts(self, act_format: ActFormat) -> tuple[str, ...]:
        """Orders of ``x_rows`` and ``h_rows`` (``OpSpec.rows_layout``) that whole pipelines can use, ``""`` = plain."""
        ...

    def decoded_forms(self) -> tuple[bool, ...]:
        """Forms of W4A4 rows between a quantising op and a gemm (``OpSpec.decoded``), the preferred one first."""
        ...

    def scale_layout(self, declared: ScaleLayout) -> ScaleLayout:
        """Order of block scales, of rows and of weights, that kernels read where a spec declares ``declared``.

        Only kernels of the layer see block scales, so a target may have one order that its tensor cores need."""
        ...

    def weight_packs(self, op: OpSpec) -> tuple[str, ...]:
        """Weight packs a gemm of this target can read (``op.weight_pack`` is ignored), the preferred one first."""
        ...

    def pack_bytes(self, op: OpSpec) -> int:
        """Bytes of one layer's weights (codes and scales, padding included) in ``op.weight_pack``; gemms only."""
        ...

    def schedules(self, op: OpSpec, device: DeviceFacts, choice: Choice) -> tuple[Schedule, ...]:
        """Every schedule to judge for ``op``, illegal ones included, in a deterministic order.

        Raises:
            SpecError: the choice names a field that this target does not have.
        """
        ...

    def verdict(self, op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
        """Whether the schedule can serve the op on such a device."""
        ...

    def time_us(self, op: OpSpec, schedule: Schedule, device: DeviceFacts, load: Load) -> float:
        """Modelled microseconds of one launch; ranks candidates only."""
        ...

    def template(self, op: OpSpec, schedule: Schedule) -> str:
        """Template file below ``templates/``, for example ``cpu/gemm.cc.j2``; its middle suffix names the language."""
        ...

    def includes(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        """Device library files the template includes, below ``templates/``, in order."""
        ...

    def scratch(self, op: OpSpec, schedule: Schedule) -> Scratch:
        """Scratch of one launch."""
        ...

    def most_tokens(self, op: OpSpec, schedule: Schedule) -> int | None:
        """Most tokens of a call; None when any number will do. Pipelines of limited ops never serve more."""
        ...

    def options(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        """Compile options beyond the toolchain's own, ordered; no paths."""
        ...


def chosen_values(
    family: ScheduleFamily, auto: Mapping[str, tuple[Value, ...]], choice: Choice
) -> tuple[Mapping[str, tuple[Value, ...]], ...]:
    """Value lists to expand: ``auto`` with a spec's choice imposed, one mapping per joint ``tile`` entry.

    Raises:
        SpecError: the choice names a field that the family does not have, or a value of the wrong type.
    """
    if choice is None:
        return (auto,)
    fields = {field.name: field for field in family.fields}
    where = f"schedules.{family.target.value}"

    def checked(name: str, value: object) -> Value:
        if name not in fields:
            raise SpecError(f"unknown schedule field {name!r}", where, f"use one of {', '.join(fields)}, or tile")
        expected = {"int": int, "bool": bool, "str": str}[fields[name].type]
        if type(value) is not expected:
            raise SpecError(
                f"{value!r} is no {fields[name].type}", f"{where}.{name}", f"write a list of {fields[name].type}"
            )
        return cast(Value, value)

    base = dict(auto)
    tiles: list[Mapping[str, tuple[Value, ...]]] = []
    for name, values in choice.items():
        if name != "tile":
            base[name] = tuple(checked(name, value) for value in values)
    for tile in choice.get("tile", ()):
        if not isinstance(tile, Mapping):
            raise SpecError(f"{tile!r} is no tile", f"{where}.tile", "write a mapping of field names to numbers")
        tiles.append({name: (checked(name, value),) for name, value in tile.items()})
    return tuple({**base, **tile} for tile in tiles) or (base,)
