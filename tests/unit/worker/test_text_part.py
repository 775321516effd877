"""What is read of a model that takes images or audio, too: its language model, and nothing of its towers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.errors import ModelError
from services.worker.fields import Fields
from services.worker.models.config import ModelConfig, read_model_config
from services.worker.models.decoders.gemma import GemmaConfig
from services.worker.models.decoders.llama import LlamaConfig
from services.worker.models.text_part import TEXT_PARTS, text_fields
from services.worker.ops import Heads
from services.worker.startup.create_ops import create_ops
from services.worker.weights.open import open_weights
from tests.unit.worker.test_broken_models import write_model
from tests.unit.worker.tiny_models import TINY, save_model

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def read(directory: Path, architecture: str, **config: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps({"architectures": [architecture], **config}))
    return read_model_config(directory)


def llava(directory: Path, text: dict[str, Any] | None = None, **outer: Any) -> ModelConfig:
    text = {"model_type": "llama", **SIZES, **(text or {})}
    return read(directory, "LlavaForConditionalGeneration", text_config=text, **outer)


# Configurations as they are published. They leave out the values of transformers' classes.


def test_llava_1_5_leaves_out_the_sizes_of_llama_7b(tmp_path: Path) -> None:
    text = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32_064}
    text |= {"torch_dtype": "float16", "architectures": ["LlamaForCausalLM"]}
    config = read(tmp_path, "LlavaForConditionalGeneration", text_config=text, torch_dtype="float16")
    network = config.network
    assert isinstance(network, LlamaConfig)
    assert (network.vocab_size, network.hidden_size, network.intermediate_size) == (32_064, 4096, 11_008)
    assert (len(network.layers), network.num_heads, network.num_kv_heads, network.head_dim) == (32, 32, 32, 128)
    assert (config.max_model_len, config.dtype, network.tie_word_embeddings) == (4096, "float16", False)


def test_gemma_3_4b_leaves_out_its_heads(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    config = read(tmp_path, "Gemma3ForConditionalGeneration", text_config=text, eos_token_id=[1, 106])
    network = config.network
    assert isinstance(network, GemmaConfig)
    assert (network.vocab_size, network.heads) == (262_208, Heads(8, 4, 256, 256))
    assert [layer.rope and layer.rope.factor for layer in network.layers[4:6]] == [1.0, 8.0]
    assert network.tie_word_embeddings
    assert config.eos_token_ids == (1, 106)


def test_early_qwen2_vl_has_the_values_of_the_language_model_beside_the_tower(tmp_path: Path) -> None:
    rope = {"type": "mrope", "mrope_section": [2, 3, 3]}
    config = read(
        tmp_path,
        "Qwen2VLForConditionalGeneration",
        model_type="qwen2_vl",
        **SIZES,
        num_key_value_heads=2,
        rope_theta=5e5,
        rope_scaling=rope,
        vision_config={"depth": 32},
        torch_dtype="bfloat16",
    )
    network = config.network
    assert isinstance(network, LlamaConfig)
    assert (config.architecture, network.qkv_bias, network.output_bias) == ("Qwen2ForCausalLM", True, False)
    assert (network.rope.kind, network.rope.theta, network.rms_norm_eps) == ("default", 5e5, 1e-5)
    assert config.dtype == "bfloat16"


def test_internvl_before_transformers_has_keys_and_names_of_its_own(tmp_path: Path) -> None:
    text = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "torch_dtype": "bfloat16", **SIZES}
    config = read(
        tmp_path, "InternVLChatModel", model_type="internvl_chat", llm_config=text | {"num_key_value_heads": 2}
    )
    assert (config.architecture, config.network.hidden_size, config.dtype) == ("Qwen2ForCausalLM", 64, "bfloat16")
    assert config.own_name("language_model.model.norm.weight") == "model.norm.weight"
    assert config.own_name("mlp1.0.weight") is None


# Values at either level.


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [({}, {}, False), ({}, True, True), (True, {}, True), (False, True, True), (True, False, True), (False, {}, False)],
)
def test_embeddings_are_tied_if_either_level_says_so(tmp_path: Path, outer: Any, inner: Any, expected: bool) -> None:
    levels = [{"tie_word_embeddings": value} if isinstance(value, bool) else {} for value in (outer, inner)]
    assert llava(tmp_path, levels[1], **levels[0]).network.tie_word_embeddings == expected


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_types_and_end_tokens_come_from_the_outer_level_first(tmp_path: Path, key: str) -> None:
    config = llava(tmp_path, {key: "float16", "eos_token_id": 7})
    assert (config.dtype, config.eos_token_ids) == ("float16", (7,))
    config = llava(tmp_path, {"dtype": "float16", "eos_token_id": 7}, **{key: "bfloat16"}, eos_token_id=[8, 9])
    assert (config.dtype, config.eos_token_ids) == ("bfloat16", (8, 9))


def _quantization(ignored: list[str], targets: list[str]) -> dict[str, Any]:
    group = {"targets": targets, "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ignored,
        "config_groups": {"group_0": group},
    }


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", "model."])
@pytest.mark.parametrize("is_outer", [True, False])
def test_quantized_layers_have_the_names_of_the_whole_model(tmp_path: Path, prefix: str, is_outer: bool) -> None:
    left_out = ["re:vision_tower.*", f"{prefix}layers.0.mlp.up_proj", "language_model.lm_head", "lm_head"]
    settings = _quantization(left_out, ["Linear", f"re:{prefix}layers.1.*".replace(".", r"\.")])
    level = {"quantization_config": settings}
    config = llava(tmp_path, **level) if is_outer else llava(tmp_path, level)
    assert config.quantization is not None
    formats = {
        name: type(config.quantization.format_of(name)).__name__
        for name in ("model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "lm_head")
    }
    assert list(formats.values()) == ["DenseFormat", "Fp8Format", "DenseFormat"]


def test_regular_expressions_follow_the_names_of_the_whole_model(tmp_path: Path) -> None:
    settings = _quantization([], [r"re:^language_model\.model\.layers\.\d+\.mlp\..*"])
    quantization = llava(tmp_path, quantization_config=settings).quantization
    assert quantization is not None
    assert type(quantization.format_of("model.layers.1.mlp.up_proj")).__name__ == "Fp8Format"
    assert type(quantization.format_of("model.layers.1.self_attn.q_proj")).__name__ == "DenseFormat"


# Tensors.

LAYOUTS = {
    "transformers 4": ("language_model.model.", "language_model.lm_head.", ""),
    "transformers 5": ("model.language_model.", "lm_head.", "model."),
    "as a language model": ("model.", "lm_head.", ""),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_are_found_by_any_name_and_those_of_towers_are_not_read(tmp_path: Path, layout: str) -> None:
    save_model(tmp_path, "Llama")
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    model, head, outer = LAYOUTS[layout]
    stored = {
        head + name.removeprefix("lm_head.") if name.startswith("lm_head.") else model + name.removeprefix("model."): w
        for name, w in weights.items()
    }
    save_file(stored, tmp_path / "text.safetensors")
    files = dict.fromkeys(stored, "text.safetensors")
    # There is no file with the towers.
    for tower in ("vision_tower.encoder.layers.0.weight", "multi_modal_projector.linear_1.bias", "image_newline"):
        files[outer + tower] = "towers.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    text = {"model_type": "llama", **TINY}
    config = read(tmp_path, "LlavaNextForConditionalGeneration", text_config=text)
    ops = create_ops(torch.device("cpu"), torch.float32)
    source = open_weights(tmp_path, config, ops, "auto", None, lambda _: None)
    for name, shape in config.parameters.items():
        if len(shape) == 1:
            assert torch.equal(source.vector(name), weights[name])
        else:
            weight = source.weight(name)
            assert isinstance(weight, torch.Tensor)
            assert torch.equal(weight, weights[f"{name}.weight"])


def test_a_tensor_that_is_in_no_tower_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"adapter.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    config = read(tmp_path, "LlavaForConditionalGeneration", text_config={"model_type": "llama", **TINY})
    with pytest.raises(ModelError, match=r"holds adapter\.weight"):
        open_weights(tmp_path, config, create_ops(torch.device("cpu"), torch.float32), "auto", None, lambda _: None)


# What is said, and what is refused.


def test_the_log_says_what_is_left_out() -> None:
    part = TEXT_PARTS["LlavaForConditionalGeneration"]
    assert "without the vision tower and its projector: images are refused" in str(part)


def write_llava(directory: Path) -> None:
    """A model with a language model of Qwen3's type."""
    write_model(directory)
    text = json.loads((directory / "config.json").read_text()) | {"model_type": "qwen3"}
    outer = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": text}
    (directory / "config.json").write_text(json.dumps(outer))
    weights = load_file(directory / "model.safetensors")
    save_file({f"language_model.{name}": tensor for name, tensor in weights.items()}, directory / "model.safetensors")


