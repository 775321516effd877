"""What is read from config.json and generation_config.json, and which models are refused with which sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from services.worker.errors import ModelError
from services.worker.models.config import GenerationDefaults, ModelConfig, read_model_config
from services.worker.models.decoders.llama import LlamaConfig
from services.worker.models.decoders.llama_families import FAMILIES
from tests.unit.worker.tiny_models import TINY, config_class

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def network(config: ModelConfig) -> LlamaConfig:
    assert isinstance(config.network, LlamaConfig)
    return config.network


def read(directory: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return read_model_config(directory)


def test_what_config_json_leaves_out_follows_from_the_rest(tmp_path: Path) -> None:
    config = read(tmp_path, LLAMA)
    assert network(config).num_kv_heads == 4
    assert network(config).head_dim == 16
    assert network(config).rms_norm_eps == 1e-6
    assert network(config).rope.theta == 10_000.0
    assert config.eos_token_ids == ()
    assert config.default_sampling == GenerationDefaults()
    assert not network(config).tie_word_embeddings


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_config_json_leaves_out_is_what_transformers_takes(tmp_path: Path, architecture: str) -> None:
    given = LLAMA | {"architectures": [architecture], "num_hidden_layers": 6}
    config, reference = read(tmp_path, given), config_class(architecture.removesuffix("ForCausalLM"))(**given)
    assert network(config).head_dim == (getattr(reference, "head_dim", None) or 16)
    assert network(config).rms_norm_eps == reference.rms_norm_eps
    assert network(config).tie_word_embeddings == reference.tie_word_embeddings
    rope = reference.rope_parameters
    assert (network(config).rope.kind, network(config).rope.theta) == (rope["rope_type"], rope["rope_theta"])
    assert network(config).rope.factor == rope.get("factor", 1.0)
    assert network(config).rope.original_max_positions == rope.get("original_max_position_embeddings", 0)
    window = getattr(reference, "sliding_window", None)
    types = getattr(reference, "layer_types", None) or ["sliding_attention"] * 6
    windows = [window if layer_type == "sliding_attention" else None for layer_type in types]
    assert [layer.sliding_window for layer in network(config).layers] == windows
    if architecture != "Qwen2ForCausalLM":  # biased, and no key says so
        assert network(config).qkv_bias == getattr(reference, "attention_bias", False)
    assert network(config).output_bias == getattr(
        reference, "attention_out_bias", getattr(reference, "attention_bias", False)
    )
    assert network(config).mlp_bias == getattr(reference, "mlp_bias", False)


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        ({"eos_token_id": 2}, None, (2,)),
        ({"eos_token_id": 2}, {"eos_token_id": [1, 2]}, (1, 2)),
        ({"eos_token_id": [7, 8]}, {"temperature": 1.0}, (7, 8)),
        ({}, {"eos_token_id": 5}, (5,)),
        ({"eos_token_id": None}, None, ()),
    ],
)
def test_end_tokens_come_from_the_generation_config_first(
    tmp_path: Path, in_config: dict[str, Any], in_generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    assert read(tmp_path, LLAMA | in_config, in_generation).eos_token_ids == expected


def test_sampling_defaults_are_those_that_the_generation_config_names(tmp_path: Path) -> None:
    config = read(tmp_path, LLAMA, {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True})
    assert config.default_sampling == GenerationDefaults(temperature=0.6, top_k=20)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 5),
        ("temperature", "0.6"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("temperature", 1e39),
        ("top_k", -1),
        ("top_k", 0.5),
        ("top_k", 2**32),
        ("top_p", 0.0),
        ("top_p", 1e-50),  # 0 on the wire
        ("min_p", -0.1),
        ("repetition_penalty", 10**400),
    ],
)
def test_a_sampling_default_that_no_request_may_ask_for_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, value: object
) -> None:
    others = {"temperature": 0.6, "top_k": 20}
    config = read(tmp_path, LLAMA, others | {name: value})
    others.pop(name, None)
    assert config.default_sampling == GenerationDefaults(**others)  # type: ignore[arg-type]
    [warning] = caplog.messages
    assert f"generation_config.json: {name} is " in warning


def test_sampling_defaults_are_judged_as_the_wire_rounds_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = read(tmp_path, LLAMA, {"top_p": 1.00000000001, "temperature": 2.00000001})
    assert config.default_sampling == GenerationDefaults(top_p=1.00000000001, temperature=2.00000001)
    assert not caplog.messages


@pytest.mark.parametrize(
    "form",
    [
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
    ],
    ids=["transformers 5", "transformers 4", "older"],
)
def test_rope_is_read_in_every_form_it_was_ever_written_in(tmp_path: Path, form: dict[str, Any]) -> None:
    config = read(tmp_path, LLAMA | form)
    assert (network(config).rope.kind, network(config).rope.theta, network(config).rope.factor) == ("linear", 5e5, 4.0)
    assert config.max_model_len == 512


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "llama3, as in Llama 4 Scout": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    },
}


@pytest.mark.parametrize("kind", ROPES)
def test_rope_angles_are_those_of_transformers_at_real_sizes(tmp_path: Path, kind: str) -> None:
    sizes = TINY | {"head_dim": 128, "max_position_embeddings": 131072, "rope_parameters": ROPES[kind]}
    reference = transformers.LlamaConfig(**sizes, architectures=["LlamaForCausalLM"])
    reference.save_pretrained(tmp_path)
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(reference)
    positions = torch.tensor([0, 1, 77, 4095, 40000])
    cos, sin = rotary(torch.zeros(1), positions[None])
    table = network(read_model_config(tmp_path)).rope.cos_sin(40001)[positions]
    assert torch.equal(table[:, :64], cos[0, :, :64])
    assert torch.equal(table[:, 64:], sin[0, :, :64])


LONGROPE: dict[str, Any] = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": (
        {"architectures": ["XLNetLMHeadModel"]},
        "is XLNetLMHeadModel, which is not supported; `quire models` lists what is",
    ),
    "no architecture": ({"architectures": None}, "is a model without a named architecture, which is not supported"),
    "quantized": (
        {"quantization_config": {"quant_method": "quark"}},
        "is quantized with quark, which is not supported",
    ),
    "activation": ({"hidden_act": "gelu"}, "has gelu activations; only silu is supported"),
    "rope": ({"rope_scaling": {"rope_type": "axial"}}, "RoPE scaling of type axial is not supported"),
    "longrope without its length": (
        {"rope_scaling": {"rope_type": "longrope"}},
        "lacks 'original_max_position_embeddings'",
    ),
    "rope of an early Phi-3": (
        {
            "architectures": ["Phi3ForCausalLM"],
            "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "yarn", "long_factor": [1.0] * 8, "short_factor": [1.0] * 7},
        },
        "short_factor is a list of 7 values; expected a list of 8 values",
    ),
    "longrope that divides by zero": (
        {"rope_scaling": LONGROPE | {"short_factor": [1.0] * 7 + [0.0]}, "original_max_position_embeddings": 64},
        "expected 8 numbers over 0",
    ),
    "partial rope": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "layers of another type": (
        {"architectures": ["MinistralForCausalLM"], "layer_types": ["chunked_attention"] * LLAMA["num_hidden_layers"]},
        "expected sliding_attention or full_attention for each layer",
    ),
    "clipped": (
        {"architectures": ["IQuestCoderForCausalLM"], "clip_qkv": 8.0},
        "sets clip_qkv, which is not supported",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_run_is_refused_with_a_sentence(tmp_path: Path, case: str) -> None:
    change, sentence = REFUSED[case]
    with pytest.raises(ModelError) as refusal:
        read(tmp_path, LLAMA | change)
    assert sentence in str(refusal.value)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is Unheard, which is not supported; `quire models` lists what is"):
        read(tmp_path, LLAMA | {"architectures": ["Unheard"]})


def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="lacks 'vocab_size'"):
        read(tmp_path, {key: value for key, value in LLAMA.items() if key != "vocab_size"})


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_model_config(tmp_path)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        read_model_config(tmp_path)
