"""Serving: a generated package and a checkpoint become a layer; this package can start neither compiler nor tuner."""

from moegen.runtime.bank import ScaleReport
from moegen.runtime.checkpoint import Checkpoint, ExpertWeights, Projection
from moegen.runtime.choice import Choice
from moegen.runtime.decision import Decision, Source
from moegen.runtime.expert_parallel import experts_per_rank
from moegen.runtime.explain import Explanation
from moegen.runtime.functional import FusedMatrix, fused_experts, prepare_experts
from moegen.runtime.layer import MoELayer
from moegen.runtime.package import LoadedPackage, load
from moegen.runtime.runners import CpuRunner, CudaRunner

__all__ = [
    "Checkpoint",
    "Choice",
    "CpuRunner",
    "CudaRunner",
    "Decision",
    "ExpertWeights",
    "Explanation",
    "FusedMatrix",
    "LoadedPackage",
    "MoELayer",
    "Projection",
    "ScaleReport",
    "Source",
    "experts_per_rank",
    "fused_experts",
    "load",
    "prepare_experts",
]
