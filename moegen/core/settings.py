"""Every environment variable that moegen reads, in one place."""

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from moegen.core.errors import MoegenError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment says.

    Attributes:
        home: MOEGEN_HOME; artifacts, bundles, trials and tables live below it. Default: the user's cache folder.
        packs: MOEGEN_PACKS; read-only stores searched before ``home``, separated like PATH.
        threads: MOEGEN_THREADS; threads of CPU kernels; 0 means all cores this process may use.
        no_build: MOEGEN_NO_BUILD=1; refuses every compile, for machines that must only serve.
    """

    home: Path
    packs: tuple[Path, ...] = ()
    threads: int = 0
    no_build: bool = False


def read_settings() -> Settings:
    """Reads the environment now; nothing is cached, so tests and callers may change it between calls.

    Raises:
        MoegenError: MOEGEN_THREADS is not a whole number.
    """
    home = os.environ.get("MOEGEN_HOME")
    packs = os.environ.get("MOEGEN_PACKS", "")
    return Settings(
        home=Path(home) if home else Path(platformdirs.user_cache_dir("moegen")),
        packs=tuple(Path(part) for part in packs.split(os.pathsep) if part),
        threads=_count("MOEGEN_THREADS"),
        no_build=os.environ.get("MOEGEN_NO_BUILD", "") == "1",
    )


def _count(name: str) -> int:
    text = os.environ.get(name, "").strip() or "0"
    if not (text.isascii() and text.isdigit()):
        raise MoegenError(f"{text!r} is not a count", f"environment variable {name}", "set a whole number, 0 for all")
    return int(text)


def cpu_threads(settings: Settings) -> int:
    """Threads a CPU kernel may use: the setting, or every core this process is allowed on."""
    if settings.threads > 0:
        return settings.threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