def test_what_is_left_out_is_said_with_the_code_that_runs(tmp_path: Path) -> None:
    write_llava(tmp_path)
    left_out = str(TEXT_PARTS["LlavaForConditionalGeneration"])
    assert read_model_config(tmp_path).runs_with == f"Quire's own code; {left_out}"


@pytest.mark.parametrize("architecture", TEXT_PARTS)
def test_every_family_has_a_language_model_that_is_supported(architecture: str) -> None:
    part = TEXT_PARTS[architecture]
    fields = text_fields(part, Fields({part.config_key: {"model_type": part.text_type}}, "config.json"))
    assert fields.texts("architectures")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "recurrent state are not supported yet"),
        (
            {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {"model_type": "qwen3_5_text"}},
            "model_type is qwen3_5_text: models with recurrent state are not supported yet",
        ),
        (
            {"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "lfm2"}},
            "model_type is lfm2: models with recurrent state are not supported yet",
        ),
        (
            {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"},
            "model_type is t5: encoder-decoder models are not supported",
        ),
        (
            {"architectures": ["Unheard"], "model_type": "unheard", "is_encoder_decoder": True},
            "model_type is unheard: encoder-decoder models are not supported",
        ),
        (
            {"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "xmod"}},
            "its language model is xmod, which is not supported",
        ),
        (
            {"architectures": ["LlavaForConditionalGeneration"], "text_config": 3},
            "text_config is 3; expected an object",
        ),
    ],
)
def test_other_models_are_refused_with_a_sentence(tmp_path: Path, config: dict[str, Any], sentence: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as refusal:
        read_model_config(tmp_path)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("is_published", [True, False])
def test_experts_of_qwen3_vl_can_be_transposed(tmp_path: Path, is_published: bool) -> None:
    text = {"model_type": "qwen3_vl_moe_text", **SIZES, "num_key_value_heads": 2, "head_dim": 16}
    text |= {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    config = read(tmp_path, "Qwen3VLMoeForConditionalGeneration", text_config=text)
    experts = {name: torch.rand(3, *shape) for name, shape in (("gate_up", (48, 64)), ("down", (64, 24)))}
    weights = {
        name if len(shape) == 1 else f"{name}.weight": torch.zeros(shape)
        for name, shape in config.parameters.items()
        if ".experts." not in name
    }
    for layer in range(2):
        for name, stack in experts.items():
            stored = stack.transpose(1, 2).contiguous() if is_published else stack.clone()
            weights[f"model.layers.{layer}.mlp.experts.{name}_proj"] = stored
    save_file(weights, tmp_path / "model.safetensors")
    ops = create_ops(torch.device("cpu"), torch.float32)
    source = open_weights(tmp_path, config, ops, "auto", None, lambda _: None)
    for name in config.parameters:
        if ".experts." in name:
            weight, (kind, index) = source.weight(name), name.split(".experts.")[1].split("_proj.")
            assert isinstance(weight, torch.Tensor)
            assert torch.equal(weight, experts[kind][int(index)])


GEMMA4: dict[str, Any] = {"model_type": "gemma4_text", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 6}


def test_gemma_4_has_larger_heads_in_layers_without_a_window(tmp_path: Path) -> None:
    text = GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 128}
    config = read(tmp_path, "Gemma4ForConditionalGeneration", text_config=text)
    assert config.attention[4:] == (Heads(8, 4, 256, 256), Heads(8, 1, 128, 128))
    rotations = [layer.rope for layer in config.network.layers]  # type: ignore[attr-defined]
    assert (rotations[4].kind, rotations[5].kind, rotations[5].num_pairs) == ("default", "proportional", 16)


def test_numbers_of_gemma_4_s_layers_can_begin_with_zeros(tmp_path: Path) -> None:
    own = {"05": {"head_dim": 128}, "11": {"head_dim": 64}, "": {"head_dim": 32}}
    text = GEMMA4 | {"num_hidden_layers": 12, "per_layer_config": own}
    config = read(tmp_path, "Gemma4ForConditionalGeneration", text_config=text)
    assert [heads.key_dim for heads in config.attention] == [256] * 5 + [128] + [256] * 5 + [64]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"use_bidirectional_attention": "all"}, "sets use_bidirectional_attention, which is not supported"),
        ({"num_kv_shared_layers": 1}, "num_kv_shared_layers is 1; expected a number that leaves a layer of each type"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor of num_attention_heads, 8"),
        ({"vocab_size_per_layer_input": 99}, "vocab_size_per_layer_input is 99; expected an integer from 100"),
        ({"per_layer_config": {"2": {"hidden_activation": "relu"}}}, "sets hidden_activation, which is not supported"),
        ({"layer_types": ["linear_attention"] * 6}, "expected full_attention or sliding_attention for each layer"),
        ({"layer_types": [[]] * 6}, "expected full_attention or sliding_attention for each layer"),
    ],
)
def test_what_gemma_4_cannot_have_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError) as refusal:
        read(tmp_path, "Gemma4ForConditionalGeneration", text_config=GEMMA4 | change)
    assert sentence in str(refusal.value)


