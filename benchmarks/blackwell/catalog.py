"""Compiles the Blackwell kernels of the shipped specs without a GPU and looks at their machine code.

    python -m benchmarks.blackwell.catalog benchmarks/blackwell/catalog.json            # what `moegen generate` writes
    python -m benchmarks.blackwell.catalog FILE --legal --every 10                      # a tenth of all legal schedules
    python -m benchmarks.blackwell.catalog FILE --target sm_103a --every 8

A kernel that several specs need is compiled and counted once. Compiled objects stay in the artifact store
(``MOEGEN_HOME``), so an interrupted run goes on where it was. Each target and scope is one entry of FILE, and of the
table beside it. The exit code is 1 when a variant does not compile, spills, or lacks an instruction that it must have.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.blackwell.machine_code import BLOCK_SCALED_MMA, OTHER_MMA, TO_E2M1, disassemble, resources
from moegen.build.builder import HIT, BuildReport, Progress, VariantReport, artifact_key, build
from moegen.build.toolchain import CUBIN, OBJECT
from moegen.build.toolchains import toolchains_for
from moegen.cli.console import progress
from moegen.codegen.planning import plan
from moegen.codegen.registry import catalog
from moegen.codegen.render import render
from moegen.codegen.variant import Variant
from moegen.core.enums import Epilogue, OpKind, Target
from moegen.core.ops import OpSpec
from moegen.core.package import Package, TargetPackage, read_manifest, write_manifest
from moegen.core.paths import data_root
from moegen.core.settings import read_settings
from moegen.spec.load import load_spec
from moegen.store.artifacts import ArtifactStore

WORK = Path("build/catalog")
TABLE_HEADER = """# Blackwell kernels of the shipped specs, compiled without a GPU

Compiled, not run: `make catalog`. Seconds are wall time of one compile, on a machine that was doing other things too;
sizes are of the object that serving loads. *mma* and *e2m1* are the block-scaled MMAs and the conversions to E2M1 in
the machine code. Every variant by name: `catalog.json`.
"""


@dataclass(frozen=True, kw_only=True)
class Needed:
    """A variant and the specs that need it."""

    variant: Variant
    specs: tuple[str, ...]


def spec_files() -> list[Path]:
    """The quickstart and every shipped model."""
    root = data_root("specs")
    return [root / "quickstart.yaml", *sorted((root / "models").glob("*.yaml"))]


def needed(target: Target, legal: bool) -> dict[str, Needed]:
    """Variants by name: those that the specs' packages hold, or every legal schedule of every op."""
    found: dict[str, Needed] = {}
    for path in spec_files():
        spec = load_spec(path)
        made = plan(spec.model_copy(update={"targets": tuple({*spec.targets, target})}), target)
        variants = [item.variant for item in made.judged if item.verdict.legal] if legal else made.variants
        for variant in variants:
            known = found.get(variant.name)
            specs = (*(known.specs if known else ()), spec.name)
            found[variant.name] = Needed(variant=variant, specs=tuple(dict.fromkeys(specs)))
    return found


def write_package(variants: Sequence[Variant], target: Target, folder: Path) -> None:
    """One package of loose kernels, which ``moegen build`` can build."""
    sources = []
    for variant in variants:
        rendered = render(variant, catalog(target))
        path = folder / rendered.source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered.text)
        sources.append(rendered.source)
    package = TargetPackage(default="", pipelines=(), sources=tuple(sources))
    write_manifest(Package(name="catalog", spec_digest="", layer={}, targets={target: package}), folder)


def compile_all(folder: Path, target: Target, count: int, jobs: int, store: ArtifactStore) -> BuildReport:
    """Builds the package, with progress; what the store holds already is not compiled again."""
    with progress(f"compile {target.value}", count) as lane:

        def step(done: Progress) -> None:
            lane.advance(done.result)

        return build(folder, [target], jobs=jobs, progress=step, store=store)


