"""Schedules of the Blackwell targets (sm_100a and sm_103a share kernels; objects are built for each)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from moegen.codegen.catalog import LEGAL, Choice, Scratch, Verdict, chosen_values, illegal, judge
from moegen.codegen.catalogs import blockscaled, sm90
from moegen.codegen.catalogs.sm100_w4a16 import W4A16Part
from moegen.codegen.cost import gemm_bytes, gemm_flops, roofline_us, stream_bytes, wave_occupancy
from moegen.codegen.load import Load
from moegen.codegen.schedule import Schedule, ScheduleFamily, ScheduleField, Value, expand
from moegen.core.abi import BLOCK, code_pitch, round_up
from moegen.core.devices import DeviceFacts
from moegen.core.enums import ActFormat, OpKind, ScaleLayout, Target
from moegen.core.ops import OpSpec

PACK = "rows8"
"""The tensor core reads codes and 128x4 scales as they are, so the public pack serves."""
MAX_THREADS = 1024
SERIAL = 1.05
"""Guess of what a single accumulator costs: the tensor core waits while it is finished."""
WARP = 32
AUTO_GEMM: Mapping[str, tuple[Value, ...]] = {
    "rows": (128, 256),
    "cols": (8, 16, 32, 64, 128, 192, 256),
    "k": (128, 256),
    "stages": (3, 4, 6),
    "acc_stages": (1, 2),
    "cta_group": (1, 2),
    "swap_ab": (False, True),
    "bulk_stores": (True, False),
}
AUTO_ROWS: Mapping[str, tuple[Value, ...]] = {"threads": (128, 256)}
CUDA = {OpKind.ROUTE: ("sm_90a/route.cu.j2", ("sm_90a/device/route.cuh",))}
"""Ops whose CUDA source is shared with sm_90a: template, and the device library files that it includes."""
DSL = {OpKind.DEINTERLEAVE_QUANTIZE: "sm_100a/quantize.py.j2"}
"""Ops that share another op's template."""