LLAMA4: dict[str, Any] = {"model_type": "llama4_text", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 6}


def test_llama_4_leaves_out_which_layers_have_chunks_and_experts(tmp_path: Path) -> None:
    text = LLAMA4 | {"no_rope_layers": [], "interleave_moe_layer_step": 2, "attn_temperature_tuning": 4}
    network: Any = read(tmp_path, "Llama4ForConditionalGeneration", text_config=text).network
    assert [layer.has_rope for layer in network.layers] == [True, True, True, False, True, True]
    assert [layer.chunk for layer in network.layers] == [8192, 8192, 8192, None, 8192, 8192]
    assert [layer.has_experts for layer in network.layers] == [False, True] * 3
    assert network.tunes_temperature


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"attention_chunk_size": None}, "attention_chunk_size is null; expected an integer"),
        ({"moe_layers": 3}, "moe_layers is 3; expected a list of layers"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok is 17; expected an integer from 1 to 16"),
        ({"layer_types": ["sliding_attention"] * 6}, "expected chunked_attention or full_attention for each layer"),
        ({"layer_types": [[]] * 6}, "expected chunked_attention or full_attention for each layer"),
    ],
)
def test_what_llama_4_cannot_have_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError) as refusal:
        read(tmp_path, "Llama4ForConditionalGeneration", text_config=LLAMA4 | change)
    assert sentence in str(refusal.value)