def stored(folder: Path, target: Target, store: ArtifactStore) -> BuildReport:
    """What the store holds of the package already, as a report."""
    package = read_manifest(folder)
    compilers = toolchains_for(target)
    identities = {suffix: compiler.identity() for suffix, compiler in compilers.items()}
    report = BuildReport(package=package.digest)
    for source in package.targets[target].sources:
        suffix = Path(source.path).suffix
        key = artifact_key(source, compilers[suffix], identities[suffix]).digest
        if store.lookup(key) is not None:
            report.variants.append(VariantReport(target=target, variant=source.variant, result=HIT, key=key))
    return report


def form_of(variant: Variant) -> str:
    """How a gemm's tile is made; empty for other ops."""
    values = variant.schedule.as_dict()
    if "swap_ab" not in values:
        return ""
    pair = "pair" if values["cta_group"] == 2 else ""
    return f"swapped {pair}".strip() if values["swap_ab"] else pair or "plain"


def lacking(op: OpSpec, mma: int, other_mma: int, e2m1: int) -> list[str]:
    """Instructions that an op's machine code must hold and does not."""
    quantises = op.epilogue is Epilogue.FUSED_FP4 or op.kind in (OpKind.QUANTIZE, OpKind.DEINTERLEAVE_QUANTIZE)
    missing = []
    if op.kind in (OpKind.GEMM1, OpKind.GEMM2) and not (mma if op.w4a4 else other_mma):
        missing.append("block-scaled MMA" if op.w4a4 else "MMA")
    if quantises and op.kind is not OpKind.GEMM2 and not e2m1:
        missing.append("conversion to E2M1")
    return missing


def inspect(item: Needed, directory: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """One row: what the artifact of a variant is made of."""
    op = item.variant.op
    code, used = disassemble(directory / CUBIN), resources(directory / CUBIN)
    mma, other, e2m1 = code.count(BLOCK_SCALED_MMA), code.count(*OTHER_MMA), code.count(TO_E2M1)
    return {
        "variant": item.variant.name,
        "specs": list(item.specs),
        "op": op.kind.value,
        "epilogue": op.epilogue.value if op.kind is OpKind.GEMM1 and op.epilogue else "",
        "form": form_of(item.variant),
        "artifact": directory.name[:16],
        "seconds": meta["compile_s"],
        "object_bytes": (directory / OBJECT).stat().st_size,
        "cubin_bytes": (directory / CUBIN).stat().st_size,
        **asdict(used),
        "instructions": len(code.instructions),
        "spills": code.spills,
        "mma": mma,
        "e2m1": e2m1,
        "lacks": lacking(op, mma, other, e2m1),
    }


def inspect_all(found: dict[str, Needed], report: BuildReport, store: ArtifactStore) -> list[dict[str, Any]]:
    """A row for every built variant, in order of names."""
    built = {item.variant: item.key for item in report.variants if item.ok}
    rows = []
    with progress("inspect", len(built)) as lane:
        for name in sorted(built):
            artifact = store.lookup(built[name])
            assert artifact is not None
            rows.append(inspect(found[name], artifact.directory, artifact.manifest.meta))
            lane.advance()
    return rows


def table(runs: dict[str, Any]) -> str:
    """The document: for each run what was covered, and one line an op, epilogue and form."""
    columns = "op|epilogue|form|objects|seconds (median, most)|KB|registers|instructions|mma|e2m1|spills"
    text = [TABLE_HEADER]
    for name, run in runs.items():
        text += [
            f"\n## {name}\n",
            f"{run['built']} of {run['planned']} variants compiled ({run['of']} in all); {run['objects']} different "
            f"objects; {run['shared']} variants serve more than one spec.",
            f"{run['date']}, commit {run['commit'][:10]}, {run['compiler']}.\n",
            f"| {columns.replace('|', ' | ')} |",
            "|" + "---|" * (columns.count("|") + 1),
            *_lines(run["rows"]),
        ]
    return "\n".join(text) + "\n"


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["op"], row["epilogue"], row["form"]), []).append(row)
    for key, members in sorted(groups.items()):
        seconds = [row["seconds"] for row in members]
        cells = (
            *key,
            len({row["artifact"] for row in members}),
            f"{median(seconds):.1f}, {max(seconds):.1f}",
            _range(members, "object_bytes", 1000),
            *(_range(members, name) for name in ("registers", "instructions", "mma", "e2m1", "spills")),
        )
        yield "| " + " | ".join(map(str, cells)) + " |"


