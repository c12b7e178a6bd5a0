"""Costs on paper of the sm_100a gemm1: what machine code and tile shapes say, before anybody has measured.

    PYTHONPATH=.:tests python benchmarks/blackwell/cost.py NVDISASM benchmarks/blackwell/COST.md

NVDISASM is CUDA's disassembler. Cycles of an MMA come from the device's peak rate, instructions from the disassembled
epilogue loop, bytes from the tile. Nothing here is a time.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from blackwell.workshop import Workshop, gemm_variant
from kernels.cases import ACTIVATIONS, Case

from moegen.build.toolchain import CUBIN
from moegen.codegen.catalogs.blockscaled import shared_memory_bytes, tensor_memory_columns
from moegen.codegen.variant import Variant
from moegen.core.devices import B200
from moegen.core.enums import Epilogue, OpKind, ScaleLayout

CLOCK_HZ = 1.85e9
"""Boost clock that the datasheet's peak assumes."""
ISSUE = 4
"""Warp instructions a multiprocessor starts a cycle."""
MMA, CONVERSION, TENSOR_LOAD = "UTCOMMA", "F2FP.SATFINITE.E2M1", "LDTM"
SWIZZLED = ScaleLayout.SWIZZLE_128X4
TILES = {
    "128 x 128": {"rows": 128, "cols": 128, "cta_group": 1, "acc_stages": 2, "swap_ab": False, "stages": 4},
    "pair 256 x 128": {"rows": 256, "cols": 128, "cta_group": 2, "acc_stages": 2, "swap_ab": False, "stages": 4},
    "swapped 128 x 64": {"rows": 128, "cols": 64, "cta_group": 1, "acc_stages": 2, "swap_ab": True, "stages": 4},
}
DEPTH = 256
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?(?P<opcode>[A-Z0-9_.]+)(?P<rest>.*)$")
_LABEL = re.compile(r"^(\.L_x_\d+):")


@dataclass(frozen=True)
class Code:
    """Counts of one kernel's machine code."""

    instructions: int
    multiplies: int
    conversions: int
    epilogue: int
    spills: int


def read_code(listing: str) -> Code:
    """Counts from a disassembly; the epilogue loop is what lies between the label and the branch around LDTM.

    Raises:
        ValueError: there is no such loop.
    """
    labels: dict[str, int] = {}
    found: list[tuple[str, str]] = []
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif instruction := _INSTRUCTION.match(line):
            found.append((instruction["opcode"], instruction["rest"]))
    load = next(index for index, (opcode, _) in enumerate(found) if opcode.startswith(TENSOR_LOAD))
    for index in range(load, len(found)):
        opcode, rest = found[index]
        target = re.search(r"\.L_x_\d+", rest) if opcode.startswith("BRA") else None
        if target and labels[target[0]] <= load:
            loop = found[labels[target[0]] : index + 1]
            break
    else:
        raise ValueError("no loop around the tensor-memory load")
    return Code(
        instructions=len(found),
        multiplies=sum(opcode.startswith(MMA) for opcode, _ in found),
        conversions=sum(opcode.startswith(CONVERSION) for opcode, _ in found),
        epilogue=len(loop),
        spills=sum(opcode.startswith(("STL", "LDL")) for opcode, _ in found),
    )


def case_of(epilogue: Epilogue, row_tile: int) -> Case:
    """A swiglu layer with DeepSeek-V3's hidden size; I is a quarter of its, which changes no figure of a tile."""
    return Case(
        hidden=7168,
        intermediate=512,
        row_tile=row_tile,
        activation=ACTIVATIONS["swiglu"],
        epilogue=epilogue,
        row_scales=SWIZZLED,
        weight_scales=SWIZZLED,
    )


