"""Finding one consistent nvcc, and refusing what would fail later."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from moegen.build import cuda_toolkit
from moegen.build.cuda_toolkit import MINIMUM_NVCC, WHEELS, check_wheels, find_toolkit, parse_version
from moegen.core.errors import ToolchainMissing
from tests.build.helpers import fake_program

VERSION_TEXT = """\
nvcc: NVIDIA (R) Cuda compiler driver
Cuda compilation tools, release {minor}, V{minor}.99
Build cuda_{minor}.r{minor}/compiler.12345_0
"""


@pytest.fixture
def toolkits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a fake nvcc of some minor version on PATH, in CUDA_HOME or into the wheels; the real ones are hidden."""
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "nvcc").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(cuda_toolkit, "_wheel_nvcc", lambda: None)

    def install(where: str, minor: str) -> Path:
        nvcc = fake_program(tmp_path / where / "bin" / "nvcc", f"cat <<'END'\n{VERSION_TEXT.format(minor=minor)}END\n")
        (tmp_path / where / "include").mkdir(exist_ok=True)
        if where == "PATH":
            monkeypatch.setenv("PATH", str(nvcc.parent), prepend=os.pathsep)
        elif where == "CUDA_HOME":
            monkeypatch.setenv("CUDA_HOME", str(tmp_path / where))
        else:
            monkeypatch.setattr(cuda_toolkit, "_wheel_nvcc", lambda: nvcc)
            monkeypatch.setattr(cuda_toolkit, "wheel_versions", lambda: dict.fromkeys(WHEELS, f"{minor}.99"))
        return nvcc

    return install


def test_version_is_read() -> None:
    assert parse_version(VERSION_TEXT.format(minor="13.0")) == ((13, 0), "V13.0.99 cuda_13.0.r13.0/compiler.12345_0")
    with pytest.raises(ValueError, match="no release"):
        parse_version("bash: nvcc: command not found")


def test_order_of_search(toolkits: Callable[[str, str], Path]) -> None:
    for where in ("wheels", "CUDA_HOME", "PATH"):
        nvcc = toolkits(where, "13.0")
        found = find_toolkit("sm_90a")
        assert (found.source, found.nvcc, found.version) == (where, nvcc, (13, 0))
        assert found.include == (nvcc.parent.parent / "include",)


def test_nothing_found_says_where_was_looked(toolkits: Callable[[str, str], Path]) -> None:
    with pytest.raises(ToolchainMissing, match=r"nvcc not found \(PATH, CUDA_HOME, wheels\)") as caught:
        find_toolkit("sm_100a")
    assert 'pip install "moegen[cuda]"' in str(caught.value)


@pytest.mark.parametrize("arch", MINIMUM_NVCC)
def test_least_version_of_each_architecture(arch: str, toolkits: Callable[[str, str], Path]) -> None:
    major, minor = MINIMUM_NVCC[arch]
    toolkits("PATH", f"{major}.{minor}")
    assert find_toolkit(arch).version == (major, minor)
    toolkits("PATH", f"{major}.{minor - 1}")
    with pytest.raises(ToolchainMissing, match=rf"nvcc {major}\.{minor - 1} is too old for {arch}, {major}\.{minor}"):
        find_toolkit(arch)


def test_old_system_toolkit_gives_way_to_the_wheels(toolkits: Callable[[str, str], Path]) -> None:
    toolkits("PATH", "11.8")
    with pytest.raises(ToolchainMissing, match=r"11\.8 is too old"):
        find_toolkit("sm_90a")
    toolkits("wheels", "13.0")
    assert find_toolkit("sm_90a").source == "wheels"


@pytest.mark.parametrize("arch", ["sm_120", "sm_100", "sm_90", "compute_90a", ""])
def test_architecture_without_its_suffix_is_refused(arch: str) -> None:
    with pytest.raises(ToolchainMissing, match="arch-specific") as caught:
        find_toolkit(arch)
    assert caught.value.fix.startswith("use sm_")
    if f"{arch}a" in MINIMUM_NVCC:
        assert caught.value.fix == f"use {arch}a"


def test_mixed_wheels_are_refused_with_all_versions() -> None:
    versions = dict.fromkeys(WHEELS, "13.0.88") | {"nvidia-nvvm": "13.1.2"}
    with pytest.raises(ToolchainMissing, match="different minors") as caught:
        check_wheels(versions)
    assert all(f"{name} {version}" in str(caught.value) for name, version in versions.items())
    check_wheels(dict.fromkeys(WHEELS, "13.0.88") | {"nvidia-cuda-cccl": "13.0.85"})


def test_incomplete_wheels_are_refused() -> None:
    versions = {name: "13.0.88" for name in WHEELS if name != "nvidia-nvvm"}
    with pytest.raises(ToolchainMissing, match="nvidia-nvvm missing"):
        check_wheels(versions)


def test_broken_nvcc_is_named(toolkits: Callable[[str, str], Path]) -> None:
    nvcc = toolkits("PATH", "13.0")
    fake_program(nvcc, "echo 'cannot load library'; exit 1")
    with pytest.raises(ToolchainMissing, match="no release in the output"):
        find_toolkit("sm_90a")
