"""What is read from gpt-oss's config.json, and which values are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.errors import ModelError
from services.worker.models import ModelConfig, num_parameters, read_model_config, weight_bytes
from services.worker.models.decoders.gpt_oss import GptOssConfig

# The keys of gpt-oss-20b's config.json that its forward pass depends on.
PUBLISHED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "vocab_size": 201088,
}


def read(directory: Path, config: dict[str, Any]) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(config))
    return read_model_config(directory)


def network(config: ModelConfig) -> GptOssConfig:
    assert isinstance(config.network, GptOssConfig)
    return config.network


def test_the_published_configuration_is_read_in_full(tmp_path: Path) -> None:
    config = read(tmp_path, PUBLISHED)
    assert config.max_model_len == 131072
    assert network(config).windows == (128, None) * 12
    assert (network(config).rope.kind, network(config).rope.theta) == ("yarn", 150_000.0)
    assert not network(config).rope.truncate
    assert num_parameters(config) == 20_914_757_184
    assert weight_bytes(config, 2) == 2 * num_parameters(config)


def test_the_published_weights_take_as_many_bytes_as_their_files(tmp_path: Path) -> None:
    config = read(tmp_path, PUBLISHED | {"quantization_config": {"quant_method": "mxfp4"}})
    assert weight_bytes(config, 2) == 13_761_264_768  # total_size in model.safetensors.index.json


def test_what_config_json_leaves_out_is_gpt_oss_120b(tmp_path: Path) -> None:
    config = read(tmp_path, {"architectures": ["GptOssForCausalLM"]})
    assert network(config).num_experts == 128
    assert network(config).windows == (128, None) * 18
    assert config.max_model_len == 131072
    assert num_parameters(config) == 116_829_156_672


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"swiglu_limit": 6.5}, "swiglu_limit is 6.5; expected 7, the only value that is supported"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha is 1.0; expected 1.702, the only value that is supported"),
        ({"layer_types": ["chunked_attention"] * 24}, "expected sliding_attention or full_attention for each layer"),
        ({"layer_types": ["full_attention"]}, "expected a list of 24 values"),
        ({"num_experts_per_tok": 33}, "expected an integer from 1 to 32"),
        ({"num_key_value_heads": 7}, "expected a divisor of num_attention_heads, 64"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_value_that_cannot_be_run_is_refused(tmp_path: Path, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError) as refusal:
        read(tmp_path, PUBLISHED | values)
    assert sentence in str(refusal.value)
