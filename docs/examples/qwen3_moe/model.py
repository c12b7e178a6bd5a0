"""A Qwen3-MoE language model small enough for two CPU cores, with random weights of a fixed seed."""

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM


def small_config() -> Qwen3MoeConfig:
    """Two layers, 8 experts, top-2; I = 160 is a multiple of neither 64 nor 128."""
    return Qwen3MoeConfig(
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        vocab_size=512,
        tie_word_embeddings=False,
        architectures=["Qwen3MoeForCausalLM"],
    )


def make_model(seed: int = 0) -> Qwen3MoeForCausalLM:
    """The model in bf16.

    A model of plain random weights leaves every next token, and every choice of experts, a near-tie that any rounding
    decides. So the head is made of shuffled embeddings (each token has a likely successor), routers are decided, and
    experts contribute about as much to the hidden states as the embeddings do.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(small_config(), dtype=torch.bfloat16)
    embeddings = model.model.embed_tokens.weight
    with torch.no_grad():
        embeddings.normal_(std=1.0)
        model.lm_head.weight.copy_(embeddings[torch.randperm(len(embeddings))] * embeddings.shape[-1] ** -0.5)
        for layer in model.model.layers:
            layer.mlp.gate.weight.normal_(std=0.5)
            for weight in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
                weight.normal_(std=1.5 * weight.shape[-1] ** -0.5)
    return model.eval()


def sample_tokens(model: Qwen3MoeForCausalLM, batch: int, length: int, seed: int) -> torch.Tensor:
    """Random token ids ``[batch, length]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (batch, length), generator=generator)
