"""What a checkpoint says about its own quantisation: method, W4A4 or W4A16, and which modules were left out.

Read from config.json (``quantization_config``) and from ModelOpt's hf_quant_config.json (``quantization``).
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from moegen.core.enums import ActFormat
from moegen.core.errors import CheckpointError
from moegen.runtime.checkpoint.names import COMPRESSED_TENSORS, MODELOPT, Dialect

_FIX = "give a checkpoint quantised to NVFP4 by ModelOpt or by compressed-tensors"
_REGEX = "re:"
_ALGORITHMS = {"NVFP4": ActFormat.NVFP4, "W4A16_NVFP4": ActFormat.BF16, "NVFP4_W4A16": ActFormat.BF16}


@dataclass(frozen=True, kw_only=True)
class QuantConfig:
    """A checkpoint's quantisation facts.

    Attributes:
        dialect: whose names and scale forms the tensors follow.
        act_format: NVFP4 when the experts were quantised for W4A4, BF16 for W4A16.
        excluded: patterns of modules left unquantised.
        listed: module → algorithm, where the checkpoint lists what it quantised; empty otherwise.
    """

    dialect: Dialect
    act_format: ActFormat
    excluded: tuple[str, ...] = ()
    listed: dict[str, str] = field(default_factory=dict)

    def exclusion(self, module: str) -> str | None:
        """Why ``module`` (``model.layers.1.mlp.experts.0.up_proj``) is not NVFP4: the pattern that excludes it, or the
        list that does not name it; None when it is."""
        names = _with_ancestors(module)
        if self.listed and not any(self.listed.get(name) in _ALGORITHMS for name in names):
            return "quantized_layers"
        if not any(pattern.match(name) for pattern in self._patterns for name in names):
            return None
        return next(pattern for pattern in self.excluded if excludes(pattern, module))

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        """Globs in one expression, since a checkpoint has hundreds of them and tens of thousands of modules; regular
        expressions, which are few and may carry flags, one by one."""
        globs = "|".join(_expression(pattern) for pattern in self.excluded if not pattern.startswith(_REGEX))
        regexes = [_expression(pattern) for pattern in self.excluded if pattern.startswith(_REGEX)]
        return tuple(re.compile(text) for text in [*([globs] if globs else []), *regexes])


def excludes(pattern: str, module: str) -> bool:
    """True when an exclude pattern covers a module or one of its ancestors.

    ``re:…`` is a regular expression that must match from the start; in anything else ``*`` and ``?`` are wildcards. A
    ``*`` right after a digit does not run into further digits: ``model.layers.1*`` covers layer 1, not layers 10 to 19.
    """
    return any(re.match(_expression(pattern), name) for name in _with_ancestors(module))


def _expression(pattern: str) -> str:
    """A pattern as a regular expression for ``match``."""
    if pattern.startswith(_REGEX):
        return pattern[len(_REGEX) :]
    escaped = re.escape(pattern).replace(r"\?", ".")
    return re.sub(r"(?<=\d)\\\*", r"(?!\\d).*", escaped).replace(r"\*", ".*") + r"\Z"


def _checked(patterns: Iterable[object], where: str) -> tuple[str, ...]:
    """Exclude patterns, each once; a regular expression that is none is an error now."""
    found = tuple(dict.fromkeys(str(pattern) for pattern in patterns))
    for pattern in found:
        try:
            re.compile(_expression(pattern))
        except re.error as error:
            raise CheckpointError(
                f"exclude pattern {pattern!r} is no regular expression ({error})", where, _FIX
            ) from error
    return found


def _with_ancestors(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def read_quant_config(directory: Path) -> QuantConfig | None:
    """Reads a checkpoint's quantisation; None when it declares none.

    Raises:
        CheckpointError: damaged JSON, or a method that is not NVFP4.
    """
    config, where = _read_json(directory / "config.json"), str(directory)
    quantization = _object(config, "quantization_config", where)
    modelopt = _object(_read_json(directory / "hf_quant_config.json"), "quantization", where)
    method = str(quantization.get("quant_method", "modelopt" if modelopt else ""))
    if not method:
        return None
    if method == "compressed-tensors":
        return _compressed_tensors(quantization, where)
    if method.startswith("modelopt") or modelopt or "moe_quant_algo" in quantization:
        return _modelopt(quantization, modelopt, where)
    raise CheckpointError(f"quantisation method {method!r} is not NVFP4", where, _FIX)


def read_model_config(directory: Path) -> dict[str, Any]:
    """config.json's language-model part (``text_config`` where there is one); empty when the file is absent."""
    config = _read_json(directory / "config.json")
    return _object(config, "text_config", str(directory)) or config


