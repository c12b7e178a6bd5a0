"""Loading PTX and launching its entries: the public face of the interpreter."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moegen.ptx import uniform
from moegen.ptx.blas import single_threaded
from moegen.ptx.errors import ExecutionError, ParameterError
from moegen.ptx.kernel import Kernel, base_namespace
from moegen.ptx.memory import GlobalMemory
from moegen.ptx.options import Options
from moegen.ptx.parser import parse
from moegen.ptx.program import Entry
from moegen.ptx.races import RaceDetector
from moegen.ptx.report import Report, Severity
from moegen.ptx.scheduler import Scheduler
from moegen.ptx.state import SHARED_LIMIT, Grid, Machine
from moegen.ptx.stats import Stats, collect, flag_approximations

Dim = int | Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of an entry.

    Attributes:
        entry: entry name.
        grid, block, cluster: CTAs, threads and CTAs per cluster, per dimension.
        dynamic_smem: bytes of dynamic shared memory.
        params: parameter block, laid out as the entry declares it.
        programmatic: launched with programmatic stream serialisation (may start before its predecessor ends).
        cooperative: all CTAs are resident at once.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    dynamic_smem: int = 0
    params: bytes = b""
    programmatic: bool = False
    cooperative: bool = False


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        stats: instruction and byte counts.
        reports: findings, errors first.
    """

    stats: Stats
    reports: list[Report] = field(default_factory=list)

    @property
    def errors(self) -> list[Report]:
        """Findings of severity error."""
        return [r for r in self.reports if r.severity is Severity.ERROR]


def dim3(value: Dim, what: str) -> tuple[int, int, int]:
    """A launch dimension as three positive numbers.

    Raises:
        ParameterError: not one to three positive integers.
    """
    items = [value] if isinstance(value, int) else [int(v) for v in value]
    if not 1 <= len(items) <= 3 or any(v < 1 for v in items):
        raise ParameterError(f"{what} {value}: one to three positive numbers are needed")
    items += [1] * (3 - len(items))
    return (items[0], items[1], items[2])


