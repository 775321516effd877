"""GLM-4.5 (Zeng et al., 2025), dots.llm1 (Huo et al., 2025) and Solar Open: DeepSeek-V3's choice of experts, and
attention with KV heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, Fields
from services.worker.models.build import Build
from services.worker.models.decoders.deepseek_moe import (
    DeepSeek,
    DeepSeekConfig,
    read_experts_from,
    read_network,
    read_v3_routing,
)
from services.worker.models.layers import Attention, RMSNorm, output_projection, qkv_projections
from services.worker.models.network import Architecture
from services.worker.models.reading import read_heads, read_layer_types
from services.worker.models.rope import RopeConfig, read_rope, read_rope_of_whole_heads
from services.worker.ops import AttentionForm, Heads


@dataclass(frozen=True, slots=True)
class GroupedAttentionConfig:
    """Attention in which several query heads can share a KV head. See `AttentionConfig`."""

    heads: Heads
    rope: RopeConfig
    norm_eps: float
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    interleaved: bool = False  # see `Rotation`
    sliding_window: int | None = None  # tokens that a query sees, itself included

    def create(self, hidden_size: int, build: Build) -> Attention:
        heads, dim = self.heads, self.heads.key_dim
        q_norm, k_norm = (
            RMSNorm(build, name, dim, self.norm_eps) if self.qk_norm else None for name in ("q_norm", "k_norm")
        )
        return Attention(
            build,
            heads,
            qkv_projections(heads, hidden_size, has_bias=self.qkv_bias),
            output_projection(heads, hidden_size, has_bias=self.output_bias),
            AttentionForm(dim**-0.5, sliding_window=self.sliding_window),
            build.rotation(self.rope, interleaved=self.interleaved),
            q_norm,
            k_norm,
        )


def read(architecture: str, given: Fields) -> DeepSeekConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    is_glm, is_dots = architecture == "Glm4MoeForCausalLM", architecture == "Dots1ForCausalLM"
    config = Fields({**_DEFAULTS[architecture], **given.values}, given.where)
    num_layers = config.count("num_hidden_layers", MAX_LAYERS)
    theta = 1e6 if architecture == "SolarOpenForCausalLM" else 10_000.0
    bias = config.flag("attention_bias")
    attention = replace(
        read_attention(config, theta=theta, partial=0.5 if is_glm else None),
        qkv_bias=bias,
        output_bias=bias and is_dots,
        qk_norm=is_dots or (is_glm and config.flag("use_qk_norm")),
    )
    windows = _read_windows(config, num_layers) if is_dots else [None] * num_layers
    has_experts = read_experts_from(config, num_layers)
    layers = [replace(attention, sliding_window=window) for window in windows]
    return read_network(config, attention.rope, layers, has_experts, read_v3_routing(config))


def read_attention(config: Fields, *, theta: float, partial: float | None = None) -> GroupedAttentionConfig:
    """Returns attention without biases and norms. `theta` and `partial`: defaults of the rotation; `partial` None: all
    of a head is rotated, and config.json must not say otherwise."""
    heads = read_heads(config, config.count("hidden_size", MAX_SIZE))
    if partial is None:
        rope = read_rope_of_whole_heads(config, heads.key_dim, theta=theta)
    else:
        rope = read_rope(config, heads.key_dim, theta=theta, partial=partial)
    norm_eps = config.number("rms_norm_eps", 1e-6, above=0, high=1)
    return GroupedAttentionConfig(heads, rope, norm_eps)


def _read_windows(config: Fields, num_layers: int) -> list[int | None]:
    """Returns each layer's window: `sliding_window` in layers of that type, or in those from `max_window_layers` on."""
    window = config.optional_count("sliding_window", MAX_POSITIONS)
    first = config.count("max_window_layers", MAX_LAYERS, low=0)
    types = read_layer_types(config, "layer_types", num_layers, "sliding_attention", "full_attention")
    if types is None:
        return [window if index >= first else None for index in range(num_layers)]
    return [window if kind == "sliding_attention" else None for kind in types]


# Defaults of transformers' configuration classes, for keys that config.json leaves out.
_GLM = {
    "vocab_size": 151_552, "hidden_size": 4096, "intermediate_size": 10_944, "num_hidden_layers": 46,
    "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
    "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True,
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Glm4MoeForCausalLM": _GLM,
    "Dots1ForCausalLM": {
        "vocab_size": 152_064, "hidden_size": 4608, "intermediate_size": 10_944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 0, "max_position_embeddings": 2048, "sliding_window": 4096, "max_window_layers": 62,
    },
    "SolarOpenForCausalLM": {
        **_GLM, "vocab_size": 196_608, "num_hidden_layers": 48, "num_attention_heads": 64, "head_dim": 128,
        "moe_intermediate_size": 1280, "first_k_dense_replace": 0,
    },
}  # fmt: skip

ARCHITECTURES: Mapping[str, Architecture[DeepSeekConfig]] = dict.fromkeys(_DEFAULTS, Architecture(read, DeepSeek))
