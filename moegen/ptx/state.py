"""State of a run: machine, clusters, CTAs, their memories and barriers."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from moegen.ptx.asyncs import AsyncEngine
from moegen.ptx.dtypes import LANE_IDS, LANES
from moegen.ptx.errors import ExecutionError, ParameterError
from moegen.ptx.memory import PARAM_WINDOW, RANK_SHIFT, SHARED_RESERVED, Block, GlobalMemory, MemoryFault
from moegen.ptx.options import Options
from moegen.ptx.program import Instruction, Symbol
from moegen.ptx.report import FATAL, Check, Report, Severity
from moegen.ptx.tmem import TensorMemory
from moegen.ptx.uniform import same
from moegen.ptx.warp import Warp

if TYPE_CHECKING:
    from moegen.ptx.kernel import Kernel
    from moegen.ptx.races import RaceDetector

_POISON = {1: 0xAD, 2: 0xDEAD, 4: 0xDEADBEEF, 8: 0xDEADBEEFDEADBEEF}
#: Shared memory that a CTA may use, bytes (opt-in limit of sm_90 and sm_100).
SHARED_LIMIT = 232448


class NamedBarrier:
    """A CTA barrier resource: arrivals of the current generation."""

    __slots__ = ("arrived", "clock", "expected", "generation", "parties", "reduction")

    def __init__(self) -> None:
        self.expected = 0
        self.arrived = 0
        self.generation = 0
        self.parties: list[int] = []
        self.reduction: list[Any] = []
        self.clock: Any = None


class Cta:
    """One thread block.

    Attributes:
        rank: index in its cluster.
        index: linear index in the grid.
        coordinates: ctaid x, y, z.
        shared: shared memory; byte 0 is shared address 0 (offsets below 0x400 are reserved).
        mbarriers: by offset in shared memory.
        barriers: named barriers 0 to 15.
        tmem: tensor memory.
    """

    def __init__(self, cluster: "Cluster", rank: int, coordinates: tuple[int, int, int], shared_bytes: int) -> None:
        grid = cluster.grid
        self.cluster = cluster
        self.grid = grid
        self.machine = grid.machine
        self.rank = rank
        self.coordinates = coordinates
        x, y, z = coordinates
        self.index = x + grid.shape[0] * (y + grid.shape[1] * z)
        size = (SHARED_RESERVED + shared_bytes + 31) // 32 * 32
        fill = np.random.Generator(np.random.SFC64(grid.machine.options.seed * 7919 + self.index))
        data = fill.integers(0, 256, size, np.uint8) if grid.machine.options.races else np.full(size, 0xFF, np.uint8)
        self.shared = Block(0, size, f"shared memory of CTA {self.index}", data)
        self.rank_base = rank << RANK_SHIFT if cluster.size > 1 else 0
        self.mbarriers: dict[int, Any] = {}
        self.barriers: dict[int, NamedBarrier] = {}
        self.tmem = TensorMemory(self)
        self.triggered = False
        self.jobs: dict[tuple[int, int], Any] = {}
        self.alive = 0
        self.warps: list[Warp] = []

    def start(self) -> None:
        """Creates the warps."""
        threads = self.grid.threads
        for index in range((threads + LANES - 1) // LANES):
            self.warps.append(Warp(self.grid.kernel, self, index, threads - index * LANES))
        self.alive = len(self.warps)

    # -- constants of a warp ------------------------------------------------------------------------------------

    def slot_value(self, key: tuple[Any, ...], warp: Warp) -> Any:
        """Lane array for a slot of ``emit.Slots`` that differs between warps."""
        kind = key[0]
        if kind == "sink":
            return np.zeros(LANES, key[1])
        if kind == "special":
            return same(self._special(key[1], warp).astype(key[2]))
        symbol, addend, dtype = key[1], key[2], key[4]
        return same(np.full(LANES, self.symbol_address(symbol) + addend, np.uint64).astype(dtype))

    def symbol_address(self, symbol: Symbol) -> int:
        """Address of a variable in its own state space (parameters: generic)."""
        if symbol.space == "shared":
            offset = self.grid.dynamic_base if symbol.dynamic else self.grid.static_base + symbol.offset
            return self.rank_base | offset
        if symbol.space in {"global", "const"}:
            return self.grid.module_addresses[symbol.name]
        if symbol.space == "param":
            return PARAM_WINDOW | symbol.offset
        return symbol.offset

    def _special(self, name: str, warp: Warp) -> Any:
        head, _, axis = name.partition(".")
        grid, cluster = self.grid, self.cluster
        if axis:
            k = "xyz".index(axis)
            if head == "tid":
                thread = LANE_IDS.astype(np.int64) + warp.index * LANES
                bx, by, _ = grid.block
                return (thread % bx, thread // bx % by, thread // (bx * by))[k]
            value = {
                "ntid": grid.block[k],
                "ctaid": self.coordinates[k],
                "nctaid": grid.shape[k],
                "cluster_ctaid": self.coordinates[k] % cluster.shape[k],
                "cluster_nctaid": cluster.shape[k],
                "clusterid": self.coordinates[k] // cluster.shape[k],
                "nclusterid": grid.shape[k] // cluster.shape[k],
            }[head]
            return np.full(LANES, value, np.int64)
        one = np.uint64(1)
        lanes = LANE_IDS.astype(np.uint64)
        masks = {
            "lanemask_eq": one << lanes,
            "lanemask_lt": (one << lanes) - one,
            "lanemask_le": (one << (lanes + one)) - one,
            "lanemask_gt": np.uint64(0xFFFFFFFF) & ~((one << (lanes + one)) - one),
            "lanemask_ge": np.uint64(0xFFFFFFFF) & ~((one << lanes) - one),
        }
        if name in masks:
            return masks[name]
        if name == "laneid":
            return lanes
        value = {
            "warpid": warp.index,
            "nwarpid": 64,
            "smid": self.index % 132,
            "nsmid": 132,
            "gridid": grid.number,
            "cluster_ctarank": self.rank,
            "cluster_nctarank": cluster.size,
            "is_explicit_cluster": int(cluster.size > 1),
            "dynamic_smem_size": grid.dynamic_bytes,
            "total_smem_size": grid.shared_bytes,
            "aggr_smem_size": grid.shared_bytes,
        }.get(name)
        if value is None:
            raise ParameterError(f"special register %{name} has no value in an expression; only mov reads it")
        return np.full(LANES, value, np.int64)

    # -- shared memory ------------------------------------------------------------------------------------------

    def resolve(self, address: int, space: str = "shared::cluster") -> "tuple[Cta, int]":
        """CTA and offset that a shared address names.

        Raises:
            MemoryFault: no such CTA, or another CTA's memory through ``shared::cta``.
        """
        rank, offset = address >> RANK_SHIFT, address & ((1 << RANK_SHIFT) - 1)
        if self.cluster.size == 1 and rank == 0:
            return self, offset
        if rank >= self.cluster.size:
            raise MemoryFault("out-of-bounds", f"shared address {address:#x} names CTA {rank} of the cluster", address)
        if space == "shared::cta" and rank != self.rank:
            raise MemoryFault("out-of-bounds", f"shared::cta address {address:#x} lies in CTA {rank}", address)
        return self.cluster.ctas[rank], offset

    def barrier(self, number: int) -> NamedBarrier:
        """A named barrier."""
        if number not in self.barriers:
            self.barriers[number] = NamedBarrier()
        return self.barriers[number]


class Cluster:
    """CTAs that run together; one CTA without a cluster launch."""

    def __init__(self, grid: "Grid", shape: tuple[int, int, int], origin: tuple[int, int, int]) -> None:
        self.grid = grid
        self.shape = shape
        self.size = shape[0] * shape[1] * shape[2]
        self.arrived: set[tuple[int, int]] = set()
        self.generation = 0
        self.clock: Any = None
        self.ctas = []
        for rank in range(self.size):
            place = (rank % shape[0], rank // shape[0] % shape[1], rank // (shape[0] * shape[1]))
            at = (origin[0] + place[0], origin[1] + place[1], origin[2] + place[2])
            self.ctas.append(Cta(self, rank, at, grid.shared_bytes))
        for cta in self.ctas:
            cta.start()


class Grid:
    """One launch.

    Attributes:
        kernel: what runs.
        shape, block: CTAs and threads per dimension.
        params: parameter block.
        static_base, dynamic_base: shared offsets of the static and dynamic areas.
        registers: what every warp starts from.
        varying: slots that each warp fills itself, with their keys.
        finished: CTAs so far.
    """

    def __init__(
        self,
        machine: "Machine",
        kernel: "Kernel",
        *,
        shape: tuple[int, int, int],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int],
        dynamic_bytes: int,
        params: bytes,
        module_addresses: dict[str, int],
        number: int = 0,
        programmatic: bool = False,
    ) -> None:
        entry = kernel.entry
        self.machine = machine
        self.kernel = kernel
        self.shape, self.block, self.cluster_shape = shape, block, cluster
        self.threads = block[0] * block[1] * block[2]
        self.params = np.frombuffer(bytes(params) + bytes(64), np.uint8)
        self.param_block = Block(0, entry.param_bytes, "the parameter block", np.array(self.params))
        self.module_addresses = module_addresses
        self.number = number
        self.programmatic = programmatic
        self.static_base = SHARED_RESERVED
        align = max(entry.shared_align, 16)
        self.static_base = (SHARED_RESERVED + align - 1) // align * align if entry.shared_size else SHARED_RESERVED
        self.dynamic_base = (self.static_base + entry.shared_size + align - 1) // align * align
        self.dynamic_bytes = dynamic_bytes
        self.shared_bytes = self.dynamic_base + dynamic_bytes - SHARED_RESERVED
        self.registers = self._first_registers()
        slots = enumerate(kernel.slots.keys, kernel.slots.base)
        self.varying = [(slot, key) for slot, key in slots if key[0] != "const"]
        counts = tuple(s // c for s, c in zip(shape, cluster, strict=True))
        self.total = shape[0] * shape[1] * shape[2]
        self.queue = [
            (x * cluster[0], y * cluster[1], z * cluster[2])
            for z in range(counts[2])
            for y in range(counts[1])
            for x in range(counts[0])
        ]
        self.queue.reverse()
        self.running: list[Cluster] = []
        self.finished = 0
        self.counts: dict[int, np.ndarray] = {}
        self.primary: Grid | None = None

    def _first_registers(self) -> list[Any]:
        """What every warp starts from: garbage in registers, and the constants."""
        poison: dict[str, Any] = {}
        registers: list[Any] = []
        for kind in self.kernel.entry.registers:
            if kind.name not in poison:
                raw = _POISON.get(kind.nbytes, 0) if kind.kind != "p" else 0
                poison[kind.name] = same(np.full(LANES, raw, kind.store))
            registers.append(poison[kind.name])
        for key in self.kernel.slots.keys:
            registers.append(same(np.full(LANES, key[1], key[2])) if key[0] == "const" else None)
        return registers

    @property
    def complete(self) -> bool:
        """Whether every CTA has finished."""
        return self.finished == self.total

    def trigger(self, cta: Cta) -> None:
        """A CTA lets dependent grids start."""
        if not cta.triggered:
            cta.triggered = True
            self.machine.events += 1

    def triggered_all(self) -> bool:
        """Whether every CTA has exited or let dependents start."""
        return not self.queue and all(cta.triggered or not cta.alive for c in self.running for cta in c.ctas)

    def add_counts(self, warp: Warp) -> None:
        """Adds a finished warp's execution counts to those of its warp index."""
        total = self.counts.setdefault(warp.index, np.zeros(len(warp.counts), np.int64))
        total += np.array(warp.counts, np.int64)


