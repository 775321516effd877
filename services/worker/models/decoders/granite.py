"""Granite 3 (Granite Team, 2024): Llama's layers, with factors for embeddings, scores, residual branches and logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build
from services.worker.models.layers import (
    Attention,
    RMSNorm,
    Stack,
    gated_mlp,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import MAX_FACTOR, read_activation, read_heads
from services.worker.models.rope import RopeConfig, read_rope_of_whole_heads
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GraniteConfig(NetworkConfig):
    num_layers: int
    heads: Heads
    rope: RopeConfig
    norm_eps: float
    activation: Activation
    attention_bias: bool
    mlp_bias: bool
    embedding_scale: float
    score_scale: float
    residual_scale: float  # of what attention and MLP add
    logits_divisor: float


class Granite(Stack):
    """See `Network`."""

    def __init__(self, config: GraniteConfig, build: Build) -> None:
        self._scale, self._divisor = config.embedding_scale, config.logits_divisor
        tokens, head = tokens_and_head(config, build)
        blocks = [Block(config, build.inside(f"model.layers.{i}")) for i in range(config.num_layers)]
        norm = RMSNorm(build, "model.norm", config.hidden_size, config.norm_eps)
        super().__init__(build.ops, tokens, blocks, norm, head)

    def embed(self, step: Step) -> Tensor:
        """See `Stack`."""
        return super().embed(step) * self._scale

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`."""
        return super().logits(hidden_states) / self._divisor


class Block:
    def __init__(self, config: GraniteConfig, build: Build) -> None:
        hidden, heads = config.hidden_size, config.heads
        self._scale = config.residual_scale
        self._norm_1 = RMSNorm(build, "input_layernorm", hidden, config.norm_eps)
        self._attention = Attention(
            build.inside("self_attn"),
            heads,
            qkv_projections(heads, hidden, has_bias=config.attention_bias),
            output_projection(heads, hidden, has_bias=config.attention_bias),
            AttentionForm(config.score_scale),
            build.rotation(config.rope),
        )
        self._norm_2 = RMSNorm(build, "post_attention_layernorm", hidden, config.norm_eps)
        self._mlp = gated_mlp(config, config.activation, build.inside("mlp"), has_bias=config.mlp_bias)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._attention(self._norm_1(x), step) * self._scale
        return x + self._mlp(self._norm_2(x)) * self._scale


def read(architecture: str, config: Fields) -> GraniteConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden)
    rope = read_rope_of_whole_heads(config, heads.key_dim)
    embedding_scale, score_scale, residual_scale, logits_divisor = (
        config.number(name, 1.0, above=0, high=MAX_FACTOR)
        for name in ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    )
    return GraniteConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 2048)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        num_layers=config.count("num_hidden_layers", MAX_LAYERS),
        heads=heads,
        rope=rope,
        norm_eps=config.number("rms_norm_eps", 1e-6, above=0, high=1),
        activation=read_activation(config, "hidden_act", "silu"),
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
        embedding_scale=embedding_scale,
        score_scale=score_scale,
        residual_scale=residual_scale,
        logits_divisor=logits_divisor,
    )


ARCHITECTURES: Mapping[str, Architecture[GraniteConfig]] = {"GraniteForCausalLM": Architecture(read, Granite)}
