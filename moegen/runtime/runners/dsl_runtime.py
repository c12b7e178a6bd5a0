"""CuTeDSL's host runtime, which its objects expect to find loaded; the compiler itself is never imported."""

import ctypes
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from moegen.core.errors import MoegenError

DISTRIBUTION = "nvidia-cutlass-dsl-libs-cu13"
LIBRARY = "libcute_dsl_runtime.so"
_GET_IT = 'pip install "moegen[cutedsl]"'


def runtime_library() -> Path:
    """The library in its wheel.

    Raises:
        MoegenError: the wheel is not installed, or holds no such library.
    """
    try:
        files = distribution(DISTRIBUTION).files or ()
    except PackageNotFoundError as error:
        raise MoegenError(f"CuTeDSL kernels need {DISTRIBUTION}", "", _GET_IT) from error
    found = [Path(str(file.locate())) for file in files if file.name == LIBRARY and "stubs" not in file.parts]
    if not found:
        raise MoegenError(f"{DISTRIBUTION} holds no {LIBRARY}", "", _GET_IT)
    return found[0]


@cache
def load_runtime() -> ctypes.CDLL:
    """Loads the runtime once, visible to every object loaded later; raises MoegenError as :func:`runtime_library`."""
    return ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)