def row(name: str, epilogue: Epilogue, variant: Variant, code: Code) -> str:
    """One line of the table, per CTA and per tile of depth K."""
    tile = variant.schedule
    rows, cols = tile.number("rows") // tile.number("cta_group"), tile.number("cols")
    k = variant.op.k
    macs_a_cycle = B200.flops_s / 2 / B200.cores / CLOCK_HZ
    multiply = rows * cols * k / macs_a_cycle
    finish = 4 * (cols // 32) * code.epilogue / ISSUE
    bytes_in = (rows + cols // tile.number("cta_group")) * k // 2 + (rows + cols) * k // 16
    memory = bytes_in / (B200.read_bytes_s / B200.cores / CLOCK_HZ)
    cells = (
        name,
        epilogue.value,
        f"{multiply:,.0f}",
        f"{finish:,.0f}",
        f"{memory:,.0f}",
        f"{finish * macs_a_cycle / (rows * cols):,.0f}",
        f"{code.epilogue / 16:.1f}",
        tile.number("stages"),
        f"{shared_memory_bytes(tile) / 1024:.0f}",
        tensor_memory_columns(tile),
        f"{code.multiplies} / {code.conversions} / {code.spills}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


HEADER = """# Costs on paper: gemm1 of sm_100a, swiglu, K = 7168

From machine code and shapes, not measured: no kernel here has run on a Blackwell GPU.

Cycles per tile and CTA: *multiply* at the datasheet's peak; *finish* is the epilogue loop's instructions of four
warps at four a cycle; *memory* is all operands of the tile at the datasheet's bandwidth shared by all multiprocessors
(an upper bound: tiles of one expert share weights through L2). With two accumulators a tile costs about the longest
of the three. *even K* is the depth at which multiply equals finish. *per value*: epilogue instructions of a thread
for one activated value. The last column counts block-scaled MMAs (of one stage), E2M1 conversions (of one block) and
spills in the machine code.

| tile | epilogue | multiply | finish | memory | even K | per value | stages | shared | columns | MMA / E2M1 / spills |
|---|---|---|---|---|---|---|---|---|---|---|
"""
FOOTER = """
What follows:

- The epilogue hides behind the next tile's multiplies above *even K*. DeepSeek-V3 (K = 7168) is above it, Qwen3-30B-A3B
  (K = 2048) below: there the exact activation costs more than the product, and `activation_math: fast`, or packed fp32
  arithmetic, is what to measure first. NVIDIA's examples with a plain epilogue do not have this cost.
- With few tokens *memory* decides: the bytes of hit experts' weights. Swapped tiles move the same weight bytes as plain
  ones, with half of the padding rows.
- A pair halves the weight bytes that each CTA loads; it pays when an expert has more than 128 rows.
- Rows leave through shared memory by bulk copies, as in NVIDIA's published block-scaled gemms, but each warp has boxes
  of its own and waits for no other. `bulk_stores: false` stores whole 32-byte sectors from registers instead: more room
  for the ring, more store instructions. Codes and scales always leave from registers, scales as single bytes. Which
  drains faster only hardware can tell.
"""


def main() -> None:
    """Compiles each tile with each epilogue and writes the table."""
    disassembler, out = sys.argv[1], Path(sys.argv[2])
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        for name, tile in TILES.items():
            for epilogue in Epilogue:
                op = case_of(epilogue, tile["cols"] if tile["swap_ab"] else tile["rows"]).ops()[OpKind.GEMM1]
                boxes = epilogue is not Epilogue.FUSED_FP4
                variant = gemm_variant(op, k=DEPTH, ctas=B200.cores, bulk_stores=boxes, **tile)
                cubin = workshop.directory(variant) / CUBIN
                listing = subprocess.run([disassembler, "-c", cubin], capture_output=True, text=True, check=True).stdout
                lines.append(row(name, epilogue, variant, read_code(listing)))
                print(lines[-1], flush=True)
    out.write_text(HEADER + "\n".join(lines) + "\n" + FOOTER)


if __name__ == "__main__":
    main()
