"""Recorded launches in a file: PTX, launch shapes and the memory they saw, so that a failing case can be replayed.

The file is a NumPy archive: ``index`` is JSON (as bytes), ``m<k>_before`` and ``m<k>_after`` are allocations,
``p<k>`` are PTX texts. Nothing in it is executed on loading.
"""

import json
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moegen.ptx.errors import RecordError
from moegen.ptx.launch import Launch, Module, Result, run_launches
from moegen.ptx.memory import GlobalMemory
from moegen.ptx.options import Options

FORMAT = 1


@dataclass
class _Step:
    launches: list[Launch]
    before: list[tuple[int, str, Any]]
    after: list[Any] = field(default_factory=list)


class Recording:
    """Launches with their memory, in order.

    Attributes:
        ptx: (name, text) of every module.
        steps: groups of launches that ran together.
    """

    def __init__(self) -> None:
        self.ptx: list[tuple[str, str]] = []
        self.steps: list[_Step] = []

    def add_ptx(self, name: str, text: str) -> None:
        """Adds a module."""
        self.ptx.append((name, text))

    def before(self, memory: GlobalMemory, launches: list[Launch]) -> None:
        """Starts a step: keeps a copy of all registered memory."""
        blocks = [(b.base, b.name, b.bytes(b.base, b.size).copy()) for b in memory.blocks if b.size]
        self.steps.append(_Step(launches, blocks))

    def after(self, memory: GlobalMemory) -> None:
        """Ends a step: keeps what memory holds now."""
        step = self.steps[-1]
        step.after = [memory.bytes(base, data.size).copy() for base, _, data in step.before]

    def save(self, path: Path | str) -> None:
        """Writes the file."""
        arrays: dict[str, Any] = {}
        for k, (_, text) in enumerate(self.ptx):
            arrays[f"p{k}"] = np.frombuffer(text.encode(), np.uint8)
        steps = []
        for s, step in enumerate(self.steps):
            for k, (_, _, data) in enumerate(step.before):
                arrays[f"m{s}_{k}_before"] = data
                if step.after:
                    arrays[f"m{s}_{k}_after"] = step.after[k]
            steps.append(
                {
                    "launches": [_launch_json(item) for item in step.launches],
                    "blocks": [{"base": base, "name": name} for base, name, _ in step.before],
                    "finished": bool(step.after),
                }
            )
        index = {"format": FORMAT, "ptx": [name for name, _ in self.ptx], "steps": steps}
        arrays["index"] = np.frombuffer(json.dumps(index).encode(), np.uint8)
        np.savez_compressed(path, allow_pickle=False, **arrays)


def _launch_json(item: Launch) -> dict[str, Any]:
    return {
        "entry": item.entry,
        "grid": item.grid,
        "block": item.block,
        "cluster": item.cluster,
        "dynamic_smem": item.dynamic_smem,
        "params": item.params.hex(),
        "programmatic": item.programmatic,
        "cooperative": item.cooperative,
    }


def _launch_of(data: dict[str, Any]) -> Launch:
    shapes = {key: (int(data[key][0]), int(data[key][1]), int(data[key][2])) for key in ("grid", "block", "cluster")}
    return Launch(
        entry=str(data["entry"]),
        dynamic_smem=int(data["dynamic_smem"]),
        params=bytes.fromhex(data["params"]),
        programmatic=bool(data["programmatic"]),
        cooperative=bool(data["cooperative"]),
        **shapes,
    )


@dataclass
class Replay:
    """What a replay gave.

    Attributes:
        results: per step.
        differences: per step, allocation name to the number of bytes that differ from the recording.
        memory: per step, allocation name to final bytes.
    """

    results: list[Result] = field(default_factory=list)
    differences: list[dict[str, int]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether every byte is as recorded."""
        return not any(self.differences)


def record(
    text: str, module: Module, launches: list[Launch], options: Options | None = None
) -> tuple[Recording, Result]:
    """Runs launches of a module, loaded from ``text``, and records them with the memory that it has registered."""
    recording = Recording()
    recording.add_ptx(module.name, text)
    recording.before(module.memory, launches)
    result = module.run(launches, options)
    recording.after(module.memory)
    return recording, result


def replay(path: Path | str, options: Options | None = None) -> Replay:
    """Runs a recording again. Memory is placed elsewhere: pointers in parameters and memory are moved with it.

    Raises:
        RecordError: not a recording, or of another format.
        ExecutionError: a finding that stops the run.
    """
    if not zipfile.is_zipfile(path):
        raise RecordError("not a recording: no NumPy archive", str(path), "record a run with moegen.ptx.record")
    try:
        with np.load(path, allow_pickle=False) as archive:
            index = json.loads(archive["index"].tobytes())
            arrays = {name: archive[name] for name in archive.files if name != "index"}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise RecordError(f"not a recording: {error}", str(path)) from error
    if index.get("format") != FORMAT:
        raise RecordError(f"format {index.get('format')}, this version reads {FORMAT}", str(path))
    modules: dict[str, Module] = {}
    for k, name in enumerate(index["ptx"]):
        module = Module(arrays[f"p{k}"].tobytes().decode(), name)
        modules |= dict.fromkeys(module.entries, module)
    out = Replay()
    for s, step in enumerate(index["steps"]):
        _replay_step(s, step, arrays, modules, options or Options(), out)
    return out


def _replay_step(
    s: int, step: dict[str, Any], arrays: dict[str, Any], modules: dict[str, Module], options: Options, out: Replay
) -> None:
    memory = GlobalMemory()
    moves: list[tuple[int, int, int]] = []
    places: list[tuple[str, Any, int]] = []
    for k, block in enumerate(step["blocks"]):
        data = arrays[f"m{s}_{k}_before"]
        room = np.zeros(data.size + 1024, np.uint8)
        # Same offset within 512 bytes, so that alignment is as it was.
        start = (block["base"] - room.ctypes.data) % 512
        view = room[start : start + data.size]
        view[:] = data
        memory.register(view.ctypes.data, data.size, block["name"], keep=room)
        moves.append((block["base"], data.size, view.ctypes.data))
        places.append((block["name"], view, k))
    for _, view, _ in places:
        relocate(view, moves)
    items = []
    for data in step["launches"]:
        item = _launch_of(data)
        if item.entry not in modules:
            raise RecordError(f"no PTX for entry {item.entry}")
        params = np.frombuffer(bytearray(item.params), np.uint8)
        relocate(params, moves)
        items.append((modules[item.entry], Launch(**{**item.__dict__, "params": params.tobytes()})))
    out.results.append(run_launches(items, options, memory))
    differences, finals = {}, {}
    reverse = [(new, size, old) for old, size, new in moves]
    for name, view, k in places:
        final = view.copy()
        relocate(final, reverse)
        finals[f"{name} #{k}"] = final
        if step["finished"]:
            count = int((final != arrays[f"m{s}_{k}_after"]).sum())
            if count:
                differences[f"{name} #{k}"] = count
    out.differences.append(differences)
    out.memory.append(finals)


def relocate(data: Any, moves: list[tuple[int, int, int]]) -> None:
    """Rewrites every aligned 8-byte word that points into a moved allocation."""
    count = data.size // 8
    words = np.frombuffer(data[: count * 8].tobytes(), np.uint64)
    for old, size, new in moves:
        for k in np.flatnonzero((words >= np.uint64(old)) & (words < np.uint64(old + size))).tolist():
            data[8 * k : 8 * k + 8] = np.frombuffer(struct.pack("<Q", int(words[k]) - old + new), np.uint8)
