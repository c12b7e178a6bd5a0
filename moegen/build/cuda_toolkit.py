"""Finds one consistent CUDA toolkit: a system installation, or the pinned wheels."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from moegen.build.toolchain import clean_environment
from moegen.core.errors import ToolchainMissing

Version = tuple[int, int]
#: Least nvcc that can compile for an architecture; ``a`` targets only, since kernels use arch-specific instructions.
MINIMUM_NVCC: dict[str, Version] = {"sm_90a": (12, 3), "sm_100a": (12, 8), "sm_103a": (12, 9), "sm_120a": (12, 8)}
#: All of one minor: mixed minors emit PTX that ptxas refuses.
WHEELS = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
_GET_IT = 'pip install "moegen[cuda]", or install the CUDA toolkit 13.0'


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """A usable nvcc.

    ``build`` is its full build string, ``version`` (major, minor), ``include`` its header folders, ``cccl`` the version
    of the C++ library in them, empty when there is none.
    """

    nvcc: Path
    version: Version
    build: str
    include: tuple[Path, ...]
    cccl: str
    source: str


def find_toolkit(arch: str) -> Toolkit:
    """The first toolkit of PATH, CUDA_HOME and the wheels that can compile for ``arch``.

    Raises:
        ToolchainMissing: none found; each too old for ``arch``, or wheels of mixed minors (every one is named); an
            architecture without its ``a``.
    """
    if arch not in MINIMUM_NVCC:
        hint = f"{arch}a" if f"{arch}a" in MINIMUM_NVCC else ", ".join(MINIMUM_NVCC)
        raise ToolchainMissing(
            f"no architecture {arch}: its kernels need arch-specific instructions", arch, f"use {hint}"
        )
    refused: list[str] = []
    for source, nvcc, root in _candidates():
        try:
            toolkit = _examine(nvcc, root, source)
            _check_version(toolkit, arch)
        except ToolchainMissing as error:
            refused.append(f"{source}: {error.where} {error.what}".replace("  ", " "))
            continue
        return toolkit
    what = "; ".join(refused) or "nvcc not found (PATH, CUDA_HOME, wheels)"
    raise ToolchainMissing(what, arch, _GET_IT)


def parse_version(text: str) -> tuple[Version, str]:
    """((major, minor), build string) from the output of ``nvcc --version``.

    Raises:
        ValueError: no version in the text.
    """
    release = re.search(r"release (\d+)\.(\d+), (V[\d.]+)", text)
    if release is None:
        raise ValueError("no release in the output of nvcc --version")
    build = re.search(r"^Build (\S+)", text, re.MULTILINE)
    return (int(release[1]), int(release[2])), f"{release[3]} {build[1] if build else ''}".strip()


def wheel_versions() -> dict[str, str]:
    """Installed versions of :data:`WHEELS`; absent ones are left out."""
    found: dict[str, str] = {}
    for name in WHEELS:
        try:
            found[name] = distribution(name).version
        except PackageNotFoundError:
            continue
    return found


def check_wheels(versions: Mapping[str, str]) -> None:
    """Checks that a set of wheel versions is complete and of one minor.

    Raises:
        ToolchainMissing: naming every version found.
    """
    missing = [name for name in WHEELS if name not in versions]
    if missing:
        raise ToolchainMissing(f"nvcc's wheels are incomplete: {', '.join(missing)} missing", "", _GET_IT)
    minors = {".".join(version.split(".")[:2]) for version in versions.values()}
    if len(minors) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        raise ToolchainMissing(f"nvcc's wheels are of different minors: {listed}", "", _GET_IT)


def _candidates() -> Iterator[tuple[str, Path, Path]]:
    """(where from, nvcc, installation folder) in order of preference."""
    on_path = shutil.which("nvcc")
    if on_path:
        yield "PATH", Path(on_path), _root_of(Path(on_path))
    home = os.environ.get("CUDA_HOME")
    if home and os.access(Path(home) / "bin" / "nvcc", os.X_OK):
        yield "CUDA_HOME", Path(home) / "bin" / "nvcc", Path(home)
    nvcc = _wheel_nvcc()
    if nvcc is not None:
        yield "wheels", nvcc, nvcc.parent.parent


def _root_of(nvcc: Path) -> Path:
    """Installation folder; a wrapper script on PATH is followed through what nvcc itself reports as its TOP."""
    answer = _run(nvcc, "--dryrun", "-E", "-x", "cu", os.devnull)
    top = re.search(r"^#\$ TOP=(.+)$", answer, re.MULTILINE)
    return (nvcc.parent / top[1]).resolve() if top else nvcc.resolve().parent.parent


def _wheel_nvcc() -> Path | None:
    try:
        files = distribution("nvidia-cuda-nvcc").files or ()
    except PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.name == "nvcc" and file.parent.name == "bin"]
    return found[0].resolve() if found else None


def _examine(nvcc: Path, root: Path, source: str) -> Toolkit:
    if source == "wheels":
        check_wheels(wheel_versions())
    text = _run(nvcc, "--version")
    try:
        version, build = parse_version(text)
    except ValueError as error:
        raise ToolchainMissing(f"{error}: {text.strip()[:200]!r}", str(nvcc), _GET_IT) from error
    include = tuple(folder for folder in (root / "include", root / "include" / "cccl") if folder.is_dir())
    cccl = _cccl_version(root / "include" / "cccl" / "cuda" / "std" / "__cccl" / "version.h")
    return Toolkit(nvcc=nvcc, version=version, build=build, include=include, cccl=cccl, source=source)


def _cccl_version(header: Path) -> str:
    found = re.search(r"#\s*define CCCL_VERSION (\d+)", header.read_text()) if header.is_file() else None
    return found[1] if found else ""


def _check_version(toolkit: Toolkit, arch: str) -> None:
    needed = MINIMUM_NVCC[arch]
    if toolkit.version < needed:
        found, least = (".".join(map(str, version)) for version in (toolkit.version, needed))
        raise ToolchainMissing(f"nvcc {found} is too old for {arch}, {least} is needed", str(toolkit.nvcc), _GET_IT)


def _run(program: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, env=clean_environment(), check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainMissing(f"nvcc cannot be run ({error})", str(program), _GET_IT) from error
    return answer.stdout + answer.stderr
