"""Machine code as text: SASS of a cubin, without addresses and encodings, so that two listings compare."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from moegen.build.toolchain import clean_environment
from moegen.core.errors import StoreError, ToolchainMissing

WHEEL = "nvidia-cuda-nvdisasm"
_ADDRESS = re.compile(r"^\s*/\*[0-9a-f]+\*/\s*|\s*/\* 0x[0-9a-f]+ \*/\s*$")


def find_nvdisasm() -> Path:
    """nvdisasm on PATH, or the one that pip installs.

    Raises:
        ToolchainMissing: there is none.
    """
    found = shutil.which("nvdisasm")
    packaged = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvdisasm"
    if found is None and not packaged.is_file():
        raise ToolchainMissing(
            "no nvdisasm", "PATH", f"pip install moegen[sass] ({WHEEL}), or install the CUDA toolkit"
        )
    return Path(found) if found else packaged


def sass(cubin: Path) -> list[str]:
    """Lines of a cubin's machine code.

    Raises:
        ToolchainMissing: there is no nvdisasm.
        StoreError: it cannot read the file.
    """
    command = [str(find_nvdisasm()), "-c", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    if done.returncode:
        raise StoreError(f"nvdisasm: {done.stderr.strip()[:300]}", str(cubin), "moegen cache verify, then moegen build")
    return [_ADDRESS.sub("", line).rstrip() for line in done.stdout.splitlines()]
