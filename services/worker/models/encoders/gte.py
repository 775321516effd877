"""GTE (Zhang et al., mGTE, 2024): BERT with rotary positions and GeGLU, norms after attention and MLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    PostNormBlock,
    full_form,
    tanh,
)
from services.worker.models.reading import read_activation, read_equal_head_dim, read_head_count
from services.worker.models.rope import RopeConfig, read_rope_of_whole_heads
from services.worker.ops import Activation, Heads
from services.worker.pooling import read_num_labels


@dataclass(frozen=True, slots=True)
class GteConfig(EncoderNetworkConfig):
    num_layers: int
    num_heads: int
    num_token_types: int  # 0: tokens have no types
    rope: RopeConfig
    norm_eps: float
    activation: Activation


class Gte(EncoderStack):
    """See `EncoderNetwork`. Names of weights are those of the published checkpoints."""

    def __init__(self, config: GteConfig, build: Build) -> None:
        hidden, inside = config.hidden_size, build.inside("gte")
        embed, types = inside.inside("embeddings"), config.num_token_types
        embeddings = Embeddings(
            embed,
            Matrix("word_embeddings", config.vocab_size, hidden),
            LayerNorm(embed, "LayerNorm", hidden, config.norm_eps),
            Matrix("token_type_embeddings", types, hidden) if types else None,
        )
        blocks = [block(config, inside.inside(f"encoder.layer.{i}")) for i in range(config.num_layers)]
        super().__init__(embeddings, blocks, classifier=classifier(config, build) if config.num_labels else None)


def block(config: GteConfig, build: Build) -> EncoderBlock:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
    dim = hidden // heads

    # The gate is stored after up.
    def gate_up() -> Sequence[int]:
        return (*range(inner, 2 * inner), *range(inner))

    return PostNormBlock(
        FullAttention(
            build.inside("attention"),
            Heads(heads, heads, dim, dim),
            (Matrix("qkv_proj", 3 * hidden, hidden, has_bias=True),),
            Matrix("o_proj", hidden, hidden, has_bias=True),
            full_form(dim**-0.5),
            build.rotation(config.rope),
        ),
        LayerNorm(build, "attn_ln", hidden, config.norm_eps),
        GatedMLP(
            build.inside("mlp"),
            (Matrix("up_gate_proj", 2 * inner, hidden, rows=gate_up),),
            Matrix("down_proj", hidden, inner, has_bias=True),
            config.activation,
        ),
        LayerNorm(build, "mlp_ln", hidden, config.norm_eps),
    )


def classifier(config: GteConfig, build: Build) -> Classifier:
    hidden = config.hidden_size
    dense = Matrix("gte.pooler.dense", hidden, hidden, has_bias=True)
    return Classifier(build, dense, tanh, Matrix("classifier", config.num_labels, hidden, has_bias=True))


def read(architecture: str, config: Fields) -> GteConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("hidden_size", MAX_SIZE, 768)
    num_heads = read_head_count(config, "num_attention_heads", hidden)
    rope = read_rope_of_whole_heads(config, read_equal_head_dim(config, hidden, num_heads), theta=160_000.0)
    return GteConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 250_048),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 3072),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, 8192)),
        num_labels=read_num_labels(architecture, config),
        num_layers=config.count("num_hidden_layers", MAX_LAYERS, 12),
        num_heads=num_heads,
        num_token_types=config.count("type_vocab_size", MAX_VOCAB_SIZE, 1, low=0),
        rope=rope,
        norm_eps=config.number("layer_norm_eps", 1e-12, above=0, high=1),
        activation=read_activation(config, "hidden_act", "gelu"),
    )


_UNUSED = ("lm_head.", "pooler.dense.weight", "pooler.dense.bias")
ARCHITECTURES: Mapping[str, EncoderArchitecture[GteConfig]] = dict.fromkeys(
    ("GteModel", "GteForMaskedLM", "GteForSequenceClassification"), EncoderArchitecture(read, Gte, "gte.", _UNUSED)
)
