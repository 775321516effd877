"""StableLM (Bellagente et al., 2024): layer norms, rotary positions on a part of each head, a gated MLP.

The largest model runs attention and MLP side by side, and norms queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build
from services.worker.models.layers import (
    Attention,
    Block,
    LayerNorm,
    LayerNormOfHeads,
    ParallelBlock,
    PreNormBlock,
    Stack,
    gated_mlp,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, read_heads
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.ops import Activation, AttentionForm, Heads


@dataclass(frozen=True, slots=True)
class StableLMConfig(NetworkConfig):
    num_layers: int
    heads: Heads
    rope: RopeConfig
    norm_eps: float
    activation: Activation
    qkv_bias: bool
    qk_norm: bool
    is_parallel: bool  # whether attention and MLP take the same input


class StableLM(Stack):
    """See `Network`."""

    def __init__(self, config: StableLMConfig, build: Build) -> None:
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, build.inside(f"model.layers.{i}")) for i in range(config.num_layers)]
        norm = LayerNorm(build, "model.norm", config.hidden_size, config.norm_eps)
        super().__init__(build.ops, tokens, blocks, norm, head)


def _block(config: StableLMConfig, build: Build) -> Block:
    hidden, heads, eps = config.hidden_size, config.heads, config.norm_eps
    inside = build.inside("self_attn")

    def norm_of_heads(name: str, num_heads: int) -> LayerNormOfHeads | None:
        if not config.qk_norm:
            return None
        weight = inside.stacked([f"{name}.norms.{head}.weight" for head in range(num_heads)], heads.key_dim)
        return LayerNormOfHeads(inside, weight, heads.key_dim, eps)

    attention = Attention(
        inside,
        heads,
        qkv_projections(heads, hidden, has_bias=config.qkv_bias),
        output_projection(heads, hidden),
        AttentionForm(heads.key_dim**-0.5),
        build.rotation(config.rope),
        norm_of_heads("q_layernorm", heads.num_heads),
        norm_of_heads("k_layernorm", heads.num_kv_heads),
    )
    mlp = gated_mlp(config, config.activation, build.inside("mlp"))
    norm = LayerNorm(build, "input_layernorm", hidden, eps)
    if config.is_parallel:
        return ParallelBlock(norm, attention, mlp)
    return PreNormBlock(norm, attention, LayerNorm(build, "post_attention_layernorm", hidden, eps), mlp)


def read(architecture: str, config: Fields) -> StableLMConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden)
    # The first checkpoints have `rope_pct` and `norm_eps`.
    rope = read_rope(config, heads.key_dim, partial=config.number("rope_pct", 0.25, above=0, high=1))
    eps = config.number("norm_eps", 1e-5, above=0, high=1)
    return StableLMConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 4096)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        num_layers=config.count("num_hidden_layers", MAX_LAYERS),
        heads=heads,
        rope=rope,
        norm_eps=config.number("layer_norm_eps", eps, above=0, high=1),
        activation=read_activation(config, "hidden_act", "silu"),
        qkv_bias=config.flag("use_qkv_bias"),
        qk_norm=config.flag("qk_layernorm"),
        is_parallel=config.flag("use_parallel_residual"),
    )


ARCHITECTURES: Mapping[str, Architecture[StableLMConfig]] = {"StableLmForCausalLM": Architecture(read, StableLM)}
