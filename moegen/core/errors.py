"""Errors for people: what was wrong, where, and what to do about it."""


class MoegenError(Exception):
    """Base of every error that moegen raises on purpose.

    Args:
        what: what is wrong, with the numbers that show it.
        where: the place: file, line, field, tensor, expert.
        fix: what to do, ideally a command to run.
    """

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" To fix: {self.fix}" if self.fix else ""
        return f"{place}{self.what}{remedy}"


class SpecError(MoegenError):
    """A spec file says something that cannot be: unknown key, contradiction, impossible shape."""


class IllegalVariant(MoegenError):
    """A schedule cannot serve an op; ``what`` carries the predicate and its numbers."""


class RenderError(MoegenError):
    """A template could not be rendered, or rendered text failed its own check."""


class StaleGenerated(MoegenError):
    """Files under ``generated/`` differ from what the spec renders to now."""


class ToolchainMissing(MoegenError):
    """A compiler is absent or too old; ``fix`` says how to get one."""


class BuildFailed(MoegenError):
    """A compiler refused a source; ``what`` carries the end of its log."""


class BuildRefused(MoegenError):
    """A compile was asked for where ``MOEGEN_NO_BUILD=1`` forbids it."""


class NotBuilt(MoegenError):
    """A kernel that the caller needs has no artifact; ``fix`` is the exact command that builds it."""


class StoreError(MoegenError):
    """The artifact store or the tuning database could not do what was asked."""


class StoreFull(StoreError):
    """The disk or the quota below the store is exhausted; nothing half-written is left behind."""


class TableError(MoegenError):
    """A frozen table is damaged, or belongs to another package, target or numerics class."""


class CheckpointError(MoegenError):
    """A checkpoint lacks, duplicates or mis-shapes a tensor; ``where`` names file, tensor and expert."""


class LayoutError(MoegenError):
    """A tensor is not in the layout it claims; ``where`` names the first wrong element."""


class TensorError(MoegenError):
    """A caller's tensor has the wrong dtype, shape, device or strides."""


class TuneError(MoegenError):
    """A tuning run cannot start or has no valid candidate."""
