"""Runs every case on the GPU and saves its results: ``python -m benchmarks.ptx.h200_proof.run results.npz``."""

import json
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ptx.h200_proof import scalar, shapes
from benchmarks.ptx.h200_proof.device import Device
from benchmarks.ptx.h200_proof.interpreter import encoded

LOST_CONTEXT = ("700", "715", "719")
"""Driver errors after which a process can launch nothing more."""


def run_from(first: int, path: Path) -> None:
    """Runs the cases from number ``first`` until the last one or until the context is lost; saves what it has."""
    device = Device()
    arrays: dict[str, Any] = {}
    failures: dict[str, str] = {}
    everything = shapes.cases() + scalar.cases()
    number = first
    for number in range(first, len(everything)):
        try:
            results, extra = device.run(everything[number], encoded)
        except RuntimeError as error:
            failures[everything[number].name] = str(error)
            print(f"{everything[number].name}: {error}", flush=True)
            if any(code in str(error) for code in LOST_CONTEXT):
                break
            continue
        for name, value in (results | extra).items():
            arrays[f"{number}/{name}"] = value
    state = {"device": device.name, "driver": device.driver, "failures": failures, "next": number + 1}
    arrays["state"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    np.savez_compressed(path, **arrays)


def main() -> None:
    start = time.time()
    arrays: dict[str, Any] = {}
    failures: dict[str, str] = {}
    names = [case.name for case in shapes.cases() + scalar.cases()]
    state: dict[str, Any] = {"next": 0}
    with tempfile.TemporaryDirectory() as folder:
        while state["next"] < len(names):
            part = Path(folder) / f"{state['next']}.npz"
            child = get_context("spawn").Process(target=run_from, args=(state["next"], part))
            child.start()
            child.join()
            with np.load(part) as saved:
                state = json.loads(saved["state"].tobytes())
                arrays.update({name: saved[name] for name in saved.files if name != "state"})
            failures |= state["failures"]
    index = {
        "device": state["device"],
        "driver": state["driver"],
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(time.time() - start, 1),
        "names": names,
        "failures": failures,
    }
    arrays["index"] = np.frombuffer(json.dumps(index).encode(), np.uint8)
    np.savez_compressed(sys.argv[1], **arrays)
    where = f"{state['device']}, driver {state['driver']}"
    print(f"{len(names)} cases, {len(failures)} failures, {index['seconds']} s on {where}")


if __name__ == "__main__":
    main()
