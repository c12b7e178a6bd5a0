"""Which x86-64 level this machine's CPU kernels are built for: a named baseline, never "whatever this CPU has"."""

import platform
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
#: Features of x86-64-v3 as /proc/cpuinfo spells them (x86-64 psABI, table 3.1; lzcnt appears as abm).
_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})


@dataclass(frozen=True, kw_only=True)
class CpuArch:
    """Architecture tag of CPU artifacts, also ``-march``; ``notice`` says why it is not the usual one."""

    name: str
    notice: str = ""


def host_cpu_arch(machine: str | None = None, cpuinfo: str | None = None) -> CpuArch:
    """The tag for this machine; arguments stand in for ``uname -m`` and the text of /proc/cpuinfo in tests."""
    machine = machine or platform.machine()
    if machine in ("aarch64", "arm64"):
        return CpuArch(name="armv8-a")
    if cpuinfo is None:
        cpuinfo = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split(":")[1].split()}
    if flags >= _V2 | _V3:
        return CpuArch(name="x86-64-v3")
    missing = sorted((_V2 | _V3) - flags)
    return CpuArch(name="x86-64-v2", notice=f"this CPU lacks {', '.join(missing)}: kernels are built for x86-64-v2")
