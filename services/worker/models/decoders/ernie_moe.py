"""ERNIE 4.5 with experts (Baidu, 2025): their scores are a softmax, to which a bias is added for the choice, and
neighbouring elements of a head are rotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from services.worker.fields import MAX_LAYERS, MAX_SIZE, Fields
from services.worker.models.decoders.deepseek_moe import DeepSeek, DeepSeekConfig, RoutingConfig, read_network
from services.worker.models.decoders.glm_moe import read_attention
from services.worker.models.network import Architecture
from services.worker.models.reading import MAX_EXPERTS, require

_FURTHER_TOKENS = ("model.mtp_block", "model.mtp_emb_norm", "model.mtp_hidden_norm", "model.mtp_linear_proj")
# The weights of chosen experts are divided by their sum, or by `moe_norm_min` if that is more. No sum of the largest
# probabilities is so small.
_MAX_NORM_MIN = 1e-12


def read(architecture: str, given: Fields) -> DeepSeekConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    config = Fields({**_DEFAULTS, **given.values}, given.where)
    require(config, "use_bias", value=False)
    config.number("moe_norm_min", _MAX_NORM_MIN, above=0, high=_MAX_NORM_MIN)
    num_layers = config.count("num_hidden_layers", MAX_LAYERS)
    attention = replace(read_attention(config, theta=500_000.0), interleaved=True)
    num_experts = config.count("moe_num_experts", MAX_EXPERTS)
    num_shared = config.count("moe_num_shared_experts", MAX_EXPERTS, low=0)
    routing = RoutingConfig(
        num_experts=num_experts,
        num_chosen=config.count("moe_k", num_experts),
        shared_size=num_shared * config.count("moe_intermediate_size", MAX_SIZE),
        groups=None,
        by_sigmoid=False,
        bias="moe_statics.e_score_correction_bias",
        normalizes=True,
        factor=1.0,
    )
    has_experts = _read_layers(config, num_layers)
    return read_network(config, attention.rope, [attention] * num_layers, has_experts, routing, _FURTHER_TOKENS)


def _read_layers(config: Fields, num_layers: int) -> list[bool]:
    """Returns which layers have experts."""
    first = config.count("moe_layer_start_index", MAX_LAYERS, low=0)
    last = config.count("moe_layer_end_index", MAX_LAYERS, low=-1)
    interval = config.count("moe_layer_interval", MAX_LAYERS)
    last = num_layers - 1 if last == -1 else last
    return [first <= index <= last and (index + 1) % interval == 0 for index in range(num_layers)]


# Defaults of transformers' configuration class, for keys that config.json leaves out.
_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 103_424, "hidden_size": 2560, "intermediate_size": 12_288, "num_hidden_layers": 28,
    "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts": 64,
    "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1,
}  # fmt: skip

ARCHITECTURES: Mapping[str, Architecture[DeepSeekConfig]] = {"Ernie4_5_MoeForCausalLM": Architecture(read, DeepSeek)}
