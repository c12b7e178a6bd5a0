"""Which machine runs a target's kernels: this one, or the interpreter where this one has no such GPU."""

from typing import TYPE_CHECKING

from moegen.core.enums import Target
from moegen.core.errors import MoegenError

if TYPE_CHECKING:
    from moegen.core.runner import Runner

ONLY_HARDWARE = (
    "time, clocks, power",
    "how the tensor core rounds sums that are not exact",
    "that machine code does what its PTX says",
    "memory orders weaker than the interpreter's, and what other processes do to a kernel",
)
"""What an interpreted run cannot show."""


def runner_here(target: Target) -> "tuple[Runner, bool]":
    """A runner for ``target``, and whether it interprets.

    Raises:
        MoegenError: the interpreter cannot run on this machine either.
    """
    from moegen.runtime.runners import default_runner

    try:
        return default_runner(target), False
    except MoegenError:
        if target is Target.CPU:
            raise
    from moegen.ptx import Check, Options, Severity
    from moegen.ptx.runner import InterpreterRunner

    # A Hopper token tile may be wider than an expert's rows: what lies past them is multiplied and thrown away.
    severity = {Check.UNINITIALISED: Severity.WARNING} if target is Target.SM_90A else {}
    return InterpreterRunner(target, (Options(races=True, severity=severity),)), True