class Module:
    """A loaded PTX module.

    Attributes:
        program: as parsed.
        memory: global memory: module variables and whatever launches registered.
    """

    def __init__(self, text: str, name: str = "<ptx>") -> None:
        self.program = parse(text, name)
        self.name = name
        namespace = base_namespace()
        self.kernels = {entry: Kernel(item, name, namespace) for entry, item in self.program.entries.items()}
        self.memory = GlobalMemory()
        self.addresses: dict[str, int] = {}
        for variable in self.program.variables:
            # Over-allocated so that any declared alignment can be met.
            room = np.zeros(len(variable.data) + 512, np.uint8)
            start = -room.ctypes.data % 512
            room[start : start + len(variable.data)] = np.frombuffer(variable.data, np.uint8)
            self.addresses[variable.symbol.name] = room.ctypes.data + start
            self.memory.register(room.ctypes.data + start, len(variable.data), variable.symbol.name, keep=room)

    @property
    def entries(self) -> list[str]:
        """Names of the kernels."""
        return list(self.kernels)

    def kernel(self, entry: str) -> Kernel:
        """A kernel by name.

        Raises:
            ParameterError: no such entry.
        """
        if entry not in self.kernels:
            raise ParameterError(f"no entry {entry!r}", self.name, f"entries: {', '.join(self.kernels) or 'none'}")
        return self.kernels[entry]

    def pack(self, entry: str, args: Iterable[Any]) -> bytes:
        """Parameter block of arguments: arrays give their address, numbers are stored at the parameter's size.

        NumPy arrays are registered as global memory; ``bytes`` are copied as they are.

        Raises:
            ParameterError: wrong number or size of arguments.
        """
        info = self.kernel(entry).entry
        values = list(args)
        if len(values) != len(info.params):
            raise ParameterError(f"{entry} takes {len(info.params)} parameters, {len(values)} were given", self.name)
        block = bytearray(info.param_bytes)
        for param, value in zip(info.params, values, strict=True):
            piece = self._piece(value, param.size, f"{entry}: parameter {param.name}")
            block[param.offset : param.offset + param.size] = piece
        return bytes(block)

    def _piece(self, value: Any, size: int, where: str) -> bytes:
        if isinstance(value, np.ndarray):
            if size != 8:
                raise ParameterError(f"an array for a parameter of {size} bytes", where)
            base = value.ctypes.data
            self.memory.register(base, value.nbytes, f"array {value.dtype}{list(value.shape)}", keep=value)
            return struct.pack("<Q", base)
        if isinstance(value, np.generic):
            raw = value.tobytes()
        elif isinstance(value, bytes | bytearray):
            raw = bytes(value)
        elif isinstance(value, bool | int):
            if not -(1 << (8 * size - 1)) <= value < (1 << (8 * size)):
                raise ParameterError(f"{value} does not fit {size} bytes", where)
            raw = (int(value) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        elif isinstance(value, float):
            if size not in (4, 8):
                raise ParameterError(f"a float for a parameter of {size} bytes", where)
            raw = struct.pack("<f" if size == 4 else "<d", value)
        else:
            raise ParameterError(f"cannot pass {type(value).__name__}", where)
        if len(raw) != size:
            raise ParameterError(f"{len(raw)} bytes for a parameter of {size} bytes", where)
        return raw

    def launch(
        self,
        entry: str,
        *,
        grid: Dim,
        block: Dim,
        args: Iterable[Any] = (),
        cluster: Dim = 1,
        dynamic_smem: int = 0,
        options: Options | None = None,
    ) -> Result:
        """Runs one kernel to completion.

        Args:
            entry: kernel name.
            grid, block, cluster: as for a CUDA launch.
            args: one per parameter; see :meth:`pack`.
            dynamic_smem: bytes of dynamic shared memory.
            options: schedule, checks, numerics.

        Raises:
            ParameterError: the launch does not fit the entry.
            ExecutionError: a finding that stops the run.
        """
        item = Launch(
            entry=entry,
            grid=dim3(grid, "grid"),
            block=dim3(block, "block"),
            cluster=dim3(cluster, "cluster"),
            dynamic_smem=dynamic_smem,
            params=self.pack(entry, args),
        )
        return self.run([item], options)

    def run(self, launches: Sequence[Launch], options: Options | None = None) -> Result:
        """Runs launches of this module in stream order."""
        return run_launches([(self, item) for item in launches], options or Options(), self.memory)


def check_launch(entry: Entry, item: Launch) -> tuple[int, int, int]:
    """Checks a launch against an entry; returns the cluster shape.

    Raises:
        ParameterError: a limit or a directive is violated.
    """
    where = entry.name
    if len(item.params) != entry.param_bytes:
        raise ParameterError(f"{len(item.params)} parameter bytes, {entry.param_bytes} are declared", where)
    threads = item.block[0] * item.block[1] * item.block[2]
    if threads > 1024:
        raise ParameterError(f"{threads} threads per block, at most 1024", where)
    if entry.reqntid is not None and tuple(item.block) != tuple(entry.reqntid):
        raise ParameterError(f"block {item.block}, .reqntid demands {entry.reqntid}", where)
    if entry.maxntid is not None and threads > entry.maxntid[0] * entry.maxntid[1] * entry.maxntid[2]:
        raise ParameterError(f"{threads} threads per block, .maxntid allows {entry.maxntid}", where)
    cluster = item.cluster
    if entry.cluster is not None:
        if cluster not in ((1, 1, 1), tuple(entry.cluster)):
            raise ParameterError(f"cluster {cluster}, .reqnctapercluster demands {entry.cluster}", where)
        cluster = (entry.cluster[0], entry.cluster[1], entry.cluster[2])
    if cluster[0] * cluster[1] * cluster[2] > 16:
        raise ParameterError(f"cluster {cluster} has more than 16 CTAs", where)
    if any(g % c for g, c in zip(item.grid, cluster, strict=True)):
        raise ParameterError(f"grid {item.grid} is no multiple of cluster {cluster}", where)
    if entry.shared_size + item.dynamic_smem > SHARED_LIMIT:
        raise ParameterError(
            f"{entry.shared_size + item.dynamic_smem} bytes of shared memory, limit {SHARED_LIMIT}", where
        )
    return cluster


def run_launches(items: Sequence[tuple[Module, Launch]], options: Options, memory: GlobalMemory) -> Result:
    """Runs launches in stream order on one machine.

    Args:
        items: module and launch, in order.
        options: of the run.
        memory: global memory that all of them see.
    """
    uniform.begin()
    if any(item.cooperative for _, item in items):
        options = replace(options, resident_clusters=0)
    machine = Machine(options, memory)
    if options.races:
        granule = min((module.kernel(item.entry).granule("global") for module, item in items), default=4)
        machine.races = RaceDetector(machine, granule)
    grids = []
    for number, (module, item) in enumerate(items):
        kernel = module.kernel(item.entry)
        cluster = check_launch(kernel.entry, item)
        grids.append(
            Grid(
                machine,
                kernel,
                shape=item.grid,
                block=item.block,
                cluster=cluster,
                dynamic_bytes=item.dynamic_smem,
                params=item.params,
                module_addresses=module.addresses,
                number=number,
                programmatic=item.programmatic,
            )
        )
    with np.errstate(all="ignore"), single_threaded():
        try:
            Scheduler(machine, grids).run()
            flag_approximations(machine, grids)
        except ExecutionError as error:
            error.reports = machine.reports
            raise
    reports = sorted(machine.reports, key=lambda r: r.severity is not Severity.ERROR)
    return Result(collect(machine, grids), reports)


def load(text: str, name: str = "<ptx>") -> Module:
    """Loads PTX text: parses it and lowers every instruction of every entry.

    Raises:
        PtxSyntaxError: not PTX, or truncated.
        UnsupportedTarget: version or target outside what is implemented.
        UnknownInstruction: an instruction that is not implemented, with line and text.
        OperandError: operands that do not fit their instruction.
    """
    return Module(text, name)


def load_many(texts: Mapping[str, str]) -> dict[str, Module]:
    """Loads several modules; the result maps entry names to the module that holds them.

    Raises:
        ParameterError: two modules define the same entry.
    """
    found: dict[str, Module] = {}
    for name, text in texts.items():
        module = load(text, name)
        for entry in module.entries:
            if entry in found:
                raise ParameterError(f"entry {entry} is defined in {found[entry].name} and {name}")
            found[entry] = module
    return found