@dataclass(frozen=True)
class Sm100Catalog:
    """What a Blackwell target offers; see :class:`moegen.codegen.catalog.Catalog`.

    The block-scaled gemms multiply FP4 by FP4; W4A16 layers have kernels of their own (``sm100_w4a16``).
    """

    target: Target

    @property
    def w4a16(self) -> W4A16Part:
        """Schedules of W4A16 gemms and of the copies around them."""
        return W4A16Part(self.target)

    @property
    def gemm(self) -> ScheduleFamily:
        """Schedules of the block-scaled gemms."""
        return blockscaled.family(self.target)

    @property
    def rows(self) -> ScheduleFamily:
        """Schedules of row-wise ops: each thread takes a block of 16 elements, or 8 columns of a sum."""
        return ScheduleFamily(
            target=self.target,
            name="rows",
            kinds=(OpKind.QUANTIZE, OpKind.DEINTERLEAVE_QUANTIZE, OpKind.COMBINE),
            fields=(ScheduleField(name="threads", tag="t", doc="threads of a CTA"),),
        )

    @property
    def route(self) -> ScheduleFamily:
        """Schedules of route: one cluster of CTAs."""
        return replace(sm90.ROUTE, target=self.target)

    def families(self, kind: OpKind) -> tuple[ScheduleFamily, ...]:
        """One family for each op, and two for the gemms: W4A4's and W4A16's."""
        every = (self.gemm, self.rows, self.route, *self.w4a16.families)
        return tuple(family for family in every if kind in family.kinds)

    def row_tiles(self, choice: Choice, act_format: ActFormat) -> tuple[int, ...]:
        """Token tiles of the gemm schedules; raises SpecError as :func:`chosen_values`."""
        if act_format is ActFormat.BF16:
            return self.w4a16.row_tiles(choice)
        return tuple(sorted({blockscaled.token_tile(schedule) for schedule in self._gemm_space(choice)}))

    def gather_forms(self) -> tuple[bool, ...]:
        """gemm1 copies rows of ``x`` itself, which saves a launch; after a gather op its weights start earlier."""
        return (True, False)

    def rows_layouts(self, act_format: ActFormat) -> tuple[str, ...]:
        """Plain rows."""
        return ("",)

    def decoded_forms(self) -> tuple[bool, ...]:
        """Codes and scales alone: tensor cores take them as they are."""
        return (False,)

    def scale_layout(self, declared: ScaleLayout) -> ScaleLayout:
        """Tensor memory takes scales in 128x4 tiles: rows are quantised so, and weights' scales reordered at load."""
        return ScaleLayout.SWIZZLE_128X4

    def weight_packs(self, op: OpSpec) -> tuple[str, ...]:
        """The public pack."""
        return (PACK,)

    def pack_bytes(self, op: OpSpec) -> int:
        """Codes with their pitch, scales with their layout's padding, of all experts."""
        columns = op.k // BLOCK
        swizzled = op.weight_scale_layout is ScaleLayout.SWIZZLE_128X4
        scales = round_up(op.n, 128) * round_up(columns, 4) if swizzled else op.n * columns
        return op.experts * (op.n * code_pitch(op.k) + scales)

    def schedules(self, op: OpSpec, device: DeviceFacts, choice: Choice) -> tuple[Schedule, ...]:
        """Gemm schedules at the op's token tile, or every shape of a row-wise op."""
        if self.w4a16.serves(op):
            return self.w4a16.schedules(op, choice)
        if op.kind in self.gemm.kinds:
            space = self._gemm_space(choice, device.cores)
            return tuple(schedule for schedule in space if blockscaled.token_tile(schedule) == op.row_tile)
        if op.kind is OpKind.ROUTE:
            return tuple(self.route.make(threads=threads, blocks=blocks) for threads, blocks in sm90.ROUTE_SHAPES)
        return expand(self.rows, AUTO_ROWS) if op.kind in self.rows.kinds else ()

    def _gemm_space(self, choice: Choice, ctas: int = 1) -> tuple[Schedule, ...]:
        spaces = chosen_values(self.gemm, {**AUTO_GEMM, "ctas": (ctas,)}, choice)
        return tuple(dict.fromkeys(schedule for values in spaces for schedule in expand(self.gemm, values)))

    def verdict(self, op: OpSpec, schedule: Schedule, device: DeviceFacts) -> Verdict:
        """Whether a schedule of the op's family can serve ``op``."""
        if schedule.family in self.w4a16.families:
            return self.w4a16.verdict(op, schedule, device)
        if schedule.family == self.gemm:
            return judge(blockscaled.PREDICATES, op, schedule, device)
        if schedule.family == self.route:
            return sm90.counts_fit(op, schedule, device)
        threads = schedule.number("threads")
        if threads < WARP or threads > MAX_THREADS or threads % WARP:
            return illegal("threads", "a CTA has whole warps", threads=threads, most=MAX_THREADS)
        return LEGAL

    def time_us(self, op: OpSpec, schedule: Schedule, device: DeviceFacts, load: Load) -> float:
        """Roofline over the tiles' waves for a gemm, memory traffic for the rest, and one launch."""
        if self.w4a16.serves(op):
            return self.w4a16.time_us(op, schedule, device, load)
        if op.kind not in self.gemm.kinds:
            return roofline_us(device, stream_bytes(op, load), 0.0)
        weights = schedule.number("rows" if schedule["swap_ab"] else "cols")
        tasks = load.tiles * -(-op.n // weights)
        occupancy = wave_occupancy(tasks, device.cores // schedule.number("cta_group"))
        us = roofline_us(device, gemm_bytes(op, load), gemm_flops(op, load), occupancy)
        return us * (SERIAL if schedule["acc_stages"] == 1 else 1.0)

    def template(self, op: OpSpec, schedule: Schedule) -> str:
        """One template per op; two quantisers share one, and route is shared with sm_90a."""
        if self.w4a16.serves(op):
            return self.w4a16.template(op)
        if op.kind in CUDA:
            return CUDA[op.kind][0]
        return DSL.get(op.kind, f"sm_100a/{op.kind.value}.py.j2")

    def includes(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        """Of CUDA sources; CuTeDSL templates import device modules by name."""
        if self.w4a16.serves(op):
            return self.w4a16.includes(op)
        return CUDA[op.kind][1] if op.kind in CUDA else ()

    def scratch(self, op: OpSpec, schedule: Schedule) -> Scratch:
        """None."""
        return Scratch()

    def most_tokens(self, op: OpSpec, schedule: Schedule) -> int | None:
        """Any number."""
        return None

    def options(self, op: OpSpec, schedule: Schedule) -> tuple[str, ...]:
        """Nothing beyond the toolchain's own."""
        return ()


CATALOGS = {target: Sm100Catalog(target=target) for target in (Target.SM_100A, Target.SM_103A)}
