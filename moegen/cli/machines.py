"""Which machine runs a target's kernels: this one, or the interpreter where this one has no such GPU."""

from typing import TYPE_CHECKING

from moegen.core.enums import Target
from moegen.core.errors import MoegenError

if TYPE_CHECKING:
    from moegen.core.runner import Runner

INTERPRETED = (
    ("checked here", "bytes of every output against the reference, on exact sums and on stale memory"),
    (
        "checked here",
        "races, proxy fences, barriers, tensor memory, accesses out of bounds, deadlocks, in one random order",
    ),
    ("only hardware", "time, clocks, power"),
    ("only hardware", "how the tensor core rounds sums that are not exact"),
    ("only hardware", "that machine code does what its PTX says; memory orders weaker than the interpreter's"),
)
"""What an interpreted run shows, and what it cannot."""


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
    from moegen.ptx.options import Options
    from moegen.ptx.runner import InterpreterRunner

    return InterpreterRunner(target, (Options(races=True),)), True