def _range(rows: list[dict[str, Any]], name: str, unit: int = 1) -> str:
    low, high = (round(pick(row[name] for row in rows) / unit) for pick in (min, max))
    return str(low) if low == high else f"{low} to {high}"


def write(path: Path, runs: dict[str, Any]) -> None:
    """Writes the file, one row a line, and the table beside it."""
    entries = []
    for name, run in runs.items():
        rows = ",\n".join("   " + json.dumps(row) for row in run["rows"])
        head = json.dumps({key: value for key, value in run.items() if key != "rows"}, indent=2)
        entries.append(f' {json.dumps(name)}: {head[:-2]},\n  "rows": [\n{rows}\n  ]\n }}')
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n")
    path.with_name("CATALOG.md").write_text(table(runs))


def run(target: Target, legal: bool, every: int, jobs: int, compiles: bool) -> dict[str, Any]:
    """Compiles and inspects one scope of one target."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    found = needed(target, legal)
    chosen = dict(sorted(found.items())[::every])
    began = time.monotonic()
    folder = WORK / f"{target.value}{'-legal' if legal else ''}"
    write_package([item.variant for item in chosen.values()], target, folder)
    store = ArtifactStore.from_settings(read_settings())
    report = compile_all(folder, target, len(chosen), jobs, store) if compiles else stored(folder, target, store)
    rows = inspect_all(chosen, report, store)
    compilers = toolchains_for(target).values()
    return {
        "what": "compiled, not run on hardware",
        "date": date.today().isoformat(),
        "commit": commit,
        "compiler": ", ".join(f"{compiler.name} {compiler.discover()}" for compiler in compilers),
        "of": len(found),
        "planned": len(chosen),
        "built": len(rows),
        "objects": len({row["artifact"] for row in rows}),
        "shared": sum(len(row["specs"]) > 1 for row in rows),
        "wall_seconds": round(time.monotonic() - began),
        "compile_seconds": round(sum({row["artifact"]: row["seconds"] for row in rows}.values())),
        "failed": [{"variant": item.variant, "result": item.result, "log": item.log[-600:]} for item in report.failed],
        "rows": rows,
    }


def main() -> None:
    """Runs one scope, writes it beside the others, and fails when a kernel is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", type=Target, default=Target.SM_100A)
    parser.add_argument("--legal", action="store_true", help="every legal schedule, not only those that are generated")
    parser.add_argument("--every", type=int, default=1, help="compile one in so many variants")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-compile", action="store_true", help="look at what an earlier run left, perhaps not all")
    wanted = parser.parse_args()
    made = run(wanted.target, wanted.legal, wanted.every, wanted.jobs, not wanted.no_compile)
    runs: dict[str, Any] = json.loads(wanted.file.read_text()) if wanted.file.exists() else {}
    scope = "all legal schedules" if wanted.legal else "generated"
    part = f", one in {wanted.every}" if wanted.every > 1 else ""
    runs[f"{wanted.target.value}, {scope}{part}"] = made
    write(wanted.file, runs)
    bad = [row["variant"] for row in made["rows"] if row["spills"] or row["stack_bytes"] or row["lacks"]]
    failed = len(made["failed"])
    print(f"{made['built']} of {made['planned']} compiled, {failed} failed, {len(bad)} spill or lack something")
    for name in bad:
        print(name)
    sys.exit(bool(bad or made["failed"]))


if __name__ == "__main__":
    main()
