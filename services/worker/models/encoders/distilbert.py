"""DistilBERT (Sanh et al., 2019): BERT without token types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.encoder_network import EncoderArchitecture, EncoderNetworkConfig
from services.worker.models.layers import (
    MLP,
    Classifier,
    Embeddings,
    EncoderBlock,
    EncoderStack,
    FullAttention,
    LayerNorm,
    PositionTable,
    PostNormBlock,
    full_form,
    relu,
)
from services.worker.models.reading import read_activation, read_head_count
from services.worker.ops import Activation, Heads
from services.worker.pooling import read_num_labels

_EPS = 1e-12


@dataclass(frozen=True, slots=True)
class DistilBertConfig(EncoderNetworkConfig):
    num_layers: int
    num_heads: int
    activation: Activation


class DistilBert(EncoderStack):
    """See `EncoderNetwork`."""

    def __init__(self, config: DistilBertConfig, build: Build) -> None:
        inside = build.inside("distilbert")
        embed, hidden = inside.inside("embeddings"), config.hidden_size
        embeddings = Embeddings(
            embed,
            Matrix("word_embeddings", config.vocab_size, hidden),
            LayerNorm(embed, "LayerNorm", hidden, _EPS),
            positions=PositionTable(embed, "position_embeddings", config.max_model_len, hidden),
        )
        blocks = [block(config, inside.inside(f"transformer.layer.{i}")) for i in range(config.num_layers)]
        super().__init__(embeddings, blocks, classifier=classifier(config, build) if config.num_labels else None)


def block(config: DistilBertConfig, build: Build) -> EncoderBlock:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.hidden_size // config.num_heads
    return PostNormBlock(
        FullAttention(
            build.inside("attention"),
            Heads(config.num_heads, config.num_heads, dim, dim),
            tuple(Matrix(f"{name}_lin", hidden, hidden, has_bias=True) for name in "qkv"),
            Matrix("out_lin", hidden, hidden, has_bias=True),
            full_form(dim**-0.5),
        ),
        LayerNorm(build, "sa_layer_norm", hidden, _EPS),
        MLP(
            build.inside("ffn"),
            Matrix("lin1", inner, hidden, has_bias=True),
            Matrix("lin2", hidden, inner, has_bias=True),
            config.activation,
        ),
        LayerNorm(build, "output_layer_norm", hidden, _EPS),
    )


def classifier(config: DistilBertConfig, build: Build) -> Classifier:
    hidden = config.hidden_size
    return Classifier(
        build,
        Matrix("pre_classifier", hidden, hidden, has_bias=True),
        relu,
        Matrix("classifier", config.num_labels, hidden, has_bias=True),
    )


def read(architecture: str, config: Fields) -> DistilBertConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    hidden = config.count("dim", MAX_SIZE, 768)
    return DistilBertConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 30_522),
        hidden_size=hidden,
        intermediate_size=config.count("hidden_dim", MAX_SIZE, 3072),
        max_model_len=config.count("max_position_embeddings", MAX_POSITIONS, 512),
        num_labels=read_num_labels(architecture, config),
        num_layers=config.count("n_layers", MAX_LAYERS, 6),
        num_heads=read_head_count(config, "n_heads", hidden, 12),
        activation=read_activation(config, "activation", "gelu"),
    )


_UNUSED = ("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "embeddings.position_ids")
ARCHITECTURES: Mapping[str, EncoderArchitecture[DistilBertConfig]] = dict.fromkeys(
    ("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
    EncoderArchitecture(read, DistilBert, "distilbert.", _UNUSED),
)
