"""Reads the experts of one layer out of an NVFP4 checkpoint: codes and scale bytes bit for bit, scales in one form."""

from moegen.runtime.checkpoint.files import TensorFiles
from moegen.runtime.checkpoint.quant_config import QuantConfig, read_quant_config
from moegen.runtime.checkpoint.reader import Checkpoint
from moegen.runtime.checkpoint.weights import ExpertWeights, Projection

__all__ = ["Checkpoint", "ExpertWeights", "Projection", "QuantConfig", "TensorFiles", "read_quant_config"]
