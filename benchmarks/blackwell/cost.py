"""Costs on paper of the sm_100a gemms, beside NVIDIA's published ones: from machine code, shapes and interpreted runs.

    MOEGEN_CUTLASS=<checkout> PYTHONPATH=.:tests python benchmarks/blackwell/cost.py benchmarks/blackwell/COST.md

Cycles of an MMA come from the device's peak rate, instructions from disassembled epilogue loops and from interpreted
runs, bytes from tiles and from interpreted runs. Nothing here is a time.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blackwell.workshop import Workshop, checked, gemm_variant
from kernels.cases import ACTIVATIONS, Case, buffers
from kernels.compare import check_op

from benchmarks.blackwell import published
from benchmarks.blackwell.machine_code import (
    BLOCK_SCALED_MMA,
    TENSOR_LOAD,
    TO_E2M1,
    Code,
    disassemble,
    resources,
)
from moegen.build.toolchain import CUBIN
from moegen.codegen.catalogs.blockscaled import shared_memory_bytes, tensor_memory_columns
from moegen.codegen.variant import Variant
from moegen.core.devices import B200
from moegen.core.enums import Epilogue, OpKind, ScaleLayout, Target
from moegen.ptx.options import Options
from moegen.ptx.runner import InterpreterRunner

CLOCK_HZ = 1.85e9
"""Boost clock that the datasheet's peak assumes."""
MACS = B200.flops_s / 2 / B200.cores / CLOCK_HZ
"""Products of one multiprocessor in a cycle."""
READ = B200.read_bytes_s / B200.cores / CLOCK_HZ
"""Bytes of one multiprocessor's share of the memory's bandwidth in a cycle."""
ISSUE = 4
"""Warp instructions a multiprocessor starts a cycle."""
SWIZZLED = ScaleLayout.SWIZZLE_128X4
PLAIN = {"rows": 128, "cols": 128, "cta_group": 1, "acc_stages": 2, "swap_ab": False, "stages": 4, "k": 256}
TILES = {
    "128 x 128": PLAIN,
    "pair 256 x 128": PLAIN | {"rows": 256, "cta_group": 2},
    "swapped 128 x 64": PLAIN | {"cols": 64, "swap_ab": True},
    "swapped 128 x 16": PLAIN | {"cols": 16, "swap_ab": True},
}
BOX_ROWS = 32
"""Rows leave through boxes of so many where a tile has them; codes are 8 bytes a thread and never do."""
DEEP = 7168


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    cells: tuple[object, ...]

    def __str__(self) -> str:
        return "| " + " | ".join(map(str, self.cells)) + " |"


def loop_of(code: Code) -> tuple[int, int]:
    """(Instructions, accumulator columns of a thread) of the epilogue loop."""
    loop = code.loop_around(TENSOR_LOAD)
    widths = [re.search(r"\.x(\d+)", item.opcode) for item in loop if item.opcode.startswith(TENSOR_LOAD)]
    return len(loop), sum(int(width[1]) for width in widths if width)


def tokens_of(tile: dict[str, Any]) -> int:
    """Token rows of a tile."""
    return tile["cols"] if tile["swap_ab"] else tile["rows"]


def layer(epilogue: Epilogue, row_tile: int) -> Case:
    """A swiglu layer with DeepSeek-V3's hidden size; I is a quarter of its, which changes no figure of a tile."""
    return Case(
        hidden=DEEP,
        intermediate=512,
        row_tile=row_tile,
        activation=ACTIVATIONS["swiglu"],
        epilogue=epilogue,
        row_scales=SWIZZLED,
        weight_scales=SWIZZLED,
    )


