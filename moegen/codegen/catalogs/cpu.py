"""Schedules of the CPU target: how a grouped gemm is cut into tasks, panels and inner loops.

A gemm task is one tile of rows times ``cols`` weight rows. It decodes ``k_chunk`` elements of K at a time into fp32
panels and multiplies up to four rows by ``unroll`` weight rows in registers (``templates/cpu/device/gemm.h``). The
other ops stream rows and have nothing to choose.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from moegen.codegen.catalog import LEGAL, Choice, Predicate, Scratch, Verdict, chosen_values, illegal, judge
from moegen.codegen.cost import gemm_bytes, roofline_us, stream_bytes, wave_occupancy
from moegen.codegen.load import Load
from moegen.codegen.schedule import Schedule, ScheduleFamily, ScheduleField, Value, expand
from moegen.core.abi import BLOCK, code_pitch, round_up
from moegen.core.devices import DeviceFacts
from moegen.core.enums import ActFormat, ActScale, Epilogue, OpKind, ScaleLayout, Target
from moegen.core.errors import SpecError
from moegen.core.ops import OpSpec

PACK = "rows8"
"""The public weight pack: the only one that CPU kernels read."""
ROW_TILES = (1, 2, 4, 8, 16, 32)
ROW_GROUP = 4
"""Rows that the inner loop holds in registers (``Schedule::kRowGroup`` in gemm.h)."""

GEMMS = (OpKind.GEMM1, OpKind.GEMM2)
PANEL = ScheduleFamily(
    target=Target.CPU,
    name="panel",
    kinds=GEMMS,
    fields=(
        ScheduleField(name="rows", tag="r", doc="rows of a task, the layer's row tile"),
        ScheduleField(name="cols", tag="c", doc="weight rows of a task"),
        ScheduleField(name="k_chunk", tag="kc", doc="elements of K decoded at a time"),
        ScheduleField(name="unroll", tag="u", doc="weight rows that the inner loop multiplies at once"),
    ),
)
STREAM = ScheduleFamily(
    target=Target.CPU,
    name="stream",
    kinds=tuple(kind for kind in OpKind if kind not in (*GEMMS, OpKind.ARRANGE, OpKind.BLOCK)),
    fields=(),
)
AUTO: Mapping[str, tuple[Value, ...]] = {
    "rows": ROW_TILES,
    "cols": (16, 32, 64, 128),
    "k_chunk": (64, 128, 256, 512),
    "unroll": (1, 2, 4),
}
SMALLEST = {"cols": 16, "k_chunk": 64}
"""Tiles that are offered however small the matrix is."""

# Nanoseconds of one core of a 2.6 GHz x86-64 server (AVX2 code), measured at H = 2048, I = 768. They rank candidates;
# no report shows them.
DECODE_NS = 0.09
"""One E2M1 code times its scale, into a panel."""
MULTIPLY_NS: Mapping[tuple[int, int], float] = {
    (1, 1): 0.076,
    (1, 2): 0.060,
    (1, 4): 0.050,
    (2, 1): 0.056,
    (2, 2): 0.046,
    (2, 4): 0.038,
    (3, 1): 0.045,
    (3, 2): 0.036,
    (3, 4): 0.032,
    (4, 1): 0.039,
    (4, 2): 0.031,
    (4, 4): 0.030,
}
"""One multiply-add, by rows and weight rows held in registers."""
LANE_SUM_NS = 2.1
"""Adding up eight lanes of one sum, once a chunk."""
EPILOGUE_NS = 0.3
"""Everything after the sums, per weight row, in the modes that store the token dtype."""
FUSED_NS = 1.3
"""The same when the epilogue quantises."""
QUANTIZE_NS = 2.0
"""One value of a stand-alone quantiser."""
STACK_BYTES = 512 << 10
"""Most a task may keep on its thread's stack; OpenMP threads have a few MiB."""
COMMON = ("arguments.h", "ffi.h", "sizes.h", "token.h")
LIBRARY: Mapping[OpKind, tuple[str, ...]] = {
    OpKind.ROUTE: ("route.h",),
    OpKind.QUANTIZE: ("grouping.h", "quantize.h"),
    OpKind.GATHER: ("copy.h", "grouping.h", "tasks.h"),
    OpKind.GEMM1: ("activations.h", "copy.h", "gemm.h", "operands.h", "row_ops.h"),
    OpKind.DEINTERLEAVE: ("deinterleave.h", "grouping.h", "tasks.h"),
    OpKind.DEINTERLEAVE_QUANTIZE: ("grouping.h", "quantize.h"),
    OpKind.GEMM2: ("gemm.h", "operands.h", "row_ops.h"),
    OpKind.COMBINE: ("combine.h", "tasks.h"),
}


