"""Compares what an H200 left in memory with the interpreter, over the same PTX, parameters and inputs.

    python -m benchmarks.ptx.h200_own.compare FOLDER OUT.npz [summary.json]

Every byte of every argument counts, inputs and padding included: what a kernel must not touch must be equal too.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from moegen.ptx.options import Options
from moegen.ptx.record import replay


def _ordered(bits: Any) -> Any:
    """bf16 codes as integers in the order of their values, so that differences count units in the last place."""
    value = bits.astype(np.int32)
    return np.where(value & 0x8000, 0x8000 - value, value)


def judge(mine: Any, theirs: Any, dtype: str, rule: str) -> dict[str, Any]:
    """Differences of one argument's bytes: ``different`` bytes, ``failed`` values by the rule, ``worst``."""
    out: dict[str, Any] = {"different": int((mine != theirs).sum())}
    name, _, number = rule.partition(":")
    if not out["different"] or name != dtype:
        return out | {"failed": out["different"]}
    if dtype == "bf16":
        gap = np.abs(_ordered(mine.view(np.uint16)) - _ordered(theirs.view(np.uint16))).astype(np.float64)
    else:
        a, b = mine.view(np.float32).astype(np.float64), theirs.view(np.float32).astype(np.float64)
        gap = np.where(mine.view(np.uint32) == theirs.view(np.uint32), 0, np.abs(a - b) / np.maximum(np.abs(b), 1))
    return out | {"failed": int((~(gap <= float(number))).sum()), "worst": float(gap.max()), "values": int(gap.size)}


def compare(path: Path, entry: dict[str, Any], device: dict[str, Any]) -> dict[str, Any]:
    """One case; ``device`` holds the memory by step and block."""
    replayed = replay(path, Options(seed=3, resident_clusters=0))
    with np.load(path, allow_pickle=False) as archive:
        index = json.loads(archive["index"].tobytes())
        text = archive["p0"].tobytes()
    row: dict[str, Any] = {
        "variant": entry["variant"],
        "ptx_sha256": hashlib.sha256(text).hexdigest(),
        "launches": [item["entry"] for step in index["steps"] for item in step["launches"]],
        "rule": entry["rule"],
        "bytes": 0,
        "different": 0,
        "failed": 0,
    }
    for s, step in enumerate(index["steps"]):
        for k, block in enumerate(step["blocks"]):
            number = re.match(r"argument (\d+) ", block["name"])
            dtype = entry["dtypes"][int(number[1])] if number else ""
            mine = replayed.memory[s][f"{block['name']} #{k}"]
            found = judge(mine, device[f"m{s}_{k}"], dtype, entry["rule"])
            row["bytes"] += mine.size
            row["different"] += found["different"]
            row["failed"] += found["failed"]
            if "worst" in found:
                row["worst"] = max(row.get("worst", 0.0), found["worst"])
    return row


def main() -> None:
    folder = Path(sys.argv[1])
    with np.load(sys.argv[2], allow_pickle=False) as archive:
        head = json.loads(archive["index"].tobytes())
        arrays = {name: archive[name] for name in archive.files if name != "index"}
    table: dict[str, Any] = {}
    for entry in json.loads((folder / "index.json").read_text()):
        name = entry["name"]
        if name in head["failures"]:
            table[name] = {"device": head["failures"][name]}
            continue
        device = {key.removeprefix(f"{name}/"): value for key, value in arrays.items() if key.startswith(f"{name}/")}
        table[name] = compare(folder / f"{name}.npz", entry, device)
        if table[name]["failed"]:
            print(name, table[name], flush=True)
    good = sum(not row.get("failed", 1) for row in table.values())
    print(f"{good} of {len(table)} kernels agree ({head['device']}, driver {head['driver']}, {head['date']})")
    if len(sys.argv) > 3:
        facts = {key: head[key] for key in ("device", "driver", "date")}
        Path(sys.argv[3]).write_text(json.dumps(facts | {"agree": good, "cases": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
