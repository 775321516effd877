"""What the config.json of a dense decoder means where it leaves keys out, and which ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from services.worker.errors import ModelError
from services.worker.fields import Fields
from services.worker.models.config import ModelConfig, parse_model_config
from services.worker.ops import Activation

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
}
NAMES = {
    "PhiForCausalLM": "phi",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "NemotronForCausalLM": "nemotron",
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2",
    "OlmoForCausalLM": "olmo",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "Exaone4ForCausalLM": "exaone4",
    "GlmForCausalLM": "glm",
    "Glm4ForCausalLM": "glm4",
    "GraniteForCausalLM": "granite",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
}
# 16 or 32 by default, more than there are heads.
KV_HEADS = {"StableLmForCausalLM": 4, "Exaone4ForCausalLM": 4, "GemmaForCausalLM": 4}
NORM_EPS = ("layer_norm_eps", "rms_norm_eps", "norm_eps", "norm_epsilon")
ACTIVATIONS = {
    "silu": Activation.SILU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu2": Activation.RELU_SQUARED,
}


def read(architecture: str, **values: Any) -> ModelConfig:
    return parse_model_config(
        Path("model"), Fields(SIZES | {"architectures": [architecture]} | values, "config.json"), {}
    )


@pytest.mark.parametrize("architecture", NAMES)
def test_what_config_json_leaves_out_is_what_transformers_takes(architecture: str) -> None:
    kv_heads = {"num_key_value_heads": KV_HEADS[architecture]} if architecture in KV_HEADS else {}
    config: Any = read(architecture, **kv_heads).network
    reference: Any = transformers.AutoConfig.for_model(NAMES[architecture], **SIZES, **kv_heads)
    assert config.max_model_len == reference.max_position_embeddings
    assert config.tie_word_embeddings == reference.tie_word_embeddings
    name = "hidden_activation" if hasattr(reference, "hidden_activation") else "hidden_act"
    assert config.activation == ACTIVATIONS[getattr(reference, name)]
    assert config.heads.num_kv_heads == (reference.num_key_value_heads or 4)
    assert config.heads.key_dim == getattr(reference, "head_dim", 64)
    if hasattr(config, "norm_eps"):
        [eps] = (getattr(reference, name) for name in NORM_EPS if hasattr(reference, name))
        assert config.norm_eps == eps
    # Layers without a window first.
    layers = sorted(getattr(config, "layers", ()), key=lambda layer: layer.sliding_window is not None)
    rope = next((layer.rope for layer in layers if layer.rope), getattr(config, "rope", None))
    assert rope is not None
    given = reference.rope_parameters.get("full_attention", reference.rope_parameters)
    assert rope.theta == given["rope_theta"]
    assert rope.rotary_dim == config.heads.key_dim * given.get("partial_rotary_factor", 1.0)
    if hasattr(config, "layers") and hasattr(reference, "layer_types"):
        windows = [reference.sliding_window if kind == "sliding_attention" else None for kind in reference.layer_types]
        assert [layer.sliding_window for layer in config.layers] == windows


def test_olmo_3_extends_only_layers_without_a_window() -> None:
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    of_transformers_4 = read("Olmo3ForCausalLM", rope_theta=5e5, rope_scaling=scaling, max_position_embeddings=65_536)
    of_transformers_5 = read(
        "Olmo3ForCausalLM",
        rope_parameters={
            "full_attention": scaling | {"rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
        },
        max_position_embeddings=65_536,
    )
    assert of_transformers_4 == of_transformers_5
    network: Any = of_transformers_4.network
    assert [layer.rope.kind for layer in network.layers] == ["default", "default", "default", "yarn"] * 2
    assert network.max_model_len == 65_536


def test_gemma_1_computes_the_tanh_form_of_what_it_calls_gelu() -> None:
    def activation(**values: str | None) -> Activation:
        network: Any = read("GemmaForCausalLM", **values).network
        return network.activation  # type: ignore[no-any-return]

    assert activation(hidden_act="gelu") == activation(hidden_act="gelu", hidden_activation=None)
    assert activation(hidden_act="gelu") == activation() == Activation.GELU_TANH
    assert activation(hidden_act="relu") == Activation.RELU
    assert activation(hidden_act="gelu", hidden_activation="silu") == Activation.SILU


def test_the_first_command_r_takes_the_length_that_it_was_released_for() -> None:
    assert read("CohereForCausalLM", max_position_embeddings=8192, model_max_length=131_072).max_model_len == 131_072


@pytest.mark.parametrize(
    ("architecture", "older", "newer"),
    [
        ("NemotronForCausalLM", {"rope_percent": 0.25}, {"partial_rotary_factor": 0.25}),
        ("NemotronForCausalLM", {"rope_percentage": 0.75}, {"partial_rotary_factor": 0.75}),
        (
            "StableLmForCausalLM",
            {"rope_pct": 0.5, "norm_eps": 1e-4},
            {"rope_parameters": {"partial_rotary_factor": 0.5}, "layer_norm_eps": 1e-4},
        ),
    ],
)
def test_older_names_of_keys_count(architecture: str, older: dict[str, Any], newer: dict[str, Any]) -> None:
    assert read(architecture, **older) == read(architecture, **newer)
    assert read(architecture, **older) != read(architecture)


def test_exaone_may_name_its_pattern_beside_the_types_of_its_layers() -> None:
    types = ["sliding_attention", "full_attention"] * 4
    config = read(
        "Exaone4ForCausalLM", num_key_value_heads=2, sliding_window=64, sliding_window_pattern="LG", layer_types=types
    )
    network: Any = config.network
    assert [layer.sliding_window for layer in network.layers] == [64, None] * 4
    assert [layer.rope is None for layer in network.layers] == [False, True] * 4


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("PhiForCausalLM", {"tie_word_embeddings": True}, "sets tie_word_embeddings to true, which is not supported"),
        ("PhiForCausalLM", {"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor of"),
        ("StableLmForCausalLM", {"partial_rotary_factor": 0.02}, "RoPE rotates 1 dimensions of each head"),
        ("CohereForCausalLM", {"partial_rotary_factor": 0.5}, "sets partial_rotary_factor, which this architecture"),
        ("CohereForCausalLM", {"use_parallel_block": False}, "sets use_parallel_block to false"),
        ("CohereForCausalLM", {"logit_scale": 0}, "logit_scale is 0; expected a number over 0"),
        ("Cohere2ForCausalLM", {"use_qk_norm": True}, "sets use_qk_norm to true, which is not supported"),
        ("Cohere2ForCausalLM", {"layer_types": ["chunked"] * 8}, "layer_types is a list of 8 values; expected"),
        ("Cohere2ForCausalLM", {"layer_types": ["full_attention"] * 7}, "layer_types is a list of 7 values; expected"),
        ("OlmoForCausalLM", {"clip_qkv": -1}, "clip_qkv is -1; expected a number over 0"),
        ("Exaone4ForCausalLM", {"sliding_window_pattern": "LLLG"}, 'pattern is "LLLG"; expected an integer'),
        ("GraniteForCausalLM", {"hidden_act": "sine"}, "hidden_act is sine, which is not supported"),
        ("GraniteForCausalLM", {"residual_multiplier": "1"}, 'residual_multiplier is "1"; expected a number'),
    ],
)  # fmt: skip
def test_what_the_forward_pass_does_not_cover_is_refused(
    architecture: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read(architecture, **values)