def serves_rows(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """Tile, pack and row order must be the op's."""
    if schedule.number("rows") != op.row_tile:
        return illegal(
            "row_tile", "rows is not the layer's row tile", rows=schedule.number("rows"), row_tile=op.row_tile
        )
    if op.weight_pack != PACK:
        return illegal("weight_pack", f"reads the public pack {PACK}, not {op.weight_pack or 'an unnamed one'}")
    if op.rows_layout:
        return illegal("rows_layout", f"reads and writes plain rows, not {op.rows_layout}")
    return LEGAL


def fits_loops(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """What the loops of gemm.h assume: whole row groups, whole 16-column steps, whole scale blocks, a bounded stack."""
    rows, cols, k_chunk, unroll = (schedule.number(name) for name in ("rows", "cols", "k_chunk", "unroll"))
    if rows < 1 or rows % min(rows, ROW_GROUP):
        return illegal("row_group", "rows beyond a row group must be whole groups", rows=rows, group=ROW_GROUP)
    if cols < BLOCK or cols % BLOCK:
        return illegal("cols", "cols must be a multiple of 16", cols=cols)
    if k_chunk < BLOCK or k_chunk % BLOCK:
        return illegal("k_chunk", "k_chunk must hold whole scale blocks", k_chunk=k_chunk, block=BLOCK)
    if unroll not in (1, 2, 4):
        return illegal(
            "unroll", "unroll must be 1, 2 or 4: four rows by four columns fill the register file", unroll=unroll
        )
    stack = 4 * ((rows + unroll) * k_chunk + rows * cols)
    if stack > STACK_BYTES:
        return illegal("stack", "panels and sums exceed a thread's stack budget", bytes=stack, limit=STACK_BYTES)
    return LEGAL


def whole_output_blocks(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """A fused quantiser needs whole blocks of 16 activated values in one task: 32 weight rows when gated."""
    needed = 2 * BLOCK if op.gated else BLOCK
    if op.epilogue is Epilogue.FUSED_FP4 and schedule.number("cols") % needed:
        return illegal(
            "output_block",
            "a block of 16 activated values must come from one task",
            cols=schedule.number("cols"),
            needed=needed,
        )
    return LEGAL


def not_redundant(op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
    """A tile whose half already covers the matrix differs from it in unused stack only. The smallest one stays."""
    for name, size in (("cols", op.n), ("k_chunk", op.k)):
        value = schedule.number(name)
        if value // 2 >= size and value > SMALLEST[name]:
            return illegal("redundant", f"half of this {name} already covers the matrix", **{name: value}, size=size)
    return LEGAL


PREDICATES: tuple[Predicate, ...] = (serves_rows, fits_loops, whole_output_blocks, not_redundant)


@dataclass(frozen=True)
class CpuCatalog:
    """What the CPU target offers; see :class:`moegen.codegen.catalog.Catalog`."""

    @property
    def target(self) -> Target:
        """Always the CPU."""
        return Target.CPU

    def families(self, kind: OpKind) -> tuple[ScheduleFamily, ...]:
        """One family: panels for the gemms, streams for the rest; no op computes a whole layer."""
        return tuple(family for family in (PANEL, STREAM) if kind in family.kinds)

    def row_tiles(self, choice: Choice, act_format: ActFormat) -> tuple[int, ...]:
        """Row tiles that ``choice`` leaves, rising; raises SpecError as :func:`chosen_values`."""
        found = {value for values in chosen_values(PANEL, AUTO, choice) for value in values["rows"]}
        tiles = tuple(sorted(value for value in found if type(value) is int and value > 0))
        if len(tiles) != len(found):
            raise SpecError(
                f"rows {sorted(map(str, found))} hold no row tile", "schedules.cpu.rows", "use positive numbers"
            )
        return tiles

    def gather_forms(self) -> tuple[bool, ...]:
        """A gemm1 that reads ``x`` through ``row_slot``: a gather of its own only adds traffic on a CPU."""
        return (True,)

    def rows_layouts(self, act_format: ActFormat) -> tuple[str, ...]:
        """Plain rows only."""
        return ("",)

    def decoded_forms(self) -> tuple[bool, ...]:
        """Codes and scales alone."""
        return (False,)

    def scale_layout(self, declared: ScaleLayout) -> ScaleLayout:
        """Either, as declared."""
        return declared

    def weight_packs(self, op: OpSpec) -> tuple[str, ...]:
        """The public pack alone."""
        return (PACK,)

    def pack_bytes(self, op: OpSpec) -> int:
        """Codes with their pitch and scales with their layout's padding, of all experts."""
        swizzled = op.weight_scale_layout is ScaleLayout.SWIZZLE_128X4
        columns = op.k // BLOCK
        scales = round_up(op.n, 128) * round_up(columns, 4) if swizzled else op.n * columns
        return op.experts * (op.n * code_pitch(op.k) + scales)

    def schedules(self, op: OpSpec, device: DeviceFacts, choice: Choice) -> tuple[Schedule, ...]:
        """Every combination of the considered values at the op's row tile; raises SpecError on an unknown field."""
        considered = chosen_values(PANEL, AUTO, choice)
        if op.kind not in GEMMS:
            return (STREAM.make(),)
        fixed: Mapping[str, Value] = {"rows": op.row_tile}
        serving = [values for values in considered if op.row_tile in values["rows"]]
        found = [schedule for values in serving for schedule in expand(PANEL, values, fixed)]
        return tuple(dict.fromkeys(found))

    def verdict(self, op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
        """The first predicate that refuses, or LEGAL."""
        if op.kind in GEMMS:
            return judge(PREDICATES, op, schedule, device)
        if op.rows_layout:
            return illegal("rows_layout", f"reads and writes plain rows, not {op.rows_layout}")
        return LEGAL

    def time_us(self, op: OpSpec, schedule: Schedule, device: DeviceFacts, load: Load) -> float:
        """Arithmetic over the cores in use or memory traffic, whichever takes longer, plus one launch; microseconds."""
        if op.kind not in GEMMS:
            passes = 2.0 if op.act_scale is ActScale.DYNAMIC_TENSOR else 1.0
            busy_s = stream_seconds(op, load) / device.cores
            return max(1e6 * busy_s, roofline_us(device, passes * stream_bytes(op, load), 0.0))
        ranges = -(-op.n // schedule.number("cols"))
        occupancy = wave_occupancy(load.tiles * ranges, device.cores)
        busy_s = gemm_seconds(op, schedule, load) / (device.cores * occupancy)
        return max(roofline_us(device, gemm_bytes(op, load), 0.0), 1e6 * busy_s + device.launch_us)

    def template(self, op: OpSpec, schedule: Schedule) -> str:
        """One template per op."""
        return f"cpu/{op.kind.value}.cc.j2"

    def includes(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        """Headers of the device library, in alphabetic order."""
        names = {*COMMON, *LIBRARY[op.kind]}
        names |= {"code_sink.h"} if op.epilogue is Epilogue.FUSED_FP4 else set()
        names |= {"combine.h"} if op.fused_combine else set()
        return tuple(f"cpu/device/{name}" for name in sorted(names))

    def scratch(self, op: OpSpec, schedule: Schedule) -> Scratch:
        """None: tasks keep what they need on the stack."""
        return Scratch()

    def most_tokens(self, op: OpSpec, schedule: Schedule) -> int | None:
        """Any number."""
        return None

    def options(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        """Nothing beyond the toolchain's own list."""
        return ()


def gemm_seconds(op: OpSpec, schedule: Schedule, load: Load) -> float:
    """Core-seconds of a gemm: decoding panels, multiplying whole row groups, summing lanes, and the epilogue."""
    if load.tiles <= 0:
        return 0.0
    group = min(schedule.number("rows"), ROW_GROUP)
    tile_rows = load.rows / load.tiles
    rows = load.tiles * group * -(-tile_rows // group)
    ranges = -(-op.n // schedule.number("cols"))
    chunks = -(-op.k // schedule.number("k_chunk"))
    decode_ns = (load.tiles * op.n + load.rows * ranges) * op.k * DECODE_NS
    multiply_ns = rows * op.n * op.k * MULTIPLY_NS[group, schedule.number("unroll")]
    lanes_ns = rows * op.n * chunks * LANE_SUM_NS
    epilogue_ns = load.rows * op.n * (FUSED_NS if op.epilogue is Epilogue.FUSED_FP4 else EPILOGUE_NS)
    return 1e-9 * (decode_ns + multiply_ns + lanes_ns + epilogue_ns)


def stream_seconds(op: OpSpec, load: Load) -> float:
    """Core-seconds of a streaming op."""
    columns = op.k if op.kind in (OpKind.QUANTIZE, OpKind.DEINTERLEAVE_QUANTIZE) else 0
    return 1e-9 * load.rows * columns * QUANTIZE_NS


CATALOG = CpuCatalog()
