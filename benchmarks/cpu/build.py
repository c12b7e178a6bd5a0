"""Cold and warm build of the quickstart on this machine, and what importing moegen costs.

    python benchmarks/cpu/build.py [--rounds 5] [--json]

Cold: an empty store, one compiler a core. Warm: everything is found by content. Load: a fresh process loads the built
package and every kernel of one pipeline. Each figure is the median of the rounds with the least and the greatest; the
machine's load average is printed, since a busy machine shows in all of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from moegen.build.builder import build  # noqa: E402
from moegen.codegen.packaging import generate  # noqa: E402
from moegen.core.enums import Target  # noqa: E402
from moegen.store.artifacts import ArtifactStore  # noqa: E402
from moegen.store.upkeep import stat  # noqa: E402

SPEC = ROOT / "specs" / "quickstart.yaml"


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fresh_process(statement: str, home: Path) -> float:
    """Seconds of one statement in a new interpreter, without the interpreter's own start."""
    script = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    environment = {**os.environ, "MOEGEN_HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout)


def one_round(folder: Path) -> dict[str, float]:
    """Every figure once, in an empty folder."""
    package, store = folder / "quickstart", ArtifactStore(folder / "home")
    figures = {"generate, all targets": seconds_of(lambda: generate(SPEC, package))}
    figures["cold build, cpu"] = seconds_of(lambda: build(package, [Target.CPU], store=store))
    figures["warm build, cpu"] = seconds_of(lambda: build(package, [Target.CPU], store=store))
    (root,) = stat(store)
    figures["kernels"] = root.entries
    figures["MiB"] = root.bytes / (1 << 20)
    figures["import moegen"] = fresh_process("import moegen", store.home)
    figures["import moegen.cli.app"] = fresh_process("import moegen.cli.app", store.home)
    figures["import torch"] = fresh_process("import torch", store.home)
    load = f"import moegen.runtime; t = time.perf_counter(); moegen.runtime.load({str(package)!r}, target='cpu')"
    figures["load, kernels included"] = fresh_process(load, store.home)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="moegen-bench-") as folder:
            rounds.append(one_round(Path(folder)))
    columns = {name: sorted(figures[name] for figures in rounds) for name in rounds[0]}
    summary = {
        name: {"median": statistics.median(values), "least": values[0], "greatest": values[-1]}
        for name, values in columns.items()
    }
    if options.json:
        print(json.dumps({"rounds": options.rounds, "load": os.getloadavg(), "figures": summary}, indent=1))
        return
    print(f"{options.rounds} rounds, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    for name, found in summary.items():
        print(f"{name:24} {found['median']:9.3f}   {found['least']:.3f} … {found['greatest']:.3f}")


if __name__ == "__main__":
    main()
