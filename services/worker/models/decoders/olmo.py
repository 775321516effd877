"""OLMo (Groeneveld et al., 2024): layer norms without weights, and limits to queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build
from services.worker.models.layers import (
    Attention,
    Block,
    LayerNorm,
    PreNormBlock,
    Stack,
    gated_mlp,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import MAX_FACTOR, read_activation, read_heads
from services.worker.models.rope import RopeConfig, read_rope_of_whole_heads
from services.worker.ops import Activation, AttentionForm, Heads

_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class OLMoConfig(NetworkConfig):
    num_layers: int
    heads: Heads
    rope: RopeConfig
    activation: Activation
    attention_bias: bool
    clip: float | None  # limit of the absolute values of queries, keys and values


class OLMo(Stack):
    """See `Network`."""

    def __init__(self, config: OLMoConfig, build: Build) -> None:
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, build.inside(f"model.layers.{i}")) for i in range(config.num_layers)]
        super().__init__(build.ops, tokens, blocks, _norm(config, build), head)


def _block(config: OLMoConfig, build: Build) -> Block:
    hidden, heads = config.hidden_size, config.heads
    attention = Attention(
        build.inside("self_attn"),
        heads,
        qkv_projections(heads, hidden, has_bias=config.attention_bias),
        output_projection(heads, hidden, has_bias=config.attention_bias),
        AttentionForm(heads.key_dim**-0.5),
        build.rotation(config.rope),
        clip=config.clip,
    )
    mlp = gated_mlp(config, config.activation, build.inside("mlp"))
    return PreNormBlock(_norm(config, build), attention, _norm(config, build), mlp)


def _norm(config: OLMoConfig, build: Build) -> LayerNorm:
    return LayerNorm(build, "", config.hidden_size, _EPS, has_weight=False, has_bias=False)


def read(architecture: str, config: Fields) -> OLMoConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden)
    rope = read_rope_of_whole_heads(config, heads.key_dim)
    has_clip = config.values.get("clip_qkv") is not None
    return OLMoConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 2048)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        num_layers=config.count("num_hidden_layers", MAX_LAYERS),
        heads=heads,
        rope=rope,
        activation=read_activation(config, "hidden_act", "silu"),
        attention_bias=config.flag("attention_bias"),
        clip=config.number("clip_qkv", 1.0, above=0, high=MAX_FACTOR) if has_clip else None,
    )


ARCHITECTURES: Mapping[str, Architecture[OLMoConfig]] = {"OlmoForCausalLM": Architecture(read, OLMo)}
