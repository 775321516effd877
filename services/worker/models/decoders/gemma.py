"""Gemma 1 to 3 (Gemma Team, 2024 and 2025): RMSNorms with weights around 1, scaled embeddings, GeGLU.

Gemma 2 adds norms after attention and MLP, soft caps, and a sliding window in every other layer. Gemma 3 has norms of
queries and keys in place of the soft caps, windows in five of six layers, and another rotation in these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import Attention, GatedMLP, RMSNorm, Stack
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import read_activation, require
from services.worker.models.rope import MAX_THETA, RopeConfig, read_rope
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor

_MAX_CAP = 1e6


@dataclass(frozen=True, slots=True)
class LayerConfig:
    sliding_window: int | None  # tokens that a query sees, itself included
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class GemmaConfig(NetworkConfig):
    num_heads: int
    num_kv_heads: int
    head_dim: int
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
        vocab, hidden = config.vocab_size, config.hidden_size
        self._cap = config.logits_cap
        scale = build.filled(1, hidden**0.5)  # transformers, too, rounds the factor to the type of the embeddings
        tokens = build.linear(Matrix("model.embed_tokens", vocab, hidden))
        blocks = [Block(config, c, build.inside(f"model.layers.{i}")) for i, c in enumerate(config.layers)]
        norm = RMSNorm(build, "model.norm", hidden, config.norm_eps, plus=1.0)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head, scale)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`."""
        logits = super().logits(hidden_states)
        return logits if self._cap is None else self._ops.soft_cap(logits, self._cap)


class Block:
    def __init__(self, config: GemmaConfig, layer: LayerConfig, build: Build) -> None:
        hidden, inner, dim, bias = config.hidden_size, config.intermediate_size, config.head_dim, config.attention_bias
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        attention = build.inside("self_attn")

        def norm(name: str) -> RMSNorm:
            return RMSNorm(build, name, hidden, config.norm_eps, plus=1.0)

        def norm_of_heads(name: str) -> RMSNorm | None:
            return RMSNorm(attention, name, dim, config.norm_eps, plus=1.0) if config.qk_norm else None

        self._norm_1 = norm("input_layernorm")
        self._attention = Attention(
            attention,
            Heads(config.num_heads, config.num_kv_heads, dim, dim),
            tuple(
                Matrix(f"{name}_proj", rows, hidden, bias) for name, rows in (("q", queries), ("k", keys), ("v", keys))
            ),
            Matrix("o_proj", hidden, queries, bias),
            AttentionForm(config.scale, sliding_window=layer.sliding_window, soft_cap=config.attention_cap),
            build.rotation(layer.rope),
            norm_of_heads("q_norm"),
            norm_of_heads("k_norm"),
        )
        self._post_norm_1 = norm("post_attention_layernorm") if config.has_post_norms else None
        self._norm_2 = norm("pre_feedforward_layernorm" if config.has_post_norms else "post_attention_layernorm")
        self._mlp = GatedMLP(
            build.inside("mlp"),
            (Matrix("gate_proj", inner, hidden), Matrix("up_proj", inner, hidden)),
            Matrix("down_proj", hidden, inner),
            config.activation,
        )
        self._post_norm_2 = norm("post_feedforward_layernorm") if config.has_post_norms else None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        attended = self._attention(self._norm_1(x), step)
        x = x + (attended if self._post_norm_1 is None else self._post_norm_1(attended))
        mixed = self._mlp(self._norm_2(x))
        return x + (mixed if self._post_norm_2 is None else self._post_norm_2(mixed))


def read(architecture: str, config: Fields) -> GemmaConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    version = _VERSIONS[architecture]
    require(config, "use_bidirectional_attention", value=False)
    num_heads = config.count("num_attention_heads", MAX_HEADS)
    num_kv_heads = config.count("num_key_value_heads", MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    head_dim = config.count("head_dim", MAX_HEAD_DIM, 256)
    num_layers = config.count("num_hidden_layers", MAX_LAYERS)
    positions = config.count("max_position_embeddings", MAX_POSITIONS, 8192 if version < 3 else 131_072)
    layers = _read_layers(version, config, head_dim, num_layers)
    scalar = config.number("query_pre_attn_scalar", float(head_dim if version == 1 else 256), above=0, high=MAX_SIZE)
    return GemmaConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=config.count("hidden_size", MAX_SIZE),
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        max_model_len=min(layer.rope.max_model_len(positions) for layer in layers),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=config.number("rms_norm_eps", 1e-6, above=0, high=1),
        activation=_read_activation(version, config),
        attention_bias=config.flag("attention_bias"),
        scale=(head_dim if version == 1 else scalar) ** -0.5,
        has_post_norms=version > 1,
        qk_norm=version == 3,
        attention_cap=_read_cap(version, config, "attn_logit_softcapping", 50.0),
        logits_cap=_read_cap(version, config, "final_logit_softcapping", 30.0),
        layers=layers,
    )


def _read_activation(version: int, config: Fields) -> Activation:
    # Gemma 1 was released with `hidden_act: gelu`, and computes the tanh form all the same.
    if version == 1 and config.values.get("hidden_activation") is None:
        return Activation.GELU_TANH
    return read_activation(config, "hidden_activation", "gelu_pytorch_tanh")


def _read_cap(version: int, config: Fields, name: str, default: float) -> float | None:
    """`default`: Gemma 2's. Gemma 3 has none, and Gemma 1 has no caps."""
    is_given = name in config.values
    if version == 1 or (is_given and config.values[name] is None) or (version == 3 and not is_given):
        return None
    return config.number(name, default, above=0, high=_MAX_CAP)


def _read_layers(version: int, config: Fields, head_dim: int, num_layers: int) -> tuple[LayerConfig, ...]:
    if version == 1:
        return (LayerConfig(None, read_rope(config, head_dim)),) * num_layers
    window = config.count("sliding_window", MAX_POSITIONS, 4096)
    interval = 2 if version == 2 else config.count("sliding_window_pattern", MAX_LAYERS, 6)
    types = config.items("layer_types", num_layers) or [
        "sliding_attention" if (index + 1) % interval else "full_attention" for index in range(num_layers)
    ]
    if version == 2:
        full = local = read_rope(config, head_dim)
    else:
        full, local = _read_rotations(config, head_dim)
    layers = {"sliding_attention": LayerConfig(window, local), "full_attention": LayerConfig(None, full)}
    unknown = [kind for kind in types if kind not in layers]
    if unknown:
        raise config.wrong("layer_types", "sliding_attention or full_attention for each layer")
    return tuple(layers[kind] for kind in types)


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
