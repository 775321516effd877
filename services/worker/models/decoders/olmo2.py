"""OLMo 2 and 3 (OLMo Team, 2024 and 2025) and EXAONE 4 (LG AI Research, 2025): norms after attention and MLP, and norms
of queries and keys.

OLMo's norms of queries and keys cover all heads of a token together. EXAONE's cover each head by itself. OLMo 3 and the
large EXAONE have sliding windows in three of four layers. In the other layers, OLMo 3 extends its rotation, and EXAONE
sees no positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build
from services.worker.models.layers import (
    Attention,
    Block,
    BranchNormBlock,
    Norm,
    NormOverHeads,
    RMSNorm,
    Stack,
    gated_mlp,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, LayerConfig, NetworkConfig
from services.worker.models.reading import read_activation, read_heads, read_windows
from services.worker.models.rope import RopeConfig, read_rope_of_whole_heads
from services.worker.ops import Activation, AttentionForm, Heads


@dataclass(frozen=True, slots=True)
class OLMo2Config(NetworkConfig):
    heads: Heads
    norm_eps: float
    norms_each_head: bool  # whether norms of queries and keys cover one head, not all heads of a token
    activation: Activation
    attention_bias: bool
    layers: tuple[LayerConfig, ...]


class OLMo2(Stack):
    """See `Network`."""

    def __init__(self, config: OLMo2Config, build: Build) -> None:
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, layer, build.inside(f"model.layers.{i}")) for i, layer in enumerate(config.layers)]
        norm = RMSNorm(build, "model.norm", config.hidden_size, config.norm_eps)
        super().__init__(build.ops, tokens, blocks, norm, head)


def _block(config: OLMo2Config, layer: LayerConfig, build: Build) -> Block:
    hidden, heads, eps = config.hidden_size, config.heads, config.norm_eps
    inside = build.inside("self_attn")

    def norm_of_heads(name: str, num_heads: int) -> Norm:
        if config.norms_each_head:
            return RMSNorm(inside, name, heads.key_dim, eps)
        return NormOverHeads(RMSNorm(inside, name, num_heads * heads.key_dim, eps))

    attention = Attention(
        inside,
        heads,
        qkv_projections(heads, hidden, has_bias=config.attention_bias),
        output_projection(heads, hidden, has_bias=config.attention_bias),
        AttentionForm(heads.key_dim**-0.5, sliding_window=layer.sliding_window),
        build.rotation(layer.rope) if layer.rope else None,
        norm_of_heads("q_norm", heads.num_heads),
        norm_of_heads("k_norm", heads.num_kv_heads),
    )
    return BranchNormBlock(
        attention,
        RMSNorm(build, "post_attention_layernorm", hidden, eps),
        gated_mlp(config, config.activation, build.inside("mlp")),
        RMSNorm(build, "post_feedforward_layernorm", hidden, eps),
    )


def read(architecture: str, config: Fields) -> OLMo2Config:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    is_exaone = architecture.startswith("Exaone4")
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden)
    layers = _READ_LAYERS[architecture](config, heads.key_dim, config.count("num_hidden_layers", MAX_LAYERS))
    positions = config.count("max_position_embeddings", MAX_POSITIONS, 2048)
    return OLMo2Config(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        max_model_len=max((layer.rope.max_model_len(positions) for layer in layers if layer.rope), default=positions),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        heads=heads,
        norm_eps=config.number("rms_norm_eps", 1e-5, above=0, high=1),
        norms_each_head=is_exaone,
        activation=read_activation(config, "hidden_act", "silu"),
        attention_bias=not is_exaone and config.flag("attention_bias"),
        layers=layers,
    )


def _read_olmo2_layers(config: Fields, head_dim: int, num_layers: int) -> tuple[LayerConfig, ...]:
    return (LayerConfig(None, read_rope_of_whole_heads(config, head_dim)),) * num_layers


def _read_olmo3_layers(config: Fields, head_dim: int, num_layers: int) -> tuple[LayerConfig, ...]:
    """Reads `rope_parameters` by type of layer; or, as transformers 4 wrote it, `rope_scaling`, which applies only to
    layers without a window."""
    theta = 500_000.0
    parts = config.parts("rope_parameters", ("full_attention", "sliding_attention"))
    if parts is None:
        full = read_rope_of_whole_heads(config, head_dim, theta=theta)
        local = RopeConfig(head_dim, full.theta)
    else:
        full, local = (read_rope_of_whole_heads(part, head_dim, theta=theta) for part in parts)
    windows = read_windows(config, num_layers, default=4096, interval=4)
    return tuple(LayerConfig(window, local if window else full) for window in windows)


def _read_exaone_layers(config: Fields, head_dim: int, num_layers: int) -> tuple[LayerConfig, ...]:
    rope = read_rope_of_whole_heads(config, head_dim)
    if "sliding_window" in config.values and config.values["sliding_window"] is None:
        return (LayerConfig(None, rope),) * num_layers
    has_types = config.values.get("layer_types") is not None  # then the pattern does not count; it may be a string
    interval = 4 if has_types else config.count("sliding_window_pattern", MAX_LAYERS, 4)
    windows = read_windows(config, num_layers, default=4096, interval=interval)
    return tuple(LayerConfig(window, rope if window else None) for window in windows)


_READ_LAYERS = {
    "Olmo2ForCausalLM": _read_olmo2_layers,
    "Olmo3ForCausalLM": _read_olmo3_layers,
    "Exaone4ForCausalLM": _read_exaone_layers,
}
ARCHITECTURES: Mapping[str, Architecture[OLMo2Config]] = dict.fromkeys(_READ_LAYERS, Architecture(read, OLMo2))