class Machine:
    """Everything that one run of one or more launches shares.

    Attributes:
        reports: findings so far, merged per place.
        events: counts changes that could let a waiting warp go on; used to tell a deadlock.
    """

    def __init__(self, options: Options, memory: GlobalMemory) -> None:
        self.options = options
        self.memory = memory
        self.rng = random.Random(options.seed)
        self.engine = AsyncEngine(options.policy, self.rng)
        self.events = 0
        self.steps = 0
        self.serial = 0
        self.bytes_moved: dict[str, int] = {}
        self.races: RaceDetector | None = None
        self.found: dict[tuple[Any, ...], Report] = {}

    @property
    def reports(self) -> list[Report]:
        """Findings, in order of first appearance."""
        return list(self.found.values())

    def tick(self) -> int:
        """A clock that moves with every reading and with work done."""
        self.events += 1
        return 1_000_000 + self.events + 32 * self.steps

    def next_serial(self) -> int:
        """A new number, to give an asynchronous operation a queue of its own."""
        self.serial += 1
        return self.serial

    def count_bytes(self, space: str, amount: int) -> None:
        """Adds to the bytes moved per memory space and direction."""
        self.bytes_moved[space] = self.bytes_moved.get(space, 0) + amount

    def report(
        self,
        check: Check,
        message: str,
        *,
        kernel: str = "",
        item: Instruction | None = None,
        cta: int = -1,
        warp: int = -1,
        lane: int = -1,
        address: int = -1,
    ) -> None:
        """Records a finding.

        Raises:
            ExecutionError: the check is fatal, or an error with ``stop_at_error``.
        """
        severity = self.options.severity_of(check)
        if severity is Severity.OFF:
            return
        line, text = (item.line, item.text) if item is not None else (0, "")
        report = Report(check, severity, message, kernel, line, text, cta, warp, lane, address)
        key = (check, kernel, line, text, warp if not line else 0)
        known = self.found.get(key)
        self.found[key] = replace(known, count=known.count + 1) if known else report
        if severity is Severity.ERROR and (check in FATAL or self.options.stop_at_error):
            raise ExecutionError(str(report), report=report)

    def fault(self, w: Warp, check: Check, message: str, lane: int = -1, address: int = -1) -> None:
        """Records a finding at a warp's current instruction; raises like :meth:`report`."""
        items = w.kernel.items
        item = items[w.pc] if w.pc < len(items) else None
        self.report(
            check,
            message,
            kernel=w.kernel.entry.name,
            item=item,
            cta=w.cta.index,
            warp=w.index,
            lane=lane,
            address=address,
        )
