"""GLM-4 (GLM Team, 2024): RMSNorms, rotary positions on neighbouring elements of a part of each head, a gated MLP.

The models of 2025 (`Glm4ForCausalLM`) add norms after attention and MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import (
    Attention,
    Block,
    GatedMLP,
    PreNormBlock,
    RMSNorm,
    SandwichBlock,
    Stack,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_heads
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.ops import Activation, AttentionForm, Heads


@dataclass(frozen=True, slots=True)
class GLMConfig(NetworkConfig):
    num_layers: int
    heads: Heads
    rope: RopeConfig
    norm_eps: float
    activation: Activation
    qkv_bias: bool
    has_post_norms: bool  # norms after attention and MLP


class GLM(Stack):
    """See `Network`."""

    def __init__(self, config: GLMConfig, build: Build) -> None:
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, build.inside(f"model.layers.{i}")) for i in range(config.num_layers)]
        norm = RMSNorm(build, "model.norm", config.hidden_size, config.norm_eps)
        super().__init__(build.ops, tokens, blocks, norm, head)


def _block(config: GLMConfig, build: Build) -> Block:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.heads

    def norm(name: str) -> RMSNorm:
        return RMSNorm(build, name, hidden, config.norm_eps)

    attention = Attention(
        build.inside("self_attn"),
        heads,
        qkv_projections(heads, hidden, has_bias=config.qkv_bias),
        output_projection(heads, hidden),
        AttentionForm(heads.key_dim**-0.5),
        build.rotation(config.rope, interleaved=True),
    )
    mlp = GatedMLP(
        build.inside("mlp"),
        (Matrix("gate_up_proj", 2 * inner, hidden),),
        Matrix("down_proj", hidden, inner),
        config.activation,
    )
    norm_1, norm_2 = norm("input_layernorm"), norm("post_attention_layernorm")
    if not config.has_post_norms:
        return PreNormBlock(norm_1, attention, norm_2, mlp)
    return SandwichBlock(norm_1, attention, norm("post_self_attn_layernorm"), norm_2, mlp, norm("post_mlp_layernorm"))


def read(architecture: str, config: Fields) -> GLMConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden, num_kv_heads=2, head_dim=128)
    rope = read_rope(config, heads.key_dim, partial=0.5)
    return GLMConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 131_072)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        num_layers=config.count("num_hidden_layers", MAX_LAYERS),
        heads=heads,
        rope=rope,
        norm_eps=config.number("rms_norm_eps", 1.5625e-7, above=0, high=1),
        activation=read_activation(config, "hidden_act", "silu"),
        qkv_bias=config.flag("attention_bias", True),
        has_post_norms=architecture.startswith("Glm4"),
    )


ARCHITECTURES: Mapping[str, Architecture[GLMConfig]] = dict.fromkeys(
    ("GlmForCausalLM", "Glm4ForCausalLM"), Architecture(read, GLM)
)
