"""Runs recordings on the GPU and saves the memory they leave: ``python -m benchmarks.ptx.h200_own.run FOLDER OUT.npz``.

Needs NumPy and the driver, which compiles the very PTX text of the recording.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ptx.h200_proof.device import Device
from moegen.ptx.record import relocate

_ALIGNMENT = 512


def place(device: Device, blocks: list[dict[str, Any]], data: list[Any]) -> list[tuple[int, int, int]]:
    """Copies a step's memory to the device, at the recorded offsets within 512 bytes; (old, size, new) addresses."""
    moves = []
    for block, before in zip(blocks, data, strict=True):
        room = device.allocate(before.size + 2 * _ALIGNMENT)
        moves.append((block["base"], before.size, room + (block["base"] - room) % _ALIGNMENT))
    for (_, _, address), before in zip(moves, data, strict=True):
        moved = before.copy()
        relocate(moved, moves)
        device.upload(address, moved)
    return moves


def run(device: Device, path: Path) -> dict[str, Any]:
    """Memory after each step of a recording, by the recording's names."""
    with np.load(path, allow_pickle=False) as archive:
        index = json.loads(archive["index"].tobytes())
        arrays = {name: archive[name] for name in archive.files if name != "index"}
    (text,) = [arrays[f"p{k}"].tobytes().decode() for k in range(len(index["ptx"]))]
    left: dict[str, Any] = {}
    for s, step in enumerate(index["steps"]):
        data = [arrays[f"m{s}_{k}_before"] for k in range(len(step["blocks"]))]
        moves = place(device, step["blocks"], data)
        for item in step["launches"]:
            params = np.frombuffer(bytearray(bytes.fromhex(item["params"])), np.uint8)
            relocate(params, moves)
            device.launch(
                device.function(text, item["entry"], item["dynamic_smem"]),
                grid=tuple(item["grid"]),
                block=tuple(item["block"]),
                cluster=tuple(item["cluster"]),
                smem=item["dynamic_smem"],
                params=params.tobytes(),
                programmatic=item["programmatic"],
                cooperative=item["cooperative"],
            )
        device.synchronize()
        back = [(new, size, old) for old, size, new in moves]
        for k, (_, size, address) in enumerate(moves):
            after = np.empty(size, np.uint8)
            device.download(address, after)
            relocate(after, back)
            left[f"m{s}_{k}"] = after
    return left


def main() -> None:
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    device, start = Device(), time.time()
    arrays: dict[str, Any] = {}
    failures: dict[str, str] = {}
    names = [entry["name"] for entry in json.loads((folder / "index.json").read_text())]
    for name in names:
        try:
            arrays |= {f"{name}/{key}": value for key, value in run(device, folder / f"{name}.npz").items()}
        except RuntimeError as error:
            # A lost context fails everything after it too, which the comparison then shows.
            failures[name] = str(error)
            print(f"{name}: {error}", flush=True)
    index = {
        "device": device.name,
        "driver": device.driver,
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(time.time() - start, 1),
        "failures": failures,
    }
    arrays["index"] = np.frombuffer(json.dumps(index).encode(), np.uint8)
    np.savez_compressed(target, **arrays)
    print(f"{len(names)} kernels, {len(failures)} failures, {index['seconds']} s on {device.name}")


if __name__ == "__main__":
    main()