def declared_experts(config: dict[str, Any]) -> int | None:
    """Routed experts per layer that a model config declares, whatever its family calls them."""
    for key in ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"):
        if isinstance(config.get(key), int):
            return config[key]
    return None


def _modelopt(quantization: dict[str, Any], modelopt: dict[str, Any], where: str) -> QuantConfig:
    algorithm = str(
        quantization.get("moe_quant_algo") or modelopt.get("quant_algo") or quantization.get("quant_algo") or ""
    ).upper()
    patterns = (*_strings(modelopt, "exclude_modules", where), *_strings(quantization, "ignore", where))
    layers = _object(modelopt, "quantized_layers", where) or _object(quantization, "quantized_layers", where)
    listed = {name: str(_object(layers, name, where).get("quant_algo", "")).upper() for name in layers}
    if algorithm == "MIXED_PRECISION":
        experts = {value for name, value in listed.items() if "expert" in name and value in _ALGORITHMS}
        if len(experts) != 1:
            raise CheckpointError(
                f"mixed precision lists {len(experts)} NVFP4 forms for experts, expected one", where, _FIX
            )
        algorithm = experts.pop()
    if algorithm not in _ALGORITHMS:
        raise CheckpointError(
            f"ModelOpt algorithm {algorithm or 'missing'!r} is not one of {sorted(_ALGORITHMS)}", where, _FIX
        )
    group = modelopt.get("group_size", 16)
    if group != 16:
        raise CheckpointError(f"group_size {group}, NVFP4 has 16", where, _FIX)
    excluded = _checked(patterns, where)
    return QuantConfig(dialect=MODELOPT, act_format=_ALGORITHMS[algorithm], excluded=excluded, listed=listed)


def _compressed_tensors(quantization: dict[str, Any], where: str) -> QuantConfig:
    excluded = _checked(_strings(quantization, "ignore", where), where)
    named = _object(quantization, "config_groups", where)
    groups = [group for group in (_object(named, name, where) for name in named) if _is_nvfp4(group, "weights", where)]
    if not groups:
        raise CheckpointError("no compressed-tensors group holds 4-bit float weights in blocks of 16", where, _FIX)
    formats = _act_formats(groups, where)
    if len(formats) > 1:
        formats = _act_formats([g for g in groups if any("expert" in t for t in _strings(g, "targets", where))], where)
    if len(formats) != 1:
        raise CheckpointError("groups disagree on the experts' activation format", where, _FIX)
    return QuantConfig(dialect=COMPRESSED_TENSORS, act_format=formats.pop(), excluded=excluded)


def _act_formats(groups: list[dict[str, Any]], where: str) -> set[ActFormat]:
    quantised = {_is_nvfp4(group, "input_activations", where) for group in groups}
    return {ActFormat.NVFP4 if fp4 else ActFormat.BF16 for fp4 in quantised}


def _is_nvfp4(group: dict[str, Any], name: str, where: str) -> bool:
    arguments = _object(group, name, where)
    return (arguments.get("num_bits"), arguments.get("type"), arguments.get("group_size")) == (4, "float", 16)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"cannot be read ({error.strerror})", str(path), "check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"damaged JSON ({error})", str(path), "fetch the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError("expected a JSON object", str(path), "fetch the file again")
    return value


def _object(parent: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """A JSON object by name; empty when it is absent or null."""
    value = parent.get(name) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} is {value!r}, expected a JSON object", where, _FIX)
    return value


def _strings(parent: dict[str, Any], name: str, where: str) -> list[str]:
    """A JSON list of strings by name; empty when it is absent or null."""
    value = parent.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"{name} is {value!r}, expected a list of names", where, _FIX)
    return value
