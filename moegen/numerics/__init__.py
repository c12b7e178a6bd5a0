"""NVFP4 in torch: casts, contracts, activations, layouts with inverses, and the reference of every op and of the layer.

Everything that decides a byte is written out here once and mirrored in each target's device library.
"""

from moegen.numerics import activations, contracts, e2m1, e4m3, elementary, exact, layouts, reference, rounding, router
from moegen.numerics.calibrate import StaticScales, calibrate
from moegen.numerics.contracts import global_scale_pair, pair_from_decode, pair_from_encode
from moegen.numerics.quantize import (
    Quantized,
    block_amax,
    dequantize,
    dynamic_pair,
    quantize_rows,
    tensor_amax,
    unscaled_values,
)
from moegen.numerics.reference import defined_rows, run_op, run_pipeline
from moegen.numerics.reference.layer import ActivationQuantizer, LayerWeights, layer_reference
from moegen.numerics.router import Router, Score

__all__ = [
    "ActivationQuantizer",
    "LayerWeights",
    "Quantized",
    "Router",
    "Score",
    "StaticScales",
    "activations",
    "block_amax",
    "calibrate",
    "contracts",
    "defined_rows",
    "dequantize",
    "dynamic_pair",
    "e2m1",
    "e4m3",
    "elementary",
    "exact",
    "global_scale_pair",
    "layer_reference",
    "layouts",
    "pair_from_decode",
    "pair_from_encode",
    "quantize_rows",
    "reference",
    "rounding",
    "router",
    "run_op",
    "run_pipeline",
    "tensor_amax",
    "unscaled_values",
]
