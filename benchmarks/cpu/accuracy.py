"""The accuracy gates of a whole layer on compiled CPU kernels.

    python benchmarks/cpu/accuracy.py [--seeds 3] [--json]

Gaussian bf16 weights are quantised once to NVFP4 and served as they are. Each layer runs through ``MoELayer``, every
epilogue mode in turn, and is compared with: the layer in fp64 on the dequantised weights, without any rounding point
(W4A16's gate; for W4A4 it quantises unrounded activations, so a code flips where a rounding point moved a value over a
tie); the torch reference of the same numerics (W4A4's gate: the same quantised activations); and the layer in fp64 on
the bf16 weights before quantisation. The last rows quantise the dequantised weights a second time with other head-room,
as re-quantised exports do. Figures are the worst of the seeds; ``weights`` is the cosine of the matrices themselves.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from runtime.packages import compiled_package, reference_package, spec_with  # noqa: E402

from moegen.core.enums import ActivationKind, Contract, Epilogue  # noqa: E402
from moegen.core.ops import Activation  # noqa: E402
from moegen.numerics import dequantize, quantize_rows, tensor_amax  # noqa: E402
from moegen.numerics.contracts import global_scale_pair, pair_from_decode  # noqa: E402
from moegen.numerics.layouts import Projection as Half  # noqa: E402
from moegen.numerics.quantize import Quantized  # noqa: E402
from moegen.numerics.reference.layer import (  # noqa: E402
    ActivationQuantizer,
    LayerWeights,
    activation_exact,
    layer_reference,
)
from moegen.runtime import CpuRunner, ExpertWeights, Projection  # noqa: E402

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS = 1024, 384, 12, 4, 96
SWIGLU = Activation(kind=ActivationKind.SWIGLU)
MODES = {"bf16": ("interleaved", "compact"), "nvfp4": ("interleaved", "compact", "fused_fp4")}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; errors are relative, Frobenius norm."""

    format: str
    epilogue: str
    quantised: str
    to_fp64: float
    to_numerics: float
    cosine: float
    norm: float
    weights: float

    def worse(self, other: "Row") -> "Row":
        """The worse value of each figure."""
        return Row(
            format=self.format,
            epilogue=self.epilogue,
            quantised=self.quantised,
            to_fp64=max(self.to_fp64, other.to_fp64),
            to_numerics=max(self.to_numerics, other.to_numerics),
            cosine=min(self.cosine, other.cosine),
            norm=max(self.norm, other.norm, key=lambda ratio: abs(ratio - 1)),
            weights=min(self.weights, other.weights),
        )


