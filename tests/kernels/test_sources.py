"""What the text of CPU kernels must and must not hold: 64-bit indices, no choice left open, no torch."""

import re
import subprocess
from pathlib import Path

import pytest
from kernels.cases import ACTIVATIONS, SWIZZLED, Case
from kernels.harness import Workshop, gemm_variant, stream_variant

from moegen.codegen.catalogs.cpu import CATALOG
from moegen.codegen.render import render
from moegen.core.enums import ActivationMath, CombineMode, Contract, Epilogue, OpKind
from moegen.core.ops import Numerics
from moegen.core.paths import data_root

DEVICE = data_root("templates") / "cpu" / "device"
#: 32-bit types are elements of index buffers, bit patterns and OpenMP's team size, never an index or an offset.
NARROW = re.compile(r"\b(?:int|short|long|unsigned|size_t|std::u?int(?:8|16|32)_t)\s+(\w+)\s*(?:=|;|\{)")
_BITS = {"bits", "rounded", "word", "half", "magnitude", "capped", "normal", "subnormal", "special", "code", "index"}
_CODES = {"kMagicBits", "shifted", "n", "below", "sign", "scale", "largest", "candidate"}
NOT_INDICES = _BITS | _CODES | {"team", "i"}


def sources() -> dict[str, str]:
    cases = [
        Case(epilogue=Epilogue.FUSED_FP4, row_scales=SWIZZLED, weight_scales=SWIZZLED),
        Case(epilogue=Epilogue.INTERLEAVED, combine=CombineMode.ATOMIC),
        Case(w4a4=False, fused_gather=False),
    ]
    found = {path.name: path.read_text() for path in sorted(DEVICE.glob("*.h"))}
    for case in cases:
        for op in case.ops().values():
            gemm = op.kind in (OpKind.GEMM1, OpKind.GEMM2)
            variant = gemm_variant(op) if gemm else stream_variant(op)
            found[variant.name] = render(variant, CATALOG).text
    return found


def test_indices_and_offsets_are_64_bit() -> None:
    for name, text in sources().items():
        code = re.sub(r"//[^\n]*", "", text)
        narrow = set(NARROW.findall(code)) - NOT_INDICES
        assert not narrow, f"{name}: {sorted(narrow)}"
        if name not in {path.name for path in DEVICE.glob("*.h")}:
            assert not re.search(r"\bint\b|size_t|unsigned", code), name


def test_lines_fit_a_screen() -> None:
    for name, text in sources().items():
        lines = text.splitlines()[0 if name.endswith(".h") else 1 :]
        assert [line for line in lines if len(line) > 122 or line != line.rstrip() or "\t" in line] == [], name


def test_index_type_is_64_bit_in_the_library() -> None:
    assert re.search(r"using Index = std::int64_t;", (DEVICE / "sizes.h").read_text())
    loops = re.compile(r"for \((?!const)(\w+) \w+ = ")
    for path in DEVICE.glob("*.h"):
        types = set(loops.findall(path.read_text()))
        # contracts.h loops over the 16 values of a block.
        assert types <= ({"int"} if path.name == "contracts.h" else {"Index"}), path.name


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_activation_and_one_epilogue_are_left(activation: str) -> None:
    case = Case(activation=ACTIVATIONS[activation], numerics=Numerics(contract=Contract.VLLM_RN))
    op = case.ops()[OpKind.GEMM1]
    text = render(gemm_variant(op), CATALOG).text
    assert len(re.findall(r"kActivation\{", text)) == 1
    assert not re.search(r"\bswitch\b|\benum\b|if constexpr|#if", text)
    kinds = [word for word in ("Swiglu", "Situ", "GegluTanh", "Relu2", "Silu") if f"moegen::{word}" in text]
    assert len(kinds) == 1
    assert ("CodeSink" in text, "h_pair" in text) == (False, False)


def test_fast_math_is_a_label_on_a_cpu() -> None:
    """docs/cpu.md: the class is kept apart by its name, the code is that of the exact class."""
    fast = Case(numerics=Numerics(activation_math=ActivationMath.FAST)).ops()[OpKind.GEMM1]
    exact = Case().ops()[OpKind.GEMM1]
    first, second = (render(gemm_variant(op), CATALOG).text.split("\n", 1) for op in (fast, exact))
    assert first[0] != second[0]
    assert first[1] == second[1]


def test_objects_link_neither_torch_nor_python(workshop: Workshop) -> None:
    op = Case().ops()[OpKind.COMBINE]
    workshop.kernel(stream_variant(op))
    for library in workshop.folder.glob("*/kernel.so"):
        needed = re.findall(r"Shared library: \[(.+?)\]", _dynamic_section(library))
        assert needed
        known = ("libtvm_ffi.", "libstdc++.", "libm.", "libgomp.", "libgcc_s.", "libpthread.", "libc.", "ld-linux")
        assert [name for name in needed if not name.startswith(known)] == []


def test_objects_export_their_entry_alone(workshop: Workshop) -> None:
    op = Case().ops()[OpKind.GEMM2]
    variant = gemm_variant(op)
    workshop.kernel(variant)
    library = workshop.folder / render(variant, CATALOG).source.digest[:32] / "kernel.so"
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in listing.splitlines()}
    assert {name for name in exported if not name.startswith(("_ZT", "_init", "_fini"))} == {"__tvm_ffi_gemm2"}


def _dynamic_section(library: Path) -> str:
    return subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