def tile_line(name: str, epilogue: Epilogue, variant: Variant, cubin: Path) -> Line:
    """Cycles of gemm1's three parts per CTA and tile of depth K."""
    tile, code = variant.schedule, disassemble(cubin)
    group, cols, k = tile.number("cta_group"), tile.number("cols"), variant.op.k
    rows = tile.number("rows") // group
    instructions, columns = loop_of(code)
    multiply = rows * cols * k / MACS
    finish = 4 * (cols / columns) * instructions / ISSUE
    loaded = (rows + cols // group) * k // 2 + (rows + cols) * k // 16
    return Line(
        (
            name,
            epilogue.value,
            f"{multiply:,.0f}",
            f"{finish:,.0f}",
            f"{loaded / READ:,.0f}",
            f"{finish * MACS / (rows * cols):,.0f}",
            f"{2 * instructions / columns:.1f}",
            tile.number("stages"),
            f"{shared_memory_bytes(tile) / 1024:.0f}",
            tensor_memory_columns(tile),
            f"{code.count(BLOCK_SCALED_MMA)} / {code.count(TO_E2M1)} / {code.spills}",
        )
    )


@dataclass(frozen=True)
class Counted:
    """What one kernel is made of and did on :data:`published.PROBLEM`."""

    name: str
    tile: tuple[int, int]
    cubin: Path
    stages: str
    roles: dict[str, int]
    moved: dict[str, int]


def ours(workshop: Workshop) -> Iterator[Counted]:
    """Our gemm2 (rows stored) and gemm1 (fused) on the same problem, one expert."""
    m, n, k, _ = published.PROBLEM
    second = Case(hidden=n, intermediate=k, experts=1, top_k=1, tokens=m, routing="uniform", row_tile=128)
    first = Case(hidden=k, intermediate=n // 2, experts=1, top_k=1, tokens=m, routing="uniform", row_tile=128)
    fused = {"epilogue": Epilogue.FUSED_FP4, "row_scales": SWIZZLED, "weight_scales": SWIZZLED}
    plain = {"row_scales": SWIZZLED, "weight_scales": SWIZZLED}
    for name, kind, base, more, tile, bulk in (
        ("moegen gemm2, 128 x 128, boxes", OpKind.GEMM2, second, plain, "128 x 128", True),
        ("moegen gemm2, 128 x 128, from registers", OpKind.GEMM2, second, plain, "128 x 128", False),
        ("moegen gemm2, pair 256 x 128, boxes", OpKind.GEMM2, second, plain, "pair 256 x 128", True),
        ("moegen gemm1 fused_fp4, 128 x 128", OpKind.GEMM1, first, fused, "128 x 128", False),
        ("moegen gemm1 fused_fp4, pair 256 x 128", OpKind.GEMM1, first, fused, "pair 256 x 128", False),
    ):
        schedule = TILES[tile]
        case = Case(**{**base.__dict__, **more, "row_tile": schedule["rows"]})
        op = case.ops()[kind]
        variant = gemm_variant(op, ctas=2, bulk_stores=bulk, **schedule)
        runner = InterpreterRunner(Target.SM_100A, (Options(timeout_probability=0.0),))
        directory = workshop.directory(variant)
        check_op(checked(runner, directory, kind.value), op, case, buffers(case))
        stats = runner.results[-1].stats
        roles = {role.rsplit("/", 1)[1]: sum(part["opcodes"].values()) for role, part in stats.roles.items()}
        depths = f"{schedule['stages']} x {schedule['k']} / {schedule['acc_stages']} / {2 if bulk else '-'}"
        yield Counted(name, (schedule["rows"], schedule["cols"]), directory / CUBIN, depths, roles, stats.bytes_moved)


def theirs(folder: Path) -> Iterator[Counted]:
    """NVIDIA's kernels."""
    for number, name in enumerate(published.KERNELS):
        facts: dict[str, Any] = published.facts_of(name, folder / str(number))
        roles: dict[str, int] = {}
        for role, count in facts["roles"].items():
            roles[role.rsplit("/", 1)[1]] = roles.get(role.rsplit("/", 1)[1], 0) + count
        stages, accumulators, stores = (facts["stages"][depth] for depth in published.DEPTHS)
        depths = f"{stages} x 256 / {accumulators} / {stores}" if stages else "not read"
        yield Counted(name, tuple(facts["tile"]), facts["cubin"], depths, roles, facts["bytes"])


def counted_line(item: Counted) -> Line:
    """Counts per 128 x 128 accumulators, set-up of the kernel included."""
    m, n, _, _ = published.PROBLEM
    tiles = m * n / (128 * 128)
    instructions, columns = loop_of(disassemble(item.cubin))
    used = resources(item.cubin)
    per_tile = {name: count / tiles for name, count in item.roles.items()}
    other = sum(count for name, count in per_tile.items() if name not in ("mma", "load", "epilogue"))
    return Line(
        (
            item.name,
            f"{instructions / columns:.2f}",
            *(f"{per_tile.get(name, 0):,.0f}" for name in ("epilogue", "mma", "load")),
            f"{other:,.0f}",
            *(
                f"{item.moved.get(space, 0) / tiles / 1024:,.0f}"
                for space in ("global read", "global write", "shared write", "shared read", "tensor read")
            ),
            item.stages,
            used.registers,
        )
    )


def write(path: Path, name: str, lines: list[Line]) -> None:
    """Replaces the lines of one table of the document; what it says about them is for people to write."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, rest = path.read_text().split(begin)
    header = rest.split("\n")[:2]
    path.write_text(before + begin + "\n".join([*header, *map(str, lines)]) + end + rest.split(end)[1])


def main() -> None:
    """Compiles and runs everything, and writes the document."""
    tiles: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        variants = {
            (name, epilogue): gemm_variant(
                layer(epilogue, tokens_of(tile)).ops()[OpKind.GEMM1],
                ctas=B200.cores,
                bulk_stores=epilogue is not Epilogue.FUSED_FP4 and tokens_of(tile) >= BOX_ROWS,
                **tile,
            )
            for name, tile in TILES.items()
            for epilogue in Epilogue
        }
        workshop.prepare(list(variants.values()))
        for (name, epilogue), variant in variants.items():
            tiles.append(tile_line(name, epilogue, variant, workshop.directory(variant) / CUBIN))
            print(tiles[-1], flush=True)
        counted = []
        for item in (*ours(workshop), *theirs(Path(folder) / "published")):
            counted.append(counted_line(item))
            print(counted[-1], flush=True)
    write(Path(sys.argv[1]), "tiles", tiles)
    write(Path(sys.argv[1]), "counts", counted)


if __name__ == "__main__":
    main()