def quantised(weight: Tensor, headroom: float = 1.0) -> Projection:
    """bf16 ``[E, N, K]`` to one NVFP4 projection, a second-level scale per expert."""
    codes, scales, second = [], [], []
    for expert in weight:
        pair = global_scale_pair(tensor_amax(expert).reshape(1) * headroom, Contract.TE)[0]
        rows = quantize_rows(expert, pair, Contract.TE)
        codes.append(rows.codes[:, : expert.shape[1] // 2])
        scales.append(rows.scales)
        second.append(pair[1])
    return Projection(codes=torch.stack(codes), scales=torch.stack(scales), second=torch.stack(second))


def restored(side: Projection) -> Tensor:
    """The bf16 weights that a projection stands for."""
    experts = zip(side.codes, side.scales, side.second, strict=True)
    return torch.stack(
        [dequantize(Quantized(codes=codes, scales=scales), second).bfloat16() for codes, scales, second in experts]
    )


def cosine(a: Tensor, b: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a.flatten().double(), b.flatten().double(), dim=0).item()


def dense_layer(x: Tensor, ids: Tensor, weights: Tensor, matrices: list[Tensor]) -> Tensor:
    """The layer on unquantised weights in fp64."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    gate, up, down = (matrix.double() for matrix in matrices)
    for expert in range(EXPERTS):
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        rows = x[tokens].double()
        hidden = activation_exact(SWIGLU, (rows @ gate[expert].T, rows @ up[expert].T))
        y.index_add_(0, tokens, hidden @ down[expert].T * weights[tokens, slots].double()[:, None])
    return y


def canonical(sides: list[Projection]) -> LayerWeights:
    """The reference's view of the same codes."""
    gate, up, down = (Half(codes=side.codes, scales=side.scales) for side in sides)
    return LayerWeights(
        w1=(gate, up),
        w2=down,
        w1_alpha=torch.stack([sides[0].second, sides[1].second], 1),
        w2_alpha=sides[2].second[:, None],
    )


def one_seed(seed: int, folder: Path) -> list[Row]:
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator)
    shapes = [(EXPERTS, INTERMEDIATE, HIDDEN)] * 2 + [(EXPERTS, HIDDEN, INTERMEDIATE)]
    matrices = [(draw(*shape) * shape[2] ** -0.5).bfloat16() for shape in shapes]
    x = draw(TOKENS, HIDDEN).bfloat16()
    weights, ids = draw(TOKENS, EXPERTS).softmax(-1).topk(TOP_K)
    original = dense_layer(x, ids, weights, matrices)
    once = [quantised(matrix) for matrix in matrices]
    twice = [quantised(restored(side), headroom=1.3) for side in once]
    rows = []
    for name, sides in (("once", once), ("twice", twice)):
        kept = min(cosine(matrix, restored(side)) for matrix, side in zip(matrices, sides, strict=True))
        for form, modes in MODES.items():
            rows += one_format(form, modes, name, sides, (x, ids, weights), original, kept, folder / f"{form}-{name}")
    return rows


def one_format(
    form: str,
    modes: tuple[str, ...],
    name: str,
    sides: list[Projection],
    inputs: tuple[Tensor, Tensor, Tensor],
    original: Tensor,
    kept: float,
    folder: Path,
) -> list[Row]:
    scales = {"activation_scale": {"gemm1": "static", "gemm2": "static"}} if form == "nvfp4" else {}
    spec = spec_with(
        geometry={"hidden": HIDDEN, "intermediate": INTERMEDIATE, "experts": EXPERTS, "top_k": TOP_K},
        epilogues=list(modes),
        tune={"tokens": [TOKENS]},
    ) | {"activations": {"format": form} | scales}
    compiled, reference = compiled_package(spec, folder / "compiled"), reference_package(spec, folder / "reference")
    given = ExpertWeights(gate=sides[0], up=sides[1], down=sides[2])
    quantizer = None
    if form == "nvfp4":
        given = compiled.load(runner=CpuRunner()).calibrate(given, *inputs)
        quantizer = quantizer_of(given)
    in_fp64 = layer_reference(*inputs, canonical(sides), SWIGLU, quantizer=quantizer)
    rows = []
    for mode in modes:
        y = compiled.load(runner=CpuRunner(), epilogue=Epilogue(mode)).from_tensors(given)(*inputs).double()
        same_numerics = reference.load(epilogue=Epilogue(mode)).from_tensors(given)(*inputs).double()
        rows.append(
            Row(
                format="W4A4" if form == "nvfp4" else "W4A16",
                epilogue=mode,
                quantised=name,
                to_fp64=((y - in_fp64).norm() / in_fp64.norm()).item(),
                to_numerics=((y - same_numerics).norm() / same_numerics.norm()).item(),
                cosine=cosine(y, original),
                norm=(y.norm() / original.norm()).item(),
                weights=kept,
            )
        )
    return rows


def quantizer_of(weights: ExpertWeights) -> ActivationQuantizer:
    """The activation scales that the layer was given, for the reference."""
    first, second = weights.gemm1_input(), weights.down.input
    assert first is not None
    assert second is not None
    return ActivationQuantizer(
        contract=Contract.TE, x_scale=pair_from_decode(first.reshape(1)), h_scale=pair_from_decode(second)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    worst: list[Row] = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            rows = one_seed(seed, Path(folder))
        worst = [a.worse(b) for a, b in zip(worst, rows, strict=True)] if worst else rows
    if options.json:
        print(json.dumps([vars(row) for row in worst]))
        return
    print("| format | epilogue | quantised | error to fp64 | error to the same numerics | cosine | norm | weights |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for row in worst:
        figures = f"{row.to_fp64:.2e} | {row.to_numerics:.2e} | {row.cosine:.4f} | {row.norm:.4f} | {row.weights:.4f}"
        print(f"| {row.format} | {row.epilogue} | {row.quantised} | {figures} |")


if __name__ == "__main__":
    main()
