"""Typed errors of the interpreter: what was wrong with the PTX text, the launch, or the run."""

from typing import TYPE_CHECKING

from moegen.core.errors import MoegenError

if TYPE_CHECKING:
    from moegen.ptx.report import Report


class PtxError(MoegenError):
    """Base of every error that the interpreter raises on purpose."""


class PtxSyntaxError(PtxError):
    """The text is not PTX, or ends early; ``where`` is ``file:line``."""


class UnsupportedTarget(PtxError):
    """The module's ``.version``, ``.target`` or ``.address_size`` is outside what is implemented."""


class UnknownInstruction(PtxError):
    """An opcode with these modifiers is not implemented; nothing of the module runs."""


class OperandError(PtxError):
    """An instruction has the wrong number, kind or width of operands."""


class ParameterError(PtxError):
    """Launch arguments do not fit the entry's parameters, or the launch shape is illegal."""


class ExecutionError(PtxError):
    """The kernel did something that the hardware would refuse, fault on, or never finish.

    ``report`` holds the finding with kernel, line, CTA, warp, lane and address; ``reports`` all findings of the run
    so far.
    """

    def __init__(self, what: str, where: str = "", fix: str = "", report: "Report | None" = None) -> None:
        super().__init__(what, where, fix)
        self.report = report
        self.reports: list[Report] = []


class CaptureError(PtxError):
    """A host function asked the replacement runtime for something that it does not offer."""


class RecordError(PtxError):
    """A recorded launch is damaged or of another version."""
