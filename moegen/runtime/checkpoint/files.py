"""The tensors of a checkpoint directory by name, over one or many safetensors files."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from moegen.core.errors import CheckpointError

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """Where a tensor lies. ``dtype`` is safetensors' name; ``shape`` counts elements, so a byte of FP4 counts two."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]


class TensorFiles:
    """Names → tensors of a checkpoint. Headers are read when first needed, data when asked for.

    Args:
        path: a directory with ``model.safetensors.index.json`` or ``*.safetensors``, or one safetensors file.

    Raises:
        CheckpointError: nothing to read there, a damaged index, or a file that the index names is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._handles: dict[Path, Any] = {}
        self._files = self._find()

    @property
    def directory(self) -> Path:
        """Folder that holds config.json."""
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def names(self) -> frozenset[str]:
        """Every tensor name of the checkpoint."""
        return frozenset(self._files)

    def entry(self, name: str) -> TensorEntry:
        """Dtype and shape of a tensor, without reading it.

        Raises:
            CheckpointError: its file is damaged, or lacks a tensor that the index promises.
        """
        part = self._slice(name)
        return TensorEntry(name=name, file=self._files[name], dtype=part.get_dtype(), shape=tuple(part.get_shape()))

    def load(self, name: str, first: int = 0, count: int | None = None) -> torch.Tensor:
        """Reads a tensor, or ``count`` entries of its first dimension from ``first``, as it is stored."""
        part = self._slice(name)
        if count is None or not part.get_shape():
            return self._open(self._files[name]).get_tensor(name)
        if part.get_dtype() == "F4":  # safetensors slices FP4 by bytes but reshapes by elements
            return self._open(self._files[name]).get_tensor(name)[first : first + count]
        return part[first : first + count]

    def _slice(self, name: str) -> Any:
        file = self._files[name]
        try:
            return self._open(file).get_slice(name)
        except SafetensorError as error:
            raise CheckpointError(f"no tensor {name}, which the index promises ({error})", str(file), _AGAIN) from error

    def _open(self, file: Path) -> Any:
        if file not in self._handles:
            self._handles[file] = _open(file)
        return self._handles[file]

    def _find(self) -> dict[str, Path]:
        if self.path.is_file():
            return self._scan([self.path])
        index = self.path / INDEX
        if index.is_file():
            return _read_index(index)
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise CheckpointError(
                "no safetensors files", str(self.path), "give the folder that holds config.json and *.safetensors"
            )
        return self._scan(files)

    def _scan(self, files: list[Path]) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for file in files:
            for name in self._open(file).keys():  # noqa: SIM118 (not a mapping)
                if name in found:
                    raise CheckpointError(
                        f"tensor {name} is also in {found[name].name}",
                        str(file),
                        f"write {INDEX} to say which one counts",
                    )
                found[name] = file
        return found


_AGAIN = "fetch the file again"


def _open(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except FileNotFoundError as error:
        raise CheckpointError("file is missing", str(file), _AGAIN) from error
    except (SafetensorError, OSError) as error:
        size = file.stat().st_size
        raise CheckpointError(
            f"truncated or damaged safetensors file of {size} bytes ({error})", str(file), _AGAIN
        ) from error


def _read_index(index: Path) -> dict[str, Path]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        files = {name: index.parent / file for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"damaged index ({error!r})", str(index), _AGAIN) from error
    absent = sorted({file.name for file in files.values() if not file.is_file()})
    if absent:
        raise CheckpointError(
            f"{len(absent)} files of the index are missing: {', '.join(absent[:8])}", str(index), _AGAIN
        )
    return files
