"""What is read from machine code, and what the committed results say."""

import json
from pathlib import Path
from typing import Any

import pytest
from blackwell.small import FUSED, PAIR
from blackwell.workshop import Workshop

from benchmarks.blackwell.catalog import form_of, lacking
from benchmarks.blackwell.machine_code import BLOCK_SCALED_MMA, TENSOR_LOAD, parse, resources
from moegen.build.toolchain import CUBIN

RESULTS = Path(__file__).parents[2] / "benchmarks" / "blackwell"
LISTING = """
.text.gemm1_kernel_0:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0020*/               @P1 BRA `(.L_x_2) ;
.L_x_1:
        /*0030*/                   IADD3 R2, PT, PT, R2, 0x1, RZ ;
        /*0040*/                   LDTM.x32 R4, tmem[UR4] ;
        /*0050*/             @!UP0 UTCOMMA.4X gdesc[UR4], gdesc[UR6], tmem[UR8], idesc[UR11], UP1 ;
        /*0060*/                   STL [R1+0x4], R6 ;
        /*0070*/               @P0 BRA `(.L_x_1) ;
        /*0080*/                   BRA `(.L_x_0) ;
.L_x_2:
        /*0090*/                   EXIT ;
"""


def test_a_listing_is_read_with_labels_predicates_and_loops() -> None:
    code = parse(LISTING)
    assert len(code.instructions) == 10
    assert code.labels == {".L_x_0": 2, ".L_x_1": 3, ".L_x_2": 9}
    assert (code.count(BLOCK_SCALED_MMA), code.spills) == (1, 1)
    assert [item.opcode for item in code.loop_around(TENSOR_LOAD)][:2] == ["IADD3", "LDTM.x32"]
    assert len(code.loop_around(TENSOR_LOAD)) == 5
    with pytest.raises(ValueError, match="no HMMA"):
        code.loop_around("HMMA")
    with pytest.raises(ValueError, match="no loop around S2R"):
        code.loop_around("S2R")


def test_resources_come_from_the_cubin(blackwell_workshop: Workshop) -> None:
    used = resources(blackwell_workshop.directory(PAIR.variant) / CUBIN)
    assert 32 <= used.registers <= 255
    assert used.stack_bytes == 0


def test_what_machine_code_must_hold() -> None:
    assert lacking(FUSED.op, mma=2, other_mma=0, e2m1=8) == []
    assert lacking(FUSED.op, mma=0, other_mma=2, e2m1=0) == ["block-scaled MMA", "conversion to E2M1"]
    assert lacking(PAIR.op, mma=2, other_mma=0, e2m1=0) == []
    assert (form_of(FUSED.variant), form_of(PAIR.variant)) == ("plain", "pair")


def test_committed_results_hold_no_failure() -> None:
    catalog: dict[str, dict[str, Any]] = json.loads((RESULTS / "catalog.json").read_text())
    assert "sm_100a, generated" in catalog
    for run in catalog.values():
        assert run["built"] == run["planned"]
        assert not run["failed"]
        assert not [row for row in run["rows"] if row["spills"] or row["stack_bytes"] or row["lacks"]]
    proof = json.loads((RESULTS / "proof.json").read_text())
    assert not [row for row in proof["cases"] if not row["equal"]]
    assert {name.split()[0] for name in proof["groups"]} <= {"gemm", "layer"}
    assert proof["cases"]
    for kernel in json.loads((RESULTS / "mutation.json").read_text())["kernels"].values():
        assert all(survivor["class"] for survivor in kernel["survivors"])
        assert kernel["mutants"] == kernel["killed"] + len(kernel["survivors"])
