"""A real model's experts, quantised by another library, saved, read back and run on compiled CPU kernels."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from safetensors.torch import load_file

from docs.examples.qwen3_moe.compare import compare
from docs.examples.qwen3_moe.model import make_model, sample_tokens
from docs.examples.qwen3_moe.quantise import experts_of, fake_quantise, scheme_of
from docs.examples.qwen3_moe.run import compare_with_transformers, make_checkpoint, make_package
from moegen.core.enums import Contract
from moegen.core.errors import MoegenError
from moegen.numerics.quantize import Quantized, dequantize, dynamic_pair, quantize_rows
from moegen.runtime import Checkpoint, LoadedPackage, load
from moegen.runtime.integrations.transformers import attach_experts, load_model

SCHEMES = ("NVFP4", "NVFP4A16")
QUICK: dict[str, Any] = {
    "schedules": {"cpu": {"rows": [4], "cols": [32], "k_chunk": [256], "unroll": [4]}},
    "epilogues": ["compact"],
    "tune": {"tokens": [1, 64], "pipelines": 1},
}
Made = dict[str, tuple[Path, LoadedPackage]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Scheme → checkpoint and built package."""
    folder = tmp_path_factory.mktemp("qwen3")
    found: Made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOEGEN_HOME", str(folder / "home"))
        for scheme in SCHEMES:
            checkpoint = make_checkpoint(folder, scheme)
            sections = QUICK if scheme == "NVFP4A16" else QUICK | {"epilogues": ["fused_fp4"]}
            found[scheme] = checkpoint, load(make_package(checkpoint, folder, **sections), target="cpu")
    return found


def test_reader_keeps_every_byte_of_the_library(made: Made) -> None:
    checkpoint, package = made["NVFP4"]
    tensors, weights = load_file(checkpoint / "model.safetensors"), package.read(checkpoint, 1)
    for leaf, side in (("gate_proj", weights.gate), ("up_proj", weights.up), ("down_proj", weights.down)):
        assert side is not None
        for expert in range(8):
            prefix = f"model.layers.1.mlp.experts.{expert}.{leaf}"
            assert torch.equal(side.codes[expert], tensors[f"{prefix}.weight_packed"])
            assert torch.equal(side.scales[expert], tensors[f"{prefix}.weight_scale"].view(torch.uint8))
            assert side.second[expert] == tensors[f"{prefix}.weight_global_scale"].reciprocal()
    assert package.from_checkpoint(checkpoint, 1).scale_report.unequal_pairs == 8


@pytest.mark.parametrize("scheme", SCHEMES)
def test_logits_and_greedy_tokens_equal_transformers_own_run(made: Made, scheme: str) -> None:
    checkpoint, package = made[scheme]
    found = compare_with_transformers(checkpoint, package, scheme)
    assert found.top1 == 1.0
    assert found.same_tokens, (found.generated, found.expected)
    if scheme == "NVFP4A16":
        model, prompt = load_model(checkpoint, package), sample_tokens(make_model(), 1, 24, seed=6)
        generated = model.generate(prompt, max_new_tokens=len(found.expected), do_sample=False, pad_token_id=0)
        assert generated[0, prompt.shape[1] :].tolist() == found.expected
        assert found.relative_error < 0.02
        assert found.cosine > 0.9995
        assert found.margin > 1, "a near-tie decides a token: the comparison says nothing"
    else:
        assert found.cosine > 0.98


def test_one_layer_against_fp32_arithmetic_on_the_same_codes(made: Made) -> None:
    """W4A4: dequantised in fp32 by hand from the file, activations rounded by the library: only sums may differ."""
    checkpoint, package = made["NVFP4"]
    tensors, arguments = load_file(checkpoint / "model.safetensors"), scheme_of("NVFP4").input_activations
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(33, 256, generator=generator).bfloat16()
    top = torch.rand(33, 8, generator=generator).topk(2)
    weights = torch.full((33, 2), 0.5)

    def weight(name: str) -> torch.Tensor:
        packed, scale = tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_scale"].float()
        codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
        return codes * scale.repeat_interleave(16, 1) / tensors[f"{name}.weight_global_scale"]

    expected = torch.zeros(33, 256)
    for expert in range(8):
        base = f"model.layers.0.mlp.experts.{expert}"
        token, slot = torch.where(top.indices == expert)
        rows = fake_quantise(x[token].float(), arguments, tensors[f"{base}.up_proj.input_global_scale"])
        gate, up = rows @ weight(f"{base}.gate_proj").T, rows @ weight(f"{base}.up_proj").T
        hidden = (torch.nn.functional.silu(gate) * up).bfloat16().float()
        hidden = fake_quantise(hidden, arguments, tensors[f"{base}.down_proj.input_global_scale"])
        expected.index_add_(0, token, (hidden @ weight(f"{base}.down_proj").T) * weights[token, slot, None])
    got = package.from_checkpoint(checkpoint, 0)(x, top.indices, weights).float()
    assert (got - expected).norm() / expected.norm() <= 5e-3


