"""Command R (Cohere, 2024) and Command A (Cohere, 2025): attention and MLP side by side, layer norms without biases,
and rotary positions on neighbouring elements.

Command R+ norms queries and keys. From Command R7B on, three of four layers have a sliding window. The others see no
positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build
from services.worker.models.layers import (
    Attention,
    Block,
    LayerNorm,
    LayerNormOfHeads,
    ParallelBlock,
    Stack,
    gated_mlp,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, LayerConfig, NetworkConfig
from services.worker.models.reading import MAX_FACTOR, read_activation, read_heads, read_windows, require
from services.worker.models.rope import RopeConfig, read_rope_of_whole_heads
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class CohereConfig(NetworkConfig):
    heads: Heads
    norm_eps: float
    activation: Activation
    attention_bias: bool
    qk_norm: bool
    logit_scale: float
    layers: tuple[LayerConfig, ...]


class Cohere(Stack):
    """See `Network`."""

    def __init__(self, config: CohereConfig, build: Build) -> None:
        self._scale = config.logit_scale
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, layer, build.inside(f"model.layers.{i}")) for i, layer in enumerate(config.layers)]
        norm = LayerNorm(build, "model.norm", config.hidden_size, config.norm_eps, has_bias=False)
        super().__init__(build.ops, tokens, blocks, norm, head)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`."""
        return super().logits(hidden_states) * self._scale


def _block(config: CohereConfig, layer: LayerConfig, build: Build) -> Block:
    hidden, heads, eps = config.hidden_size, config.heads, config.norm_eps
    inside = build.inside("self_attn")

    def norm_of_heads(name: str, num_heads: int) -> LayerNormOfHeads | None:
        if not config.qk_norm:
            return None
        weight = inside.tensor(f"{name}.weight", (num_heads, heads.key_dim))
        return LayerNormOfHeads(inside, weight, heads.key_dim, eps)

    attention = Attention(
        inside,
        heads,
        qkv_projections(heads, hidden, has_bias=config.attention_bias),
        output_projection(heads, hidden, has_bias=config.attention_bias),
        AttentionForm(heads.key_dim**-0.5, sliding_window=layer.sliding_window),
        build.rotation(layer.rope, interleaved=True) if layer.rope else None,
        norm_of_heads("q_norm", heads.num_heads),
        norm_of_heads("k_norm", heads.num_kv_heads),
    )
    mlp = gated_mlp(config, config.activation, build.inside("mlp"))
    return ParallelBlock(LayerNorm(build, "input_layernorm", hidden, eps, has_bias=False), attention, mlp)


def read(architecture: str, config: Fields) -> CohereConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    has_windows = architecture.startswith("Cohere2")
    if has_windows:
        require(config, "use_qk_norm", value=False)
    # Published models have these keys, but transformers does not read them.
    require(config, "use_parallel_block", value=True)
    require(config, "use_gated_activation", value=True)
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden)
    rope = read_rope_of_whole_heads(config, heads.key_dim, theta=10_000.0 if has_windows else 500_000.0)
    positions = config.count("max_position_embeddings", MAX_POSITIONS, 8192)
    # The first Command R takes more positions than its max_position_embeddings says.
    positions = max(positions, config.count("model_max_length", MAX_POSITIONS, positions))
    return CohereConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        max_model_len=rope.max_model_len(positions),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        heads=heads,
        norm_eps=config.number("layer_norm_eps", 1e-5, above=0, high=1),
        activation=read_activation(config, "hidden_act", "silu"),
        attention_bias=config.flag("attention_bias"),
        qk_norm=config.flag("use_qk_norm"),
        logit_scale=config.number("logit_scale", 0.0625, above=0, high=MAX_FACTOR),
        layers=_read_layers(config, rope, has_windows=has_windows),
    )


def _read_layers(config: Fields, rope: RopeConfig, *, has_windows: bool) -> tuple[LayerConfig, ...]:
    num_layers = config.count("num_hidden_layers", MAX_LAYERS)
    if not has_windows:
        return (LayerConfig(None, rope),) * num_layers
    interval = config.count("sliding_window_pattern", MAX_LAYERS, 4)
    windows = read_windows(config, num_layers, default=4096, interval=interval)
    return tuple(LayerConfig(window, rope if window else None) for window in windows)


ARCHITECTURES: Mapping[str, Architecture[CohereConfig]] = dict.fromkeys(
    ("CohereForCausalLM", "Cohere2ForCausalLM"), Architecture(read, Cohere)
)
