"""Gemma 1 to 3 (Gemma Team, 2024 and 2025): RMSNorms with weights around 1, scaled embeddings, GeGLU.

Gemma 2 adds norms after attention and MLP, soft caps, and a sliding window in every other layer. Gemma 3 has norms of
queries and keys in place of the soft caps, windows in five of six layers, and another rotation in these.
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
    PreNormBlock,
    RMSNorm,
    SandwichBlock,
    Stack,
    gated_mlp,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, LayerConfig, NetworkConfig
from services.worker.models.reading import MAX_FACTOR, read_activation, read_heads, read_windows, require
from services.worker.models.rope import MAX_THETA, RopeConfig, read_rope
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GemmaConfig(NetworkConfig):
    heads: Heads
    norm_eps: float
    activation: Activation
    attention_bias: bool
    scale: float  # of scores
    has_post_norms: bool  # norms after attention and MLP
    qk_norm: bool
    attention_cap: float | None
    logits_cap: float | None
    layers: tuple[LayerConfig, ...]


class Gemma(Stack):
    """See `Network`."""

    def __init__(self, config: GemmaConfig, build: Build) -> None:
        self._cap = config.logits_cap
        # transformers, too, rounds the factor to the type of the embeddings.
        scale = build.filled(1, config.hidden_size**0.5)
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, layer, build.inside(f"model.layers.{i}")) for i, layer in enumerate(config.layers)]
        norm = RMSNorm(build, "model.norm", config.hidden_size, config.norm_eps, plus=1.0)
        super().__init__(build.ops, tokens, blocks, norm, head, scale)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`."""
        logits = super().logits(hidden_states)
        return logits if self._cap is None else self._ops.soft_cap(logits, self._cap)


def _block(config: GemmaConfig, layer: LayerConfig, build: Build) -> Block:
    hidden, heads, bias = config.hidden_size, config.heads, config.attention_bias
    inside = build.inside("self_attn")

    def norm(name: str) -> RMSNorm:
        return RMSNorm(build, name, hidden, config.norm_eps, plus=1.0)

    def norm_of_heads(name: str) -> RMSNorm | None:
        return RMSNorm(inside, name, heads.key_dim, config.norm_eps, plus=1.0) if config.qk_norm else None

    attention = Attention(
        inside,
        heads,
        qkv_projections(heads, hidden, has_bias=bias),
        output_projection(heads, hidden, has_bias=bias),
        AttentionForm(config.scale, sliding_window=layer.sliding_window, soft_cap=config.attention_cap),
        build.rotation(layer.rope) if layer.rope else None,
        norm_of_heads("q_norm"),
        norm_of_heads("k_norm"),
    )
    mlp = gated_mlp(config, config.activation, build.inside("mlp"))
    norm_1, norm_2 = norm("input_layernorm"), norm("post_attention_layernorm")
    if not config.has_post_norms:
        return PreNormBlock(norm_1, attention, norm_2, mlp)
    before_mlp, after_mlp = norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm")
    return SandwichBlock(norm_1, attention, norm_2, before_mlp, mlp, after_mlp)


def read(architecture: str, config: Fields) -> GemmaConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    version = _VERSIONS[architecture]
    require(config, "use_bidirectional_attention", value=False)
    hidden = config.count("hidden_size", MAX_SIZE)
    heads = read_heads(config, hidden, num_kv_heads=None if version == 1 else 4, head_dim=256)
    num_layers = config.count("num_hidden_layers", MAX_LAYERS)
    positions = config.count("max_position_embeddings", MAX_POSITIONS, 8192 if version < 3 else 131_072)
    layers = _read_layers(version, config, heads.key_dim, num_layers)
    scalar = heads.key_dim if version == 1 else config.number("query_pre_attn_scalar", 256.0, above=0, high=MAX_SIZE)
    return GemmaConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        max_model_len=min(layer.rope.max_model_len(positions) for layer in layers if layer.rope),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        heads=heads,
        norm_eps=config.number("rms_norm_eps", 1e-6, above=0, high=1),
        activation=_read_activation(version, config),
        attention_bias=config.flag("attention_bias"),
        scale=scalar**-0.5,
        has_post_norms=version > 1,
        qk_norm=version == 3,
        attention_cap=_read_cap(version, config, "attn_logit_softcapping", 50.0),
        logits_cap=_read_cap(version, config, "final_logit_softcapping", 30.0),
        layers=layers,
    )


def _read_activation(version: int, config: Fields) -> Activation:
    if version > 1 or config.values.get("hidden_activation") is not None:
        return read_activation(config, "hidden_activation", "gelu_pytorch_tanh")
    # Gemma 1 was released with `hidden_act: gelu`, and computes the tanh form all the same.
    if config.values.get("hidden_act") == "gelu":
        return Activation.GELU_TANH
    return read_activation(config, "hidden_act", "gelu_pytorch_tanh")


def _read_cap(version: int, config: Fields, name: str, default: float) -> float | None:
    """`default`: Gemma 2's. Gemma 3 has none, and Gemma 1 has no caps."""
    is_given = name in config.values
    if version == 1 or (is_given and config.values[name] is None) or (version == 3 and not is_given):
        return None
    return config.number(name, default, above=0, high=MAX_FACTOR)


def _read_layers(version: int, config: Fields, head_dim: int, num_layers: int) -> tuple[LayerConfig, ...]:
    if version == 1:
        return (LayerConfig(None, read_rope(config, head_dim)),) * num_layers
    if version == 2:
        interval, full = 2, read_rope(config, head_dim)
        local = full
    else:
        interval = config.count("sliding_window_pattern", MAX_LAYERS, 6)
        full, local = _read_rotations(config, head_dim)
    windows = read_windows(config, num_layers, default=4096, interval=interval)
    return tuple(LayerConfig(window, local if window else full) for window in windows)


def _read_rotations(config: Fields, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """Returns Gemma 3's rotations of layers without and with a window: `rope_parameters` by type of layer, or keys of
    their own, as transformers 4 wrote them."""
    parts = config.parts("rope_parameters", ("full_attention", "sliding_attention"))
    if parts is not None:
        return read_rope(parts[0], head_dim, theta=1e6), read_rope(parts[1], head_dim)
    full = read_rope(config, head_dim, theta=1e6)
    return full, RopeConfig(head_dim, config.number("rope_local_base_freq", 10_000.0, above=1, high=MAX_THETA))


_VERSIONS = {"GemmaForCausalLM": 1, "Gemma2ForCausalLM": 2, "Gemma3ForCausalLM": 3}
ARCHITECTURES: Mapping[str, Architecture[GemmaConfig]] = dict.fromkeys(_VERSIONS, Architecture(read, Gemma))
