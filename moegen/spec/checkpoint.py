"""Writes a spec from a checkpoint's config.json and quantisation config."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moegen.core.enums import ActFormat
from moegen.core.errors import SpecError
from moegen.spec.families import FAMILIES, REFUSED, Config, Family, need
from moegen.spec.load import validated
from moegen.spec.models import LayerSpec
from moegen.spec.source import Document

_CONFIG = "config.json"
_BY_HAND = "write the spec by hand: moegen new"


def new_from_checkpoint(
    config: Mapping[str, Any], quant: Mapping[str, Any] | None = None, *, name: str | None = None, source: str = ""
) -> str:
    """YAML text of a spec for the routed experts of a model.

    Args:
        config: the parsed config.json.
        quant: the parsed hf_quant_config.json where there is one, else None: ``quantization_config`` of config.json.
        name: the spec's name; by default made of the model type and sizes.
        source: where the config was read, for the spec's ``source``.

    Raises:
        SpecError: unknown family, a layer no pipeline serves, or weights that are not NVFP4.
    """
    text = _text_config(config)
    model_type = str(text.get("model_type", ""))
    family = _family(model_type, text)
    _refuse_layers_that_differ(text)
    act_format = _act_format(quant or config.get("quantization_config") or text.get("quantization_config"))
    values = _values(text, family, act_format, source)
    values["name"] = name or _slug(
        f"{model_type}_h{values['geometry']['hidden']}_i{values['geometry']['intermediate']}"
    )
    return _yaml(validated(Document(path=Path(_CONFIG), data=values, lines={})))


def _text_config(config: Config) -> Config:
    """The language model's part of a multimodal config."""
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), Mapping):
            return config[key]
    return config


def _family(model_type: str, config: Config) -> Family:
    if model_type in REFUSED:
        raise SpecError(f"{model_type} cannot be served: {REFUSED[model_type]}", _CONFIG, _BY_HAND)
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise SpecError(f"model_type {model_type!r} is not known (known: {known})", _CONFIG, _BY_HAND)
    families = FAMILIES[model_type]
    for family in families:
        if not family.act_key or config.get(family.act_key, family.act_name) == family.act_name:
            return family
    key, names = families[0].act_key, [family.act_name for family in families]
    raise SpecError(f"{key} is {config[key]!r}, {model_type} is known with {names}", _CONFIG, _BY_HAND)


def _refuse_layers_that_differ(config: Config) -> None:
    limits = config.get("swiglu_limits")
    if isinstance(limits, list) and any(limits):
        raise SpecError(
            f"swiglu_limits differ between layers ({limits})", _CONFIG, "write one spec per limit, kind swiglustep"
        )


def _act_format(quant: Any) -> ActFormat:
    """W4A4 or W4A16 of a ModelOpt or compressed-tensors config."""
    if not isinstance(quant, Mapping):
        raise SpecError("no quantization_config: the weights are not NVFP4", _CONFIG, "quantise the experts to NVFP4")
    quant = quant.get("quantization", quant)
    if quant.get("quant_method") == "compressed-tensors":
        return _compressed_tensors_format(quant)
    return _modelopt_format(quant)


def _modelopt_format(quant: Config) -> ActFormat:
    layers = quant.get("quantized_layers") or {}
    of_experts = {str(item.get("quant_algo")) for layer, item in layers.items() if ".experts" in layer}
    algorithms = of_experts or {str(quant.get("moe_quant_algo") or quant.get("quant_algo"))}
    if algorithms == {"NVFP4"}:
        return ActFormat.NVFP4
    if algorithms == {"W4A16_NVFP4"}:
        return ActFormat.BF16
    found = ", ".join(sorted(algorithms))
    raise SpecError(f"the experts' quant_algo is {found}, not NVFP4 or W4A16_NVFP4", _CONFIG, "use an NVFP4 checkpoint")


def _compressed_tensors_format(quant: Config) -> ActFormat:
    groups = [group for group in (quant.get("config_groups") or {}).values() if _is_nvfp4(group.get("weights"))]
    if not groups:
        found = quant.get("format")
        raise SpecError(f"compressed-tensors format {found} has no NVFP4 weights", _CONFIG, "use an NVFP4 checkpoint")
    formats = {ActFormat.NVFP4 if _is_nvfp4(group.get("input_activations")) else ActFormat.BF16 for group in groups}
    if len(formats) > 1:
        raise SpecError("some NVFP4 groups quantise activations and some do not", _CONFIG, _BY_HAND)
    return formats.pop()


def _is_nvfp4(scheme: Any) -> bool:
    if not isinstance(scheme, Mapping):
        return False
    return (scheme.get("num_bits"), scheme.get("type"), scheme.get("group_size")) == (4, "float", 16)


def _values(config: Config, family: Family, act_format: ActFormat, source: str) -> dict[str, Any]:
    w4a4 = act_format is ActFormat.NVFP4
    scale = {"activation_scale": {"gemm1": "static", "gemm2": "static"}} if w4a4 else {}
    gated = family.kind.gated
    epilogues = [*(["interleaved"] if gated else []), "compact", *(["fused_fp4"] if w4a4 else [])]
    return {
        "source": source or f"config.json, model_type {config.get('model_type')}",
        "geometry": {
            "hidden": need(config, *family.hidden),
            "intermediate": need(config, *family.intermediate),
            "experts": need(config, *family.experts),
            "top_k": need(config, *family.top_k),
        },
        "activation": {"kind": family.kind.value, **family.constants(config)},
        "weights": {"format": "nvfp4", "gate_up_order": family.gate_up_order.value, "bias": family.bias},
        "activations": {"format": act_format.value, **scale},
        "numerics": {"router_weight": family.router_weight.value},
        "epilogues": epilogues,
        "targets": ["cpu", "sm_90a", "sm_100a"],
    }


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:64]


def _yaml(spec: LayerSpec) -> str:
    """A spec in the order and style of the shipped ones."""
    data = spec.model_dump(mode="json", exclude_none=True, exclude={"schedules", "tune"})
    lines = [f"{key}: {_flow(value)}" for key, value in data.items()]
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        return f'"{escaped}"'
    return str(value)
