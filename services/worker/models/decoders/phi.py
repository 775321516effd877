"""Phi-1 to Phi-2 (Gunasekar et al., 2023): attention and MLP side by side, rotary positions on a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import (
    MLP,
    Attention,
    Block,
    LayerNorm,
    ParallelBlock,
    Stack,
    output_projection,
    qkv_projections,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_heads, require
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.ops import Activation, AttentionForm, Heads


@dataclass(frozen=True, slots=True)
class PhiConfig(NetworkConfig):
    num_layers: int
    heads: Heads
    rope: RopeConfig
    norm_eps: float
    activation: Activation
    qk_norm: bool


class Phi(Stack):
    """See `Network`."""

    def __init__(self, config: PhiConfig, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        tokens = build.linear(Matrix("model.embed_tokens", vocab, hidden))
        blocks = [_block(config, build.inside(f"model.layers.{i}")) for i in range(config.num_layers)]
        norm = LayerNorm(build, "model.final_layernorm", hidden, config.norm_eps)
        head = build.linear(Matrix("lm_head", vocab, hidden, has_bias=True))
        super().__init__(build.ops, tokens, blocks, norm, head)


def _block(config: PhiConfig, build: Build) -> Block:
    hidden, inner, heads, eps = config.hidden_size, config.intermediate_size, config.heads, config.norm_eps
    inside = build.inside("self_attn")
    attention = Attention(
        inside,
        heads,
        qkv_projections(heads, hidden, has_bias=True),
        output_projection(heads, hidden, "dense", has_bias=True),
        AttentionForm(heads.key_dim**-0.5),
        build.rotation(config.rope),
        LayerNorm(inside, "q_layernorm", heads.key_dim, eps) if config.qk_norm else None,
        LayerNorm(inside, "k_layernorm", heads.key_dim, eps) if config.qk_norm else None,
    )
    mlp = MLP(
        build.inside("mlp"),
        Matrix("fc1", inner, hidden, has_bias=True),
        Matrix("fc2", hidden, inner, has_bias=True),
        config.activation,
    )
    return ParallelBlock(LayerNorm(build, "input_layernorm", hidden, eps), attention, mlp)


def read(architecture: str, config: Fields) -> PhiConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    require(config, "tie_word_embeddings", value=False)
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden)
    rope = read_rope(config, heads.key_dim, partial=0.5)
    return PhiConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 4 * hidden),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 2048)),
        tie_word_embeddings=False,
        num_layers=config.count("num_hidden_layers", MAX_LAYERS),
        heads=heads,
        rope=rope,
        norm_eps=config.number("layer_norm_eps", 1e-5, above=0, high=1),
        activation=read_activation(config, "hidden_act", "gelu_new"),
        qk_norm=config.flag("qk_layernorm"),
    )


ARCHITECTURES: Mapping[str, Architecture[PhiConfig]] = {"PhiForCausalLM": Architecture(read, Phi)}
