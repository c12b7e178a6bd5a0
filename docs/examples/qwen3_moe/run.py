"""A small Qwen3-MoE through the whole chain on a CPU: quantise, save, generate, build, load, compare.

python docs/examples/qwen3_moe/run.py [NVFP4|NVFP4A16] [FOLDER]
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from docs.examples.qwen3_moe.compare import Comparison, compare
from docs.examples.qwen3_moe.model import make_model, sample_tokens
from docs.examples.qwen3_moe.quantise import SCHEMES, dequantise_experts, quantise_activations, save_checkpoint
from docs.examples.qwen3_moe.spec import write_spec
from moegen.build.builder import build
from moegen.codegen.packaging import generate
from moegen.core.enums import Target
from moegen.runtime import LoadedPackage, load
from moegen.runtime.integrations.transformers import load_model

NEW_TOKENS = 12


def make_checkpoint(folder: Path, scheme: str) -> Path:
    """Makes the model, quantises it and writes the checkpoint folder."""
    model = make_model()
    return save_checkpoint(model, folder / f"checkpoint-{scheme.lower()}", scheme, sample_tokens(model, 4, 64, seed=1))


def make_package(checkpoint: Path, folder: Path, **sections: Any) -> Path:
    """Spec, generated package and built kernels for a checkpoint's experts; returns the package's folder.

    ``sections`` replace sections of the spec.
    """
    spec = write_spec(checkpoint, folder / f"{checkpoint.name}.yaml", **sections)
    directory = folder / "generated" / checkpoint.name.replace("-", "_")
    generate(spec, directory)
    report = build(directory, [Target.CPU])
    if report.failed or report.disabled:
        raise SystemExit("\n".join([*report.disabled.values(), *(item.log for item in report.failed)]))
    return directory


def compare_with_transformers(checkpoint: Path, package: LoadedPackage, scheme: str) -> Comparison:
    """Logits and greedy tokens of the checkpoint on moegen against transformers' own run on the dequantised weights.

    With W4A4 that run also rounds the experts' inputs to NVFP4, by the compressed-tensors library.
    """
    reference, tensors = make_model(), load_file(checkpoint / "model.safetensors")
    dequantise_experts(reference, tensors, scheme)
    if scheme == "NVFP4":
        quantise_activations(reference, tensors, scheme)
    prompt = sample_tokens(reference, 1, 24, seed=6)
    return compare(load_model(checkpoint, package), reference, prompt, NEW_TOKENS)


def main(scheme: str, folder: Path) -> None:
    """Runs all steps and prints what came out."""
    checkpoint = make_checkpoint(folder, scheme)
    print(f"checkpoint  {checkpoint}")
    directory = make_package(checkpoint, folder)
    print(f"package     {directory}")
    package = load(directory, target=Target.CPU)
    found = compare_with_transformers(checkpoint, package, scheme)
    print(package.from_checkpoint(checkpoint, layer=1).explain(tokens=24))
    print(
        f"logits      relative error {found.relative_error:.4f}, cosine {found.cosine:.5f},"
        f" same top token {found.top1:.0%}"
    )
    print(f"moegen      {found.generated}")
    print(f"reference   {found.expected}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = sys.argv[1] if len(sys.argv) > 1 else "NVFP4"
    if chosen not in SCHEMES:
        raise SystemExit(f"{chosen} is none of {', '.join(SCHEMES)}")
    main(chosen, Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="moegen-qwen3-")))
