"""StarCoder2 (Lozhkov et al., 2024) and Nemotron (Parmar et al., 2024): layer norms, rotary positions, and an MLP
without a gate.

StarCoder2 has a sliding window in all layers. Nemotron stores its norms' weights minus 1, rotates a part of each head,
and has squared ReLUs.
"""

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
    PreNormBlock,
    Stack,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_heads
from services.worker.models.rope import RopeConfig, read_rope, read_rope_of_whole_heads
from services.worker.ops import Activation, AttentionForm, Heads


@dataclass(frozen=True, slots=True)
class StarCoder2Config(NetworkConfig):
    num_layers: int
    heads: Heads
    rope: RopeConfig
    sliding_window: int | None
    norm_eps: float
    norm_plus: float  # added to the norms' weights
    activation: Activation
    attention_bias: bool
    mlp_bias: bool
    mlp_names: tuple[str, str]  # of the matrices


class StarCoder2(Stack):
    """See `Network`."""

    def __init__(self, config: StarCoder2Config, build: Build) -> None:
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, build.inside(f"model.layers.{i}")) for i in range(config.num_layers)]
        super().__init__(build.ops, tokens, blocks, _norm(config, "model.norm", build), head)


def _block(config: StarCoder2Config, build: Build) -> Block:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.heads
    up, down = config.mlp_names
    attention = Attention(
        build.inside("self_attn"),
        heads,
        qkv_projections(heads, hidden, has_bias=config.attention_bias),
        output_projection(heads, hidden, has_bias=config.attention_bias),
        AttentionForm(heads.key_dim**-0.5, sliding_window=config.sliding_window),
        build.rotation(config.rope),
    )
    mlp = MLP(
        build.inside("mlp"),
        Matrix(up, inner, hidden, config.mlp_bias),
        Matrix(down, hidden, inner, config.mlp_bias),
        config.activation,
    )
    return PreNormBlock(
        _norm(config, "input_layernorm", build), attention, _norm(config, "post_attention_layernorm", build), mlp
    )


def _norm(config: StarCoder2Config, name: str, build: Build) -> LayerNorm:
    return LayerNorm(build, name, config.hidden_size, config.norm_eps, config.norm_plus)


def read(architecture: str, config: Fields) -> StarCoder2Config:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    is_nemotron = architecture.startswith("Nemotron")
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden, num_kv_heads=None if is_nemotron else 2)
    rope = _read_nemotron_rope(config, heads) if is_nemotron else read_rope_of_whole_heads(config, heads.key_dim)
    bias = config.flag("use_bias", True)
    return StarCoder2Config(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 4096)),
        tie_word_embeddings=config.flag("tie_word_embeddings", not is_nemotron),
        num_layers=config.count("num_hidden_layers", MAX_LAYERS),
        heads=heads,
        rope=rope,
        sliding_window=None if is_nemotron else config.optional_count("sliding_window", MAX_POSITIONS),
        norm_eps=config.number("norm_eps" if is_nemotron else "norm_epsilon", 1e-5, above=0, high=1),
        norm_plus=1.0 if is_nemotron else 0.0,
        activation=read_activation(config, "hidden_act", "relu2" if is_nemotron else "gelu_pytorch_tanh"),
        attention_bias=config.flag("attention_bias") if is_nemotron else bias,
        mlp_bias=config.flag("mlp_bias") if is_nemotron else bias,
        mlp_names=("up_proj", "down_proj") if is_nemotron else ("c_fc", "c_proj"),
    )


def _read_nemotron_rope(config: Fields, heads: Heads) -> RopeConfig:
    # NVIDIA's own checkpoints have one of the older names of partial_rotary_factor.
    partial = 0.5
    for name in ("rope_percentage", "rope_percent"):
        partial = config.number(name, partial, above=0, high=1)
    return read_rope(config, heads.key_dim, partial=partial)


ARCHITECTURES: Mapping[str, Architecture[StarCoder2Config]] = dict.fromkeys(
    ("NemotronForCausalLM", "Starcoder2ForCausalLM"), Architecture(read, StarCoder2)
)
