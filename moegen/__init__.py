"""moegen: a compiler for Mixture-of-Experts layers in NVFP4."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["load"]

if TYPE_CHECKING:
    from moegen.runtime import load


def __getattr__(name: str) -> Any:
    """Imports the runtime (and torch) only when model code asks for it."""
    if name == "load":
        from moegen.runtime import load

        return load
    raise AttributeError(f"module 'moegen' has no attribute {name!r}")
