"""ModernBERT (Warner et al., 2024): pre-norm layers with rotary positions and GeGLU. Two of three layers are local."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.encoder_network import EncoderArchitecture, EncoderNetworkConfig
from services.worker.models.layers import (
    Classifier,
    Embeddings,
    EncoderBlock,
    EncoderStack,
    FullAttention,
    GatedMLP,
    LayerNorm,
    NoNorm,
    PreNormBlock,
    full_form,
)
from services.worker.models.reading import read_activation, read_choice, read_head_count, read_layer_types
from services.worker.models.rope import MAX_THETA, RopeConfig, read_rope
from services.worker.ops import Activation, Heads
from services.worker.pooling import PoolingKind, read_num_labels


@dataclass(frozen=True, slots=True)
class LayerConfig:
    window: int | None  # tokens that a query sees on each side of its own
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class ModernBertConfig(EncoderNetworkConfig):
    num_heads: int
    norm_eps: float
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    activation: Activation
    classifier_bias: bool  # of the classifier's first layer
    classifier_activation: Activation
    layers: tuple[LayerConfig, ...]


class ModernBert(EncoderStack):
    """See `EncoderNetwork`."""

    def __init__(self, config: ModernBertConfig, build: Build) -> None:
        hidden, inside = config.hidden_size, build.inside("model")
        embed = inside.inside("embeddings")
        embeddings = Embeddings(
            embed, Matrix("tok_embeddings", config.vocab_size, hidden), _norm(config, embed, "norm")
        )
        blocks = [
            block(config, layer, inside.inside(f"layers.{i}"), is_first=i == 0) for i, layer in enumerate(config.layers)
        ]
        norm = _norm(config, inside, "final_norm")
        super().__init__(embeddings, blocks, norm, classifier(config, build) if config.num_labels else None)


def block(config: ModernBertConfig, layer: LayerConfig, build: Build, *, is_first: bool) -> EncoderBlock:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
    dim = hidden // heads
    return PreNormBlock(
        NoNorm() if is_first else _norm(config, build, "attn_norm"),  # the first block's inputs are normed already
        FullAttention(
            build.inside("attn"),
            Heads(heads, heads, dim, dim),
            (Matrix("Wqkv", 3 * hidden, hidden, config.attention_bias),),
            Matrix("Wo", hidden, hidden, config.attention_bias),
            full_form(dim**-0.5, layer.window),
            build.rotation(layer.rope),
        ),
        _norm(config, build, "mlp_norm"),
        GatedMLP(
            build.inside("mlp"),
            (Matrix("Wi", 2 * inner, hidden, config.mlp_bias),),
            Matrix("Wo", hidden, inner, config.mlp_bias),
            config.activation,
        ),
    )


def _norm(config: ModernBertConfig, build: Build, name: str) -> LayerNorm:
    return LayerNorm(build, name, config.hidden_size, config.norm_eps, has_bias=config.norm_bias)


def classifier(config: ModernBertConfig, build: Build) -> Classifier:
    hidden, ops, activation = config.hidden_size, build.ops, config.classifier_activation
    return Classifier(
        build,
        Matrix("head.dense", hidden, hidden, config.classifier_bias),
        lambda x: ops.activation(x, activation),
        Matrix("classifier", config.num_labels, hidden, has_bias=True),
        _norm(config, build, "head.norm"),
    )


def read(architecture: str, config: Fields) -> ModernBertConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("hidden_size", MAX_SIZE, 768)
    num_heads = read_head_count(config, "num_attention_heads", hidden)
    layers = _read_layers(config, hidden // num_heads)
    pooling = read_choice(config, "classifier_pooling", *_POOLING)
    positions = config.count("max_position_embeddings", MAX_POSITIONS, 8192)
    return ModernBertConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 50_368),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 1152),
        max_model_len=min(layer.rope.max_model_len(positions) for layer in layers),
        num_labels=read_num_labels(architecture, config),
        pooling=_POOLING[pooling],
        num_heads=num_heads,
        norm_eps=config.number("norm_eps", 1e-5, above=0, high=1),
        norm_bias=config.flag("norm_bias"),
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
        activation=read_activation(config, "hidden_activation", "gelu"),
        classifier_bias=config.flag("classifier_bias"),
        classifier_activation=read_activation(config, "classifier_activation", "gelu"),
        layers=layers,
    )


def _read_layers(config: Fields, head_dim: int) -> tuple[LayerConfig, ...]:
    num_layers = config.count("num_hidden_layers", MAX_LAYERS, 22)
    interval = config.count("global_attn_every_n_layers", MAX_LAYERS, 3)
    types = read_layer_types(config, "layer_types", num_layers, "sliding_attention", "full_attention")
    if types is None:
        types = ["sliding_attention" if index % interval else "full_attention" for index in range(num_layers)]
    # `local_attention` counts the tokens of both sides; that of the query is seen besides.
    window = config.count("local_attention", MAX_POSITIONS, 128) // 2
    full, local = _read_rotations(config, head_dim)
    layers = {"sliding_attention": LayerConfig(window, local), "full_attention": LayerConfig(None, full)}
    return tuple(layers[kind] for kind in types)


def _read_rotations(config: Fields, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """Returns the rotations of global and of local layers: `rope_parameters` by type of layer, or keys of their own, as
    transformers 4 wrote them."""
    thetas = (
        config.number("global_rope_theta", 160_000.0, above=1, high=MAX_THETA),
        config.number("local_rope_theta", 10_000.0, above=1, high=MAX_THETA),
    )
    parts = config.parts("rope_parameters", ("full_attention", "sliding_attention")) or (config, config)
    full, local = (read_rope(part, head_dim, theta=theta) for part, theta in zip(parts, thetas, strict=True))
    return full, local


_POOLING = {"cls": PoolingKind.CLS, "mean": PoolingKind.MEAN}
_ARCHITECTURE = EncoderArchitecture(read, ModernBert, base="model.", unused=("head.", "decoder."))
ARCHITECTURES: Mapping[str, EncoderArchitecture[ModernBertConfig]] = dict.fromkeys(
    ("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"), _ARCHITECTURE
)
