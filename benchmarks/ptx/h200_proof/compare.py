"""Compares a file of GPU results with the interpreter: ``python -m benchmarks.ptx.h200_proof.compare results.npz
[summary.json]``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ptx.h200_proof import interpreter, scalar, shapes
from benchmarks.ptx.h200_proof.scalar import Case
from moegen.ptx import tensormap

#: Smallest normal number: a relative bound becomes an absolute one below it.
_SMALLEST = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126}


def _values(bits: Any, kind: str) -> Any:
    """Float values of result bits, or None for results that are not floats."""
    if kind == "f32" or kind == "tf32":
        return bits.view(np.float32).astype(np.float64)
    if kind == "f64":
        return bits.view(np.float64)
    if kind in {"f16", "f16x2"}:
        return bits.view(np.float16).astype(np.float64)
    if kind in {"bf16", "bf16x2"}:
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return None


def judge(case: Case, got: Any, want: Any) -> dict[str, Any]:
    """Differences under the case's rule.

    Returns:
        ``values``, ``different`` (bits), ``nan_payload`` (both NaN, other bits), ``failed`` (by the rule), ``worst``
        and, where the rule bounds only a range of arguments, ``without_bound`` (values outside it).
    """
    different = got != want
    a, b = _values(got, case.kind), _values(want, case.kind)
    nan = np.zeros(different.shape, bool)
    if a is not None:
        different = got.view(f"u{got.nbytes // a.size}") != want.view(f"u{got.nbytes // a.size}")
        nan = np.isnan(a) & np.isnan(b) & different
    wrong = different & ~nan
    out: dict[str, Any] = {
        "values": int(wrong.size),
        "different": int(wrong.sum()),
        "nan_payload": int(nan.sum()),
        "failed": int(wrong.sum()),
        "rule": case.rule,
    }
    if case.rule == "bits" or a is None:
        return out
    rule, _, number = case.rule.partition(":")
    limit = np.full(a.shape, float(number or 0))
    with np.errstate(all="ignore"):
        gap = np.abs(a - b)
        if rule == "ulp":
            gap = gap / np.spacing(np.maximum(np.abs(b), 2.0**-126).astype(np.float32)).astype(np.float64)
        elif rule == "relative":
            gap = gap / np.maximum(np.abs(b), _SMALLEST[case.kind.removesuffix("x2")])
        elif rule == "rel":
            gap = gap / np.maximum(np.abs(b), np.sqrt(np.mean(np.where(np.isfinite(b), b, 0) ** 2)))
        elif rule == "lg2":
            x = _values(case.args[0], "f32")
            inner = (x > 0.5) & (x < 2)
            gap = np.where(inner, gap, gap / np.abs(b))
            limit[:] = 2.0**-22
        elif rule == "sincos":
            x = np.abs(_values(case.args[0], "f32"))
            limit = np.where(x <= 2 * np.pi, 2.0**-20.5, 2.0**-14.7)
            unbounded = (x > 100 * np.pi) & np.isfinite(x)
            limit[unbounded] = np.inf
            out["without_bound"] = int(unbounded.sum())
    gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, gap)
    bounded = np.isfinite(limit)
    out["worst"] = float(np.nanmax(gap[bounded])) if bounded.any() else 0.0
    out["failed"] = int((bounded & ~(gap <= limit)).sum())
    return out


def main() -> None:
    with np.load(sys.argv[1]) as archive:
        index = json.loads(archive["index"].tobytes())
        arrays = {name: archive[name] for name in archive.files}
    everything = shapes.cases() + scalar.cases()
    table: dict[str, Any] = {}
    for number, case in enumerate(everything):
        if case.name in index["failures"] or f"{number}/{case.outputs[0]}" not in arrays:
            table[case.name] = {"device": index["failures"].get(case.name, "not run")}
            continue
        results = interpreter.run(case)
        rows = [judge(case, results[k], arrays[f"{number}/{k}"]) for k in case.outputs]
        row = {key: sum(r[key] for r in rows) for key in ("values", "different", "nan_payload", "failed")}
        row |= {"rule": case.rule}
        if "worst" in rows[0]:
            row["worst"] = max(r["worst"] for r in rows)
        if "without_bound" in rows[0]:
            row["without_bound"] = sum(r["without_bound"] for r in rows)
        for argument, (array, fields) in case.maps.items():
            ones = (1,) * len(fields["dims"])
            ours = tensormap.encode(
                tensormap.TensorMap(
                    int(arrays[f"{number}/address{argument}"]), fields["format"], fields["dims"], fields["strides"],
                    fields["box"], ones, fields["swizzle"],
                )
            )  # fmt: skip
            row[f"map{argument}_bytes_unlike_driver"] = int(
                (np.frombuffer(ours, np.uint8) != arrays[f"{number}/map{argument}"]).sum()
            )
            del array
        table[case.name] = row
    bad = {name: row for name, row in table.items() if row.get("failed", 1)}
    for name, row in bad.items():
        print(name, row)
    good = len(table) - len(bad)
    print(f"{good} of {len(table)} cases agree ({index['device']}, driver {index['driver']}, {index['date']})")
    if len(sys.argv) > 2:
        head = {key: index[key] for key in ("device", "driver", "date")}
        Path(sys.argv[2]).write_text(json.dumps(head | {"agree": good, "cases": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
