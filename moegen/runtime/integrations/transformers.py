"""Hugging Face transformers: ``experts_implementation="moegen"``, on experts read from an NVFP4 checkpoint.

Importing this module registers the implementation. :func:`attach_experts` gives a built model's expert modules their
layers; :func:`load_model` builds a whole model from an NVFP4 checkpoint folder, whose experts never exist in bf16.
"""

import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from moegen.core.errors import CheckpointError, MoegenError
from moegen.runtime.checkpoint import Checkpoint
from moegen.runtime.layer import MoELayer
from moegen.runtime.package import LoadedPackage

NAME = "moegen"
_LAYER = "moegen_layer"
_WEIGHTS = ("gate_up_proj", "down_proj", "up_proj")
_NUMBER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def experts_forward(
    module: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """What transformers calls for an experts module: ``[T, H]``, ids ``[T, k]``, weights ``[T, k]`` in any float dtype.

    A layer that the checkpoint excludes from quantisation runs as the model has it.

    Raises:
        MoegenError: the module has no layer: :func:`attach_experts` was not called on the model.
        TensorError: as :meth:`moegen.runtime.layer.MoELayer.forward`.
    """
    if not hasattr(module, _LAYER):
        raise MoegenError(
            "this experts module has no NVFP4 weights",
            type(module).__name__,
            "call attach_experts(model, package, checkpoint)",
        )
    layer = getattr(module, _LAYER)
    if layer is None:
        own: Any = type(module).forward
        return own.__wrapped__(module, hidden_states, top_k_index, top_k_weights)
    return layer(hidden_states.contiguous(), top_k_index.contiguous(), top_k_weights.float().contiguous())


def attach_experts(
    model: PreTrainedModel, package: LoadedPackage, checkpoint: str | Path | Checkpoint
) -> dict[int, MoELayer]:
    """Gives every experts module of a model its layer from an NVFP4 checkpoint and switches the model to moegen.

    The modules' own bf16 weights are dropped where a layer replaces them.

    Args:
        model: a model whose experts follow transformers' experts interface.
        package: the package generated for its geometry.
        checkpoint: the NVFP4 checkpoint of the same model.

    Returns:
        Layer number → layer; layers that the checkpoint left unquantised are not in it.

    Raises:
        MoegenError: the model has no experts modules of that kind.
        CheckpointError: a layer cannot be read.
    """
    opened = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    modules = expert_modules(model)
    if not modules:
        raise MoegenError(
            "no experts modules found", type(model).__name__, "use a MoE model of transformers 5.24 or newer"
        )
    layers: dict[int, MoELayer] = {}
    for number, module in modules.items():
        setattr(module, _LAYER, None)
        if opened.exclusion(number) is None:
            layers[number] = package.from_checkpoint(opened, number, device=_device(model))
            setattr(module, _LAYER, layers[number])
            for name in _WEIGHTS:
                if name in dict(module.named_parameters(recurse=False)):
                    setattr(module, name, None)
    model.set_experts_implementation(NAME)
    return layers


def load_model(path: str | Path, package: LoadedPackage, *, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Builds a causal language model from an NVFP4 checkpoint folder, experts on moegen, everything else as stored.

    Args:
        path: folder with config.json and safetensors files.
        package: the package generated for the model's geometry.
        dtype: of everything outside the experts.

    Raises:
        CheckpointError: a tensor of the model is neither in the checkpoint nor computed from the config.
    """
    opened = Checkpoint(path)
    config = AutoConfig.from_pretrained(opened.files.directory)
    vars(config).pop("quantization_config", None)  # the experts are read here, not by transformers' quantisers
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    own = {name for name in model.state_dict() if name in opened.files.names}
    place = _runner_device(package)
    model.load_state_dict({name: opened.files.load(name).to(place, dtype) for name in own}, strict=False, assign=True)
    attach_experts(model, package, opened)
    model.tie_weights()
    _compute_buffers(model, place)
    missing = [name for name, tensor in model.named_parameters() if tensor.is_meta]
    if missing:
        raise CheckpointError(
            f"{len(missing)} tensors of the model are missing: {', '.join(missing[:8])}",
            str(path),
            "complete the checkpoint",
        )
    return model.eval()


def expert_modules(model: torch.nn.Module) -> dict[int, torch.nn.Module]:
    """Layer number → experts module, for modules that dispatch through transformers' experts interface."""
    found: dict[int, torch.nn.Module] = {}
    for name, module in model.named_modules():
        number = _NUMBER.search(name + ".")
        if number and hasattr(module, "is_transposed") and hasattr(module, "has_gate"):
            found[int(number[1])] = module
    return found


def _compute_buffers(model: PreTrainedModel, place: torch.device) -> None:
    """Non-persistent buffers, such as rotary frequencies, come from the config: their modules initialise them."""
    for module in model.modules():
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            module.to_empty(device=place, recurse=False)
            model._init_weights(module)


def _device(model: PreTrainedModel) -> torch.device | None:
    """Where the model is; None while it is not materialised."""
    devices = {parameter.device for parameter in model.parameters() if not parameter.is_meta}
    return next(iter(devices)) if len(devices) == 1 else None


def _runner_device(package: LoadedPackage) -> torch.device:
    return torch.device(package.runner.device_type)


ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
