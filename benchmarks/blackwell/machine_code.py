"""What a cubin says of itself: instructions, registers and stack. Needs CUDA's disassembler, no GPU."""

import re
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moegen.build.disassemble import find_nvdisasm

BLOCK_SCALED_MMA = "UTCOMMA"
OTHER_MMA = ("UTCHMMA", "UTCQMMA", "HMMA")
TO_E2M1 = "F2FP.SATFINITE.E2M1"
TENSOR_LOAD = "LDTM"
LOCAL_MEMORY = ("STL", "LDL")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?(?P<opcode>[A-Z][A-Za-z0-9_.]*)(?P<rest>.*)$")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_SVAL, _HEADER = 0x04, 4
_REGCOUNT, _FRAME_SIZE = 0x2F, 0x11


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One machine instruction without its predicate."""

    opcode: str
    operands: str


@dataclass(frozen=True, kw_only=True)
class Code:
    """A disassembled cubin; ``labels`` are indices of instructions."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    def count(self, *prefixes: str) -> int:
        """Instructions whose opcode starts with one of ``prefixes``."""
        return sum(item.opcode.startswith(prefixes) for item in self.instructions)

    @property
    def spills(self) -> int:
        """Accesses of local memory."""
        return self.count(*LOCAL_MEMORY)

    def loop_around(self, prefix: str) -> tuple[Instruction, ...]:
        """The innermost loop that holds the first instruction of such an opcode.

        Raises:
            ValueError: there is no such instruction, or no loop around it.
        """
        first = next((i for i, item in enumerate(self.instructions) if item.opcode.startswith(prefix)), None)
        if first is None:
            raise ValueError(f"no {prefix}")
        for index in range(first, len(self.instructions)):
            start = self._branch_target(index)
            if start is not None and start <= first:
                return self.instructions[start : index + 1]
        raise ValueError(f"no loop around {prefix}")

    def _branch_target(self, index: int) -> int | None:
        item = self.instructions[index]
        label = re.search(r"\.L_x_\d+", item.operands) if item.opcode.startswith("BRA") else None
        return self.labels[label[0]] if label else None


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The most that any kernel of a cubin takes of each thread's registers and stack (bytes)."""

    registers: int
    stack_bytes: int


def disassemble(cubin: Path) -> Code:
    """Instructions of all kernels of a cubin; raises ToolchainMissing, or CalledProcessError on a damaged file."""
    said = subprocess.run([str(find_nvdisasm()), "-c", str(cubin)], capture_output=True, text=True, check=True)
    return parse(said.stdout)


def parse(listing: str) -> Code:
    """Reads nvdisasm's listing."""
    labels: dict[str, int] = {}
    found: list[Instruction] = []
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif item := _INSTRUCTION.match(line):
            found.append(Instruction(opcode=item["opcode"], operands=item["rest"]))
    return Code(instructions=tuple(found), labels=labels)


def resources(cubin: Path) -> Resources:
    """Registers and stack as the compiler wrote them into the cubin's ``.nv.info``."""
    registers = stack = 0
    for attribute, payload in _attributes(_section(cubin.read_bytes(), ".nv.info")):
        if attribute in (_REGCOUNT, _FRAME_SIZE):
            _, value = struct.unpack("<II", payload)
            registers = max(registers, value if attribute == _REGCOUNT else 0)
            stack = max(stack, value if attribute == _FRAME_SIZE else 0)
    return Resources(registers=registers, stack_bytes=stack)


def _section(elf: bytes, wanted: str) -> bytes:
    """Content of one section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + index * size) for index in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, length in headers:
        if elf[strings + name : elf.index(b"\0", strings + name)].decode() == wanted:
            return elf[offset : offset + length]
    raise ValueError(f"no section {wanted}")


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) of the records that have one; the others are four bytes long."""
    at = 0
    while at + _HEADER <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += _HEADER
        if form == _SVAL:
            yield attribute, info[at : at + length]
            at += length
