"""Listings of machine code: addresses and encodings go, errors name the file and the remedy."""

from pathlib import Path

import pytest

from moegen.build import disassemble
from moegen.core.errors import StoreError, ToolchainMissing

LISTING = r"""
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;      /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 EXIT ;                      /* 0x000000000000894d */
"""


def put_nvdisasm(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvdisasm"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_two_places_of_one_instruction_give_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_nvdisasm(tmp_path, f"cat <<'END'{LISTING}END", monkeypatch)
    assert [line for line in disassemble.sass(tmp_path / "x.cubin") if line] == [
        ".text.kernel:",
        "LDC R1, c[0x0][0x28] ;",
        "@!P0 EXIT ;",
    ]


def test_a_damaged_cubin_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_nvdisasm(tmp_path, "echo 'not a cubin' >&2; exit 3", monkeypatch)
    with pytest.raises(StoreError, match="not a cubin"):
        disassemble.sass(tmp_path / "x.cubin")


def test_without_a_disassembler_the_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(disassemble.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ToolchainMissing, match="nvidia-cuda-nvdisasm"):
        disassemble.find_nvdisasm()
