"""Model families whose config.json can become a spec: where each keeps its sizes, which activation it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moegen.core.enums import ActivationKind, GateUpOrder, RouterWeight
from moegen.core.errors import SpecError

Config = Mapping[str, Any]
Constants = dict[str, float]


def _plain(_: Config) -> Constants:
    return {}


def _limit(config: Config) -> Constants:
    return {"limit": float(need(config, "swiglu_limit"))}


def _oai(config: Config) -> Constants:
    """GPT-OSS adds 1 to the up half; its config does not carry that constant, its model code does."""
    alpha, limit = config.get("swiglu_alpha", 1.702), config.get("swiglu_limit", 7.0)
    return {"alpha": float(alpha), "limit": float(limit), "beta": 1.0}


def _situ(config: Config) -> Constants:
    beta, linear_beta = need(config, "activation_situ_beta"), need(config, "activation_situ_linear_beta")
    return {"beta": float(beta), "linear_beta": float(linear_beta)}


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one family's config reads; ``hidden`` lists keys by preference (a latent width before the outer one)."""

    kind: ActivationKind = ActivationKind.SWIGLU
    constants: Callable[[Config], Constants] = _plain
    hidden: tuple[str, ...] = ("hidden_size",)
    intermediate: tuple[str, ...] = ("moe_intermediate_size",)
    experts: tuple[str, ...] = ("n_routed_experts", "num_experts", "num_local_experts")
    top_k: tuple[str, ...] = ("num_experts_per_tok", "num_experts_per_token")
    act_key: str = "hidden_act"
    act_name: str = "silu"
    gate_up_order: GateUpOrder = GateUpOrder.GATE_UP
    bias: bool = False
    router_weight: RouterWeight = RouterWeight.COMBINE


_SWIGLU = Family()
_CLAMP = Family(kind=ActivationKind.SWIGLU_CLAMP, constants=_limit)
_PLAIN_SIZE = Family(intermediate=("intermediate_size",))
_SWIGLU_TYPES = (
    "axk1",
    "bailing_hybrid",
    "beam",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "exaone_moe",
    "flint",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "hy_v3",
    "kimi_k2",
    "kolibri1",
    "laguna",
    "lfm2_moe",
    "mellum",
    "mimo_v2_flash",
    "mistral4",
    "mistral_large4_text",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_omni_moe_text",
    "qwen3_vl_moe_text",
    "qwen4_exp_text",
    "solar_open",
    "step3p5",
)

#: ``model_type`` of config.json (of its text part, where a model has several) to the families that use it, which differ
#: in the activation that the config names.
FAMILIES: dict[str, tuple[Family, ...]] = {
    **dict.fromkeys(_SWIGLU_TYPES, (_SWIGLU,)),
    **dict.fromkeys(("deepseek_v4", "glm5_next_text", "hy_v4", "hy_v4_vl_text"), (_CLAMP,)),
    **dict.fromkeys(("mixtral", "minimax_m2"), (_PLAIN_SIZE,)),
    "ernie4_5_moe": (Family(experts=("moe_num_experts",), top_k=("moe_k",)),),
    "llama4_text": (Family(intermediate=("intermediate_size",), router_weight=RouterWeight.INPUT),),
    "minimax_m3_vl_text": (
        Family(kind=ActivationKind.SWIGLU_OAI, constants=_oai, intermediate=("intermediate_size",), act_key=""),
    ),
    "gpt_oss": (
        Family(
            kind=ActivationKind.SWIGLU_OAI,
            constants=_oai,
            intermediate=("intermediate_size",),
            gate_up_order=GateUpOrder.INTERLEAVED,
            bias=True,
        ),
    ),
    # Kimi-K3's text part is a kimi_linear with SiTU and, for the routed experts, a latent width.
    "kimi_linear": (
        _SWIGLU,
        Family(
            kind=ActivationKind.SITU,
            constants=_situ,
            hidden=("routed_expert_hidden_size", "hidden_size"),
            act_name="situ",
        ),
    ),
    "nemotron_h": (
        Family(
            kind=ActivationKind.RELU2,
            hidden=("moe_latent_size", "hidden_size"),
            act_key="mlp_hidden_act",
            act_name="relu2",
        ),
    ),
    "gemma4_text": (
        Family(
            kind=ActivationKind.GEGLU_TANH,
            top_k=("top_k_experts",),
            act_key="hidden_activation",
            act_name="gelu_pytorch_tanh",
        ),
    ),
}

#: Families that are known and cannot be served, with the reason.
REFUSED = {
    "muse_spark_text": "each expert's output passes an RMSNorm before the router weight, which no pipeline does",
    "inkling_text": "its router weights shared experts together with the routed ones, and its FP4 dialect is its own",
    "longcat_flash": "its router also chooses identity experts, which have no weights",
}


def need(config: Config, *keys: str) -> Any:
    """First of ``keys`` that ``config`` sets; raises SpecError when none is."""
    for key in keys:
        if config.get(key) is not None:
            return config[key]
    raise SpecError(f"{' or '.join(keys)} is not set", "config.json", "write the spec by hand: moegen new")
