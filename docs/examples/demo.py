"""One NVFP4 checkpoint through the whole chain on a CPU: spec, kernels, build, tune, run, compare, explain, report.

    python docs/examples/demo.py [--work FOLDER]

Every step is the ``moegen`` command that a user would type. About a minute on two cores; needs a C++ compiler and
nothing else outside the virtual environment.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is made here; nothing is looked up

from moegen.cli.app import app
from moegen.cli.console import duration, show_line, show_note, show_table

SCHEME = "NVFP4"
TOKENS = (1, 8, 32, 128)
ROUTINGS = ("uniform", "one_hot")
PIPELINES = 6
TUNE_BUDGET = "90s"
"""On a busy machine fewer points are tuned, and serving interpolates or clamps; an idle one needs a third of it."""
#: Activations are quantised by the formula that quantised the checkpoint, and rounding to bf16 before the second
#: quantisation puts all three epilogue modes into one numerics class, so that the tuner may choose among them.
EDITS = {"contract: te": "contract: compressed_tensors", "pre_quant_round: fp32": "pre_quant_round: bf16"}


class Demo:
    """The steps, each timed; all files lie below ``work``."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.checkpoint = work / "checkpoint"
        self.spec = work / "qwen3_moe_demo.yaml"
        self.package = work / "generated" / "qwen3_moe_demo"
        self.report = work / "report.html"
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Announces a step and keeps its time."""
        show_note(f"\n== {name}")
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began

    def moegen(self, *arguments: object) -> None:
        """Runs one ``moegen`` command in this process; its failure ends the demo."""
        words = [str(argument) for argument in arguments]
        show_note(f"$ moegen {' '.join(words)}")
        code = app(words, standalone_mode=False)
        if code:
            raise SystemExit(code)

    def run(self) -> None:
        """All steps in order, then the summary."""
        from docs.examples.qwen3_moe.model import make_model, sample_tokens
        from docs.examples.qwen3_moe.quantise import save_checkpoint

        with self.step("checkpoint"):
            show_note("a small Qwen3-MoE, its experts quantised to NVFP4 by the compressed-tensors library")
            model = make_model()
            save_checkpoint(model, self.checkpoint, SCHEME, sample_tokens(model, 4, 64, seed=1))
            self.moegen("inspect", self.checkpoint)
        with self.step("spec"):
            self.write_spec()
            self.moegen("validate", self.spec)
            self.moegen("plan", self.spec, "--target", "cpu")
        with self.step("generate"):
            self.moegen("generate", self.spec, "--out", self.package)
        with self.step("build"):
            self.moegen("build", self.package, "--target", "cpu")
        with self.step("verify"):
            self.moegen("verify", self.package)
        with self.step("tune"):
            self.moegen("tune", self.package, "--effort", "quick", "--budget", TUNE_BUDGET)
        with self.step("run and compare"):
            accuracy = self.compare()
        with self.step("explain and report"):
            self.moegen("explain", self.package, "--tokens", 24)
            self.moegen("report", self.package, "-o", self.report)
        self.summary(accuracy)

    def write_spec(self) -> None:
        """The spec that ``moegen new`` reads off the checkpoint, with what a demo wants to tune."""
        self.spec.unlink(missing_ok=True)
        self.moegen("new", "--from-checkpoint", self.checkpoint, "--name", self.spec.stem, "-o", self.spec)
        text = self.spec.read_text()
        for written, wanted in EDITS.items():
            text = text.replace(written, wanted)
        text += f"tune: {{tokens: {list(TOKENS)}, routing: [{', '.join(ROUTINGS)}], pipelines: {PIPELINES}}}\n"
        self.spec.write_text(text)
        show_note(f"edited: {', '.join(EDITS.values())}; fewer points to tune")

    def compare(self) -> list[tuple[str, str]]:
        """The model on moegen against transformers' own run on the dequantised weights; rows for the summary."""
        from docs.examples.qwen3_moe.run import compare_with_transformers
        from moegen.runtime import load

        found = compare_with_transformers(self.checkpoint, load(self.package, target="cpu"), SCHEME)
        same = "the same" if found.same_tokens else "NOT the same"
        rows = [
            ("logits against transformers", f"relative error {found.relative_error:.4f}, cosine {found.cosine:.5f}"),
            ("most likely token", f"the same at {found.top1:.0%} of the positions"),
            ("greedy generation", f"{same} {len(found.expected)} tokens: {found.generated}"),
        ]
        show_table(("checked", "found"), rows)
        if not found.same_tokens:
            raise SystemExit("moegen and transformers generate different tokens")
        return rows

    def summary(self, accuracy: list[tuple[str, str]]) -> None:
        """What was built, who won where, how exact it is, how long it took, where the report lies."""
        from moegen.core.enums import Target
        from moegen.core.package import read_manifest
        from moegen.core.settings import read_settings
        from moegen.store.tables import TABLES, load

        package = read_manifest(self.package)
        offer = package.targets[Target.CPU]
        modes = sorted({pipeline.epilogue.value for pipeline in offer.pipelines})
        show_line()
        winners = []
        for path in sorted((read_settings().home / TABLES).glob(f"{package.digest}-*")):
            for point in load(path).points:
                times = {candidate.pipeline: candidate.median_us for candidate in point.candidates}
                winner, default = times[point.winner], times.get(offer.default)
                winners.append((point.tokens, point.routing, point.winner, f"{winner:.0f}", f"{default or winner:.0f}"))
        show_table(("tokens", "routing", "winner", "µs", "default µs"), winners, "winners")
        show_line()
        rows = [
            ("kernels built", f"{len(offer.sources)} in {len(offer.pipelines)} pipelines ({', '.join(modes)})"),
            *accuracy,
            *((f"time: {name}", duration(seconds)) for name, seconds in self.seconds.items()),
            ("time: all", duration(sum(self.seconds.values()))),
            ("report", str(self.report.resolve())),
        ]
        show_table(("demo", ""), rows, "summary")


def main() -> None:
    """Parses the command line and runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/demo"), help="folder for everything that is made")
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MOEGEN_HOME", str(work.resolve() / "home"))
    Demo(work).run()


if __name__ == "__main__":
    main()
