"""The layer that model code calls."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from moegen.runtime.bank import ScaleReport
from moegen.runtime.checkpoint import Checkpoint, ExpertWeights
from moegen.runtime.engine import Engine
from moegen.runtime.explain import Explanation, explain
from moegen.runtime.ops import moe_layer, register

if TYPE_CHECKING:
    from moegen.runtime.package import LoadedPackage


class MoELayer(torch.nn.Module):
    """Routed experts of one layer: ``layer(x, topk_ids, topk_weights)``.

    Made by :meth:`moegen.runtime.package.LoadedPackage.from_checkpoint` or ``from_tensors``. Weights are not
    parameters: they are packed bytes with fp32 scales, and ``module.to(dtype)`` or a state dict must not touch them.
    """

    def __init__(self, loaded: "LoadedPackage", engine: Engine) -> None:
        super().__init__()
        self.loaded = loaded
        self.engine = engine
        self._handle = register(engine)

    def forward(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """Computes the experts' weighted sum.

        Args:
            x: tokens ``[T, H]``, bf16 or fp16 as the spec says, contiguous; T = 0 is fine.
            topk_ids: ``[T, k]`` int64 or int32, global expert ids; ids of other ranks, -1 and ids >= E add exactly 0.
            topk_weights: ``[T, k]`` fp32.

        Returns:
            ``[T, H]``, a new tensor in x's dtype.

        Raises:
            TensorError: a tensor has the wrong dtype, shape, device or strides, or T exceeds :attr:`max_tokens`.
        """
        if torch.compiler.is_compiling():
            return moe_layer(x, topk_ids, topk_weights, self._handle)
        return self.engine.run(x, topk_ids, topk_weights)

    @property
    def max_tokens(self) -> int:
        """Most tokens of one call."""
        return self.engine.max_tokens

    @property
    def first_expert(self) -> int:
        """Global id of the first expert held here."""
        return self.engine.first_expert

    @property
    def scale_report(self) -> ScaleReport:
        """What the loaded checkpoint's scales look like."""
        return self.engine.bank.report

    @property
    def weight_bytes(self) -> int:
        """Bytes of this layer's packed weights."""
        return self.engine.bank.bytes

    @property
    def workspace_bytes(self) -> int:
        """Bytes of one workspace, which all layers of the package share."""
        return self.engine.pool.workspace_bytes

    def explain(self, tokens: int) -> Explanation:
        """Why a call with ``tokens`` tokens runs what it runs, from the decision back to the line of the spec.

        Raises:
            MoegenError: ``tokens`` is below 1.
        """
        return explain(self.loaded, tokens)

    def reload(self, weights: ExpertWeights) -> None:
        """Takes over other weights of the same layer in place: storage is kept, so captured graphs replay with them.

        Raises:
            CheckpointError: they do not fit this layer.
        """
        self.engine.bank.reload(self.loaded.pack(weights, self.engine))

    def reload_checkpoint(self, path: str | Path | Checkpoint, layer: int) -> None:
        """:meth:`reload` from a checkpoint's layer; the same experts as before.

        Raises:
            CheckpointError: as :meth:`moegen.runtime.package.LoadedPackage.read`, or the weights do not fit.
        """
        self.reload(self.loaded.read(path, layer, self.first_expert, self.engine.held))

    def extra_repr(self) -> str:
        """One line for ``print(model)``."""
        engine = self.engine
        return (
            f"{self.loaded.package.name}, {self.loaded.target.value}, experts {engine.first_expert} … "
            f"{engine.first_expert + engine.held - 1}, hidden {engine.hidden}, top_k {engine.top_k}, "
            f"{self.weight_bytes} weight bytes"
        )
