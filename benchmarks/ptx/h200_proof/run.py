"""Runs every case on the GPU and saves its results: ``python -m benchmarks.ptx.h200_proof.run results.npz``."""

import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks.ptx.h200_proof import scalar, shapes
from benchmarks.ptx.h200_proof.device import Device
from benchmarks.ptx.h200_proof.interpreter import encoded


def main() -> None:
    device = Device()
    start = time.time()
    arrays: dict[str, Any] = {}
    failures: dict[str, str] = {}
    everything = shapes.cases() + scalar.cases()
    for number, case in enumerate(everything):
        try:
            results, extra = device.run(case, encoded)
        except RuntimeError as error:
            failures[case.name] = str(error)
            print(f"{case.name}: {error}", flush=True)
            if "700" in str(error) or "719" in str(error) or "715" in str(error):
                break  # the context is lost
            continue
        for k, value in results.items():
            arrays[f"{number}/{k}"] = value
        for name, value in extra.items():
            arrays[f"{number}/{name}"] = value
    index = {
        "device": device.name,
        "driver": device.driver,
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(time.time() - start, 1),
        "names": [case.name for case in everything],
        "failures": failures,
    }
    arrays["index"] = np.frombuffer(json.dumps(index).encode(), np.uint8)
    np.savez_compressed(sys.argv[1], **arrays)
    where = f"{device.name}, driver {device.driver}"
    print(f"{len(everything)} cases, {len(failures)} failures, {index['seconds']} s on {where}")


if __name__ == "__main__":
    main()
