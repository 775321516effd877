"""Layers with the weight names of Llama's checkpoints, which most families use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.models.build import Build, Matrix
from services.worker.models.layers.mlp import GatedMLP
from services.worker.models.network import NetworkConfig
from services.worker.ops import Activation, Heads

if TYPE_CHECKING:
    from services.worker.ops import Linear


def tokens_and_head(config: NetworkConfig, build: Build) -> tuple[Linear, Linear]:
    """Returns the embeddings and the projection to logits, which are one matrix if they are tied."""
    tokens = build.linear(Matrix("model.embed_tokens", config.vocab_size, config.hidden_size))
    if config.tie_word_embeddings:
        return tokens, tokens
    return tokens, build.linear(Matrix("lm_head", config.vocab_size, config.hidden_size))


def qkv_projections(heads: Heads, hidden_size: int, *, has_bias: bool = False) -> tuple[Matrix, ...]:
    """See `Attention`."""
    queries, keys = heads.num_heads * heads.key_dim, heads.num_kv_heads * heads.key_dim
    values = heads.num_kv_heads * heads.value_dim
    return tuple(
        Matrix(f"{name}_proj", outputs, hidden_size, has_bias)
        for name, outputs in (("q", queries), ("k", keys), ("v", values))
    )


def output_projection(heads: Heads, hidden_size: int, name: str = "o_proj", *, has_bias: bool = False) -> Matrix:
    """See `Attention`."""
    return Matrix(name, hidden_size, heads.num_heads * heads.value_dim, has_bias)


def gated_mlp(
    config: NetworkConfig, activation: Activation, build: Build, *, size: int | None = None, has_bias: bool = False
) -> GatedMLP:
    """`size`: the intermediate size, if it is not that of `config`."""
    hidden, inner = config.hidden_size, config.intermediate_size if size is None else size
    gate_up = Matrix("gate_proj", inner, hidden, has_bias), Matrix("up_proj", inner, hidden, has_bias)
    return GatedMLP(build, gate_up, Matrix("down_proj", hidden, inner, has_bias), activation)
