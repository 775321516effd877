"""DeepSeek-V2 and V3 (DeepSeek-AI, 2024): multi-head latent attention in the network of `deepseek_moe.py`. Kimi K2,
GLM-4.7-Flash and Youtu-LLM are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.worker.errors import ModelError
from services.worker.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.decoders.deepseek_moe import (
    DeepSeek,
    DeepSeekConfig,
    read_experts_from,
    read_network,
    read_v2_routing,
    read_v3_routing,
)
from services.worker.models.layers import LatentAttention, LowRankProjection, RMSNorm
from services.worker.models.network import Architecture
from services.worker.models.reading import read_layer_types, require
from services.worker.models.rope import RopeConfig, read_rope, read_score_factor

if TYPE_CHECKING:
    from torch import Tensor

_LATENT_EPS = 1e-6  # of the norms of compressed queries and latent vectors, whatever config.json says of other norms


@dataclass(frozen=True, slots=True)
class LatentAttentionConfig:
    """Multi-head latent attention. See `AttentionConfig` and `LatentAttention`."""

    num_heads: int
    key_dim: int  # elements of a key that are not rotated
    value_dim: int
    latent_dim: int
    query_dim: int | None  # of compressed queries; None: queries are not compressed
    bias: bool
    rope: RopeConfig
    interleaved: bool
    scale: float  # of scores

    def create(self, hidden_size: int, build: Build) -> LatentAttention:
        rotary, heads = self.rope.rotary_dim, self.num_heads
        queries: Callable[[Tensor], Tensor]
        num_queries = heads * (self.key_dim + rotary)
        if self.query_dim is None:
            queries = build.linear(Matrix("q_proj", num_queries, hidden_size))
        else:
            down = Matrix("q_a_proj", self.query_dim, hidden_size, self.bias)
            norm = RMSNorm(build, "q_a_layernorm", self.query_dim, _LATENT_EPS)
            queries = LowRankProjection(build, down, norm, Matrix("q_b_proj", num_queries, self.query_dim))
        return LatentAttention(
            build,
            heads,
            self.key_dim,
            self.latent_dim,
            queries,
            Matrix("kv_a_proj_with_mqa", self.latent_dim + rotary, hidden_size, self.bias),
            RMSNorm(build, "kv_a_layernorm", self.latent_dim, _LATENT_EPS),
            Matrix("kv_b_proj", heads * (self.key_dim + self.value_dim), self.latent_dim),
            Matrix("o_proj", hidden_size, heads * self.value_dim, self.bias),
            build.rotation(self.rope, interleaved=self.interleaved),
            rotary,
            self.scale,
        )


def read(architecture: str, given: Fields) -> DeepSeekConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    config = Fields({**_DEFAULTS[architecture], **given.values}, given.where)
    num_layers = config.count("num_hidden_layers", MAX_LAYERS)
    attention = _read_attention(config, is_v2=architecture == "DeepseekV2ForCausalLM")
    if architecture == "YoutuForCausalLM":
        return read_network(config, attention.rope, [attention] * num_layers, [False] * num_layers, None)
    if architecture == "Glm4MoeLiteForCausalLM":
        types = read_layer_types(config, "mlp_layer_types", num_layers, "dense", "sparse")
        has_experts = [kind == "sparse" for kind in types or ["dense"] + ["sparse"] * (num_layers - 1)]
    else:
        has_experts = read_experts_from(config, num_layers)
    routing = read_v2_routing(config) if architecture == "DeepseekV2ForCausalLM" else read_v3_routing(config)
    return read_network(config, attention.rope, [attention] * num_layers, has_experts, routing)


def _read_attention(config: Fields, *, is_v2: bool) -> LatentAttentionConfig:
    num_heads = config.count("num_attention_heads", MAX_HEADS)
    if config.count("num_key_value_heads", MAX_HEADS, num_heads) != num_heads:
        raise config.wrong("num_key_value_heads", f"num_attention_heads, {num_heads}: latent attention has no groups")
    key_dim, rotary_dim = (config.count(name, MAX_HEAD_DIM) for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
    rope = read_rope(config, rotary_dim)
    if rope.rotary_dim != rotary_dim:
        raise ModelError(f"{config.where} sets partial_rotary_factor, which is not supported with qk_rope_head_dim")
    if is_v2:
        require(config, "rope_interleave", value=True)
    return LatentAttentionConfig(
        num_heads=num_heads,
        key_dim=key_dim,
        value_dim=config.count("v_head_dim", MAX_HEAD_DIM),
        latent_dim=config.count("kv_lora_rank", MAX_HEAD_DIM),
        query_dim=config.optional_count("q_lora_rank", MAX_SIZE),
        bias=config.flag("attention_bias"),
        rope=rope,
        interleaved=config.flag("rope_interleave", True),
        scale=(key_dim + rotary_dim) ** -0.5 * read_score_factor(config, rope),
    )


# Defaults of transformers' configuration classes, for keys that config.json leaves out.
_V3 = {
    "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "norm_topk_prob": True, "max_position_embeddings": 4096,
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "DeepseekV2ForCausalLM": {
        "vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 11_008, "moe_intermediate_size": 1407,
        "num_hidden_layers": 32, "num_attention_heads": 32, "n_shared_experts": 2, "n_routed_experts": 64,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
        "first_k_dense_replace": 0, "max_position_embeddings": 2048,
    },
    "DeepseekV3ForCausalLM": _V3,
    "Glm4MoeLiteForCausalLM": {
        **_V3, "vocab_size": 154_880, "hidden_size": 2048, "intermediate_size": 10_240, "moe_intermediate_size": 1536,
        "num_hidden_layers": 47, "num_attention_heads": 20, "n_routed_experts": 64, "routed_scaling_factor": 1.8,
        "q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 4, "max_position_embeddings": 202_752, "rms_norm_eps": 1e-5,
    },
    "YoutuForCausalLM": {
        **_V3, "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
        "num_attention_heads": 16, "max_position_embeddings": 131_072, "tie_word_embeddings": True,
    },
}  # fmt: skip

ARCHITECTURES: Mapping[str, Architecture[DeepSeekConfig]] = dict.fromkeys(_DEFAULTS, Architecture(read, DeepSeek))