def test_sd_06_weights_are_quantised_once(made: Made) -> None:
    """The file's codes go through unchanged: cosine to the original weights at least 0.995, norm within 3 %."""
    checkpoint, package = made["NVFP4"]
    weights, original = package.read(checkpoint, 0), experts_of(make_model())[0].down_proj.float()
    down = weights.down
    once = dequantize(Quantized(codes=down.codes, scales=down.scales), down.second[:, None, None])
    cosine = torch.nn.functional.cosine_similarity(once.flatten(), original.flatten(), dim=0)
    assert cosine >= 0.995
    assert 0.97 < once.norm() / original.norm() < 1.03
    pair = dynamic_pair(1.07 * once, Contract.TE)[0]
    again = quantize_rows(once.bfloat16(), pair, Contract.TE)
    assert not torch.equal(again.scales, down.scales), "bytes tell one quantisation from two"


def test_quality_against_the_unquantised_model(made: Made) -> None:
    """Quantised once, codes kept: a double quantisation would show here."""
    checkpoint, package = made["NVFP4A16"]
    experts = experts_of(make_model())[0]
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(64, 256, generator=generator).bfloat16()
    top = torch.rand(64, 8, generator=generator).topk(2)
    weights = torch.full((64, 2), 0.5)
    layer = package.from_checkpoint(checkpoint, 0)
    with torch.inference_mode():
        got, wanted = layer(x, top.indices, weights).float(), experts(x, top.indices, weights.bfloat16()).float()
    cosine = torch.nn.functional.cosine_similarity(got.flatten(), wanted.flatten(), dim=0)
    assert cosine > 0.975
    assert 0.97 < got.norm() / wanted.norm() < 1.03


def test_attach_to_a_model_built_elsewhere(made: Made) -> None:
    checkpoint, package = made["NVFP4A16"]
    model = make_model()
    layers = attach_experts(model, package, checkpoint)
    assert sorted(layers) == [0, 1]
    assert model.config._experts_implementation == "moegen"
    assert all("experts.gate_up_proj" not in name for name, _ in model.named_parameters())
    prompt = sample_tokens(model, 1, 16, seed=2)
    with torch.inference_mode():
        assert torch.equal(model(prompt).logits, load_model(checkpoint, package)(prompt).logits)


def test_an_excluded_layer_keeps_the_models_own_experts(made: Made, tmp_path: Path) -> None:
    checkpoint, package = made["NVFP4A16"]
    folder = tmp_path / "partly"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    config["quantization_config"]["ignore"].append("re:model.layers.0.mlp.experts.*")
    (folder / "config.json").write_text(json.dumps(config))
    model, plain = make_model(), make_model()
    assert sorted(attach_experts(model, package, folder)) == [1]
    hidden = torch.randn(5, 256).bfloat16()
    ids, weights = torch.tensor([[0, 1]]).repeat(5, 1), torch.full((5, 2), 0.5).bfloat16()
    with torch.inference_mode():
        assert torch.equal(experts_of(model)[0](hidden, ids, weights), experts_of(plain)[0](hidden, ids, weights))
        assert not torch.equal(experts_of(model)[1](hidden, ids, weights), experts_of(plain)[1](hidden, ids, weights))


def test_a_model_without_attached_experts_says_what_to_call(made: Made) -> None:
    model = make_model()
    model.set_experts_implementation("moegen")
    with pytest.raises(MoegenError, match="no NVFP4 weights") as error, torch.inference_mode():
        model(sample_tokens(model, 1, 4, seed=0))
    assert "attach_experts" in error.value.fix


def test_compare_sees_a_wrong_model(made: Made) -> None:
    """The comparison that the example prints must be able to fail."""
    checkpoint, package = made["NVFP4A16"]
    model = load_model(checkpoint, package)
    layers = {number: module.moegen_layer for number, module in experts_of(model).items()}
    experts_of(model)[0].moegen_layer, experts_of(model)[1].moegen_layer = layers[1], layers[0]
    found = compare(model, load_model(checkpoint, package), sample_tokens(model, 1, 24, seed=6), 4)
    assert found.relative_error > 0.2
    assert Checkpoint(checkpoint).layers == (0, 1)
