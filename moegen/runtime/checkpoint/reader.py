"""Reads one layer's experts from a checkpoint, whole or an expert-parallel slice of it.

Every key below the layer's expert container must be accounted for, and every tensor that the layer needs must be there
with the right dtype and shape; whatever is not is told in one error. Codes and scale bytes are never recomputed.
"""

from collections.abc import Collection
from functools import cached_property
from pathlib import Path

from moegen.core.enums import GateUpOrder
from moegen.core.errors import CheckpointError
from moegen.runtime.checkpoint.files import TensorFiles
from moegen.runtime.checkpoint.forms import LayerShape, read_fused, read_per_expert, read_stacked
from moegen.runtime.checkpoint.names import (
    DIALECTS,
    MODELOPT,
    Dialect,
    Form,
    Found,
    experts_named,
    layers_with_experts,
)
from moegen.runtime.checkpoint.quant_config import QuantConfig, declared_experts, read_model_config, read_quant_config
from moegen.runtime.checkpoint.taker import Taker
from moegen.runtime.checkpoint.weights import ExpertWeights


class Checkpoint:
    """A checkpoint folder, opened once and read layer by layer.

    Args:
        path: folder with config.json and safetensors files.

    Raises:
        CheckpointError: nothing readable there, or a quantisation that is not NVFP4.
    """

    def __init__(self, path: str | Path) -> None:
        self.files = TensorFiles(path)
        self.quant: QuantConfig | None = read_quant_config(self.files.directory)
        self.config = read_model_config(self.files.directory)

    @cached_property
    def _layers(self) -> dict[int, list[Found]]:
        return layers_with_experts(self.files.names)

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have routed experts, quantised or not."""
        return tuple(sorted(self._layers))

    def exclusion(self, layer: int) -> str | None:
        """The exclude pattern that leaves a layer's experts unquantised, or None when they are NVFP4.

        Raises:
            CheckpointError: no such layer, or the patterns cover only some of its experts.
        """
        found, config = self._found(layer), self.quant
        if config is None:
            return None
        modules = _modules(found)
        hits = {module: config.exclusion(module) for module in modules}
        out = [module for module, pattern in hits.items() if pattern is not None]
        if not out:
            return None
        if len(out) < len(modules):
            kept = next(module for module, pattern in hits.items() if pattern is None)
            raise CheckpointError(
                f"{len(out)} of {len(modules)} expert modules are excluded from quantisation (not {kept})",
                self._where(layer),
                "quantise all experts of a layer, or none",
            )
        return hits[out[0]]

    def quantised_layers(self) -> tuple[int, ...]:
        """Layers whose experts this checkpoint stores as NVFP4."""
        return tuple(layer for layer in self.layers if self.exclusion(layer) is None)

    def experts_total(self, layer: int) -> int:
        """Routed experts of a layer over all ranks, from config.json or from the names.

        Raises:
            CheckpointError: no such layer, or neither source says.
        """
        total = declared_experts(self.config) or experts_named(self._found(layer))
        if not total:
            raise CheckpointError(
                "config.json does not say how many experts there are", self._where(layer), "add num_experts to it"
            )
        return total

    def read_experts(
        self,
        layer: int,
        *,
        hidden: int,
        intermediate: int,
        first_expert: int = 0,
        experts: int | None = None,
        gated: bool = True,
        bias: bool = False,
        static_inputs: bool | Collection[str] = False,
        order: GateUpOrder | None = None,
    ) -> ExpertWeights:
        """Reads the experts ``first_expert … first_expert + experts - 1`` of a layer.

        Args:
            layer: number in the checkpoint's names.
            hidden, intermediate: H and I in elements, as the spec says.
            first_expert, experts: this rank's slice; all experts by default.
            gated: the activation has a gate.
            bias: both projections have a bias.
            static_inputs: which of ``gate``, ``up``, ``down`` need a static input scale (True: all); scales in the file
                that nobody needs are left aside.
            order: what the spec says about a fused matrix's gate and up; None trusts the naming convention.

        Raises:
            CheckpointError: the layer is missing, excluded or not NVFP4; any tensor is missing, left over, of the wrong
                dtype or shape, or holds an impossible scale; the file's gate, or its order, is not the spec's.
        """
        found = self._found(layer)
        self._refuse_unquantised(layer)
        total = self.experts_total(layer)
        count = total - first_expert if experts is None else experts
        if first_expert < 0 or count < 1 or first_expert + count > total:
            raise CheckpointError(
                f"experts {first_expert} … {first_expert + count - 1} of {total}",
                self._where(layer),
                "ask for experts that exist",
            )
        if gated is not (found.convention.gate is not None):
            has, wants = ("no gate", "has one") if gated else ("a gate", "has none")
            raise CheckpointError(
                f"the experts have {has}, the activation {wants}",
                self._where(layer),
                "correct activation.kind in the spec",
            )
        if found.convention.fused and order not in (None, found.convention.order):
            raise CheckpointError(
                f"{found.convention.models} stores gate and up {found.convention.order.value}, the spec says otherwise",
                self._where(layer),
                f"set weights.gate_up_order: {found.convention.order.value} in the spec",
            )
        shape = LayerShape(
            hidden=hidden,
            intermediate=intermediate,
            first=first_expert,
            experts=count,
            total=total,
            gated=gated,
            bias=bias,
            static_sides=_sides(static_inputs),
        )
        taker = Taker(self.files, found, self._dialect(layer))
        readers = {Form.PER_EXPERT: read_per_expert, Form.STACKED: read_stacked}
        weights = readers.get(found.convention.form, read_fused)(taker, shape)
        taker.finish(self._where(layer))
        return weights

    def _found(self, layer: int) -> Found:
        candidates = self._layers.get(layer, [])
        if not candidates:
            known = ", ".join(map(str, self.layers)) or "none"
            raise CheckpointError(
                f"no expert tensors under a known name (layers that have some: {known})",
                self._where(layer),
                "choose another layer",
            )
        if len(candidates) > 1:
            candidates = [
                found for found in candidates if self._rows_first(found) == (found.convention.form is Form.FUSED_ROWS)
            ]
        if len(candidates) != 1:
            names = ", ".join(f"{found.container} ({found.convention.form.value})" for found in candidates)
            raise CheckpointError(
                f"expert tensors under several conventions: {names}", self._where(layer), "keep one of them"
            )
        return candidates[0]

    def _rows_first(self, found: Found) -> bool:
        """True when a fused layer has one second-level scale per half, the mark of the row-major form."""
        name = f"{found.container}.{found.convention.up}_{MODELOPT.second}"
        return name in self.files.names and len(self.files.entry(name).shape) == 2

    def _refuse_unquantised(self, layer: int) -> None:
        pattern = self.exclusion(layer)
        if pattern is not None:
            raise CheckpointError(
                f"experts are excluded from quantisation by {pattern!r}",
                self._where(layer),
                "keep the model's own experts for this layer",
            )

    def _dialect(self, layer: int) -> Dialect:
        """Who wrote the tensors, by their names; config.json must agree."""
        found = self._found(layer)
        written = [dialect for dialect in DIALECTS if _names_codes(found, dialect)]
        if len(written) > 1:
            names = " and ".join(dialect.codes for dialect in written)
            raise CheckpointError(
                f"experts have both {names}: the form of the scales cannot be told", self._where(layer), "keep one"
            )
        dialect = written[0] if written else MODELOPT
        if self.quant is not None and self.quant.dialect is not dialect:
            raise CheckpointError(
                f"config.json says {self.quant.dialect.name}, tensors are named as {dialect.name} names them:"
                " the form of the global scales cannot be told",
                self._where(layer),
                "correct quantization_config.quant_method",
            )
        return dialect

    def _where(self, layer: int) -> str:
        return f"{self.files.path}, layer {layer}"


def _sides(static_inputs: bool | Collection[str]) -> frozenset[str]:
    if isinstance(static_inputs, bool):
        return frozenset({"gate", "up", "down"} if static_inputs else ())
    return frozenset(static_inputs)


def _modules(found: Found) -> list[str]:
    """Module names below the container that an exclude list could mean."""
    leaves = found.convention.leaves
    if found.convention.form is not Form.PER_EXPERT:
        return [f"{found.container}.{leaf}" for leaf in leaves]
    return [f"{found.container}.{expert}.{leaf}" for expert in range(experts_named(found)) for leaf in leaves]


def _names_codes(found: Found, dialect: Dialect) -> bool:
    """True when a matrix of its own is named as the dialect names codes; fused tensors carry no such suffix."""
    return any(rest.endswith("." + dialect.codes) for rest in found.rests)
