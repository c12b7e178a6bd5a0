"""Takes tensors out of a layer's container and keeps the account: what was missing, wrong, or left over."""

import torch

from moegen.core.errors import CheckpointError
from moegen.runtime.checkpoint.files import TensorFiles
from moegen.runtime.checkpoint.names import Dialect, Found

CODES = frozenset({"U8", "I8", "F4"})
SCALES = frozenset({"F8_E4M3", "U8"})
FLOATS = frozenset({"F32", "BF16", "F16"})
_SHOWN = 24
_HALF_BYTE = "F4"


class Taker:
    """Reads tensors below one container and collects every problem until :meth:`finish`."""

    def __init__(self, files: TensorFiles, found: Found, dialect: Dialect) -> None:
        self.found = found
        self.dialect = dialect
        self._files = files
        self._known: set[str] = set()
        self._missing: list[str] = []
        self._wrong: list[str] = []

    def allow(self, *rests: str) -> None:
        """Marks names as accounted for without reading them (another rank's expert, an input scale nobody needs)."""
        self._known.update(rests)

    def wrong(self, rest: str, problem: str) -> None:
        """Records a problem with a tensor's values."""
        self._wrong.append(f"{rest}: {problem}")

    def codes(self, rest: str, shape: tuple[int, ...], first: int = 0, count: int | None = None) -> torch.Tensor | None:
        """uint8 codes; ``shape`` in bytes (two codes a byte), before slicing."""
        return self._take(rest, CODES, shape, first, count)

    def scales(
        self, rest: str, shape: tuple[int, ...], first: int = 0, count: int | None = None
    ) -> torch.Tensor | None:
        """E4M3 block scales as uint8."""
        return self._take(rest, SCALES, shape, first, count)

    def floats(
        self, rest: str, shapes: tuple[tuple[int, ...], ...], first: int = 0, count: int | None = None
    ) -> torch.Tensor | None:
        """A small float tensor of one of ``shapes`` (before slicing), as fp32."""
        taken = self._take(rest, FLOATS, shapes[0], first, count, shapes[1:])
        return None if taken is None else taken.float()

    def finish(self, where: str) -> None:
        """Ends the account.

        Raises:
            CheckpointError: names every missing, wrong and left-over tensor (the first of each, when there are many).
        """
        left = sorted(self.found.rests - self._known)
        parts = [_listed("missing", self._missing), _listed("wrong", self._wrong), _listed("left over", left)]
        problems = "; ".join(part for part in parts if part)
        if problems:
            raise CheckpointError(
                f"{problems} (below {self.found.container}, read as {self.found.convention.form.value})",
                where,
                "complete or correct the checkpoint; for missing input scales recalibrate, or set the spec's"
                " activation_scale to dynamic_tensor",
            )

    def _take(
        self,
        rest: str,
        dtypes: frozenset[str],
        shape: tuple[int, ...],
        first: int,
        count: int | None,
        more_shapes: tuple[tuple[int, ...], ...] = (),
    ) -> torch.Tensor | None:
        self._known.add(rest)
        if rest not in self.found.rests:
            self._missing.append(rest)
            return None
        name = f"{self.found.container}.{rest}"
        entry = self._files.entry(name)
        stored = entry.shape if entry.dtype != _HALF_BYTE else (*entry.shape[:-1], entry.shape[-1] // 2)
        if entry.dtype not in dtypes:
            self._wrong.append(
                f"{rest}: dtype {entry.dtype}, expected {' or '.join(sorted(dtypes))} ({entry.file.name})"
            )
            return None
        if stored not in (shape, *more_shapes):
            self._wrong.append(f"{rest}: shape {list(stored)}, expected {list(shape)} ({entry.file.name})")
            return None
        tensor = self._files.load(name, first, count)
        return tensor if dtypes is FLOATS else tensor.view(torch.uint8)


def _listed(title: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {title}: {', '.join(names[:_SHOWN])}{more}"
