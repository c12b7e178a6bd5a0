"""The machine and software of this process, as trials record it and tables are matched against it."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from moegen import __version__
from moegen.core.devices import DeviceFacts
from moegen.store.trials import Environment


def current_environment(facts: DeviceFacts) -> Environment:
    """Describes a runner's machine; asks no driver beyond what torch already knows."""
    return Environment(
        device=facts.name,
        target=facts.target.value,
        arch=facts.arch,
        cores=facts.cores,
        l2_bytes=facts.l2_bytes,
        cuda=torch.version.cuda or "",
        os=f"{platform.system()} {platform.machine()}",
        tvm_ffi=_version("apache-tvm-ffi"),
        torch=torch.__version__,
        moegen=__version__,
    )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
