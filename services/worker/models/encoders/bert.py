"""BERT (Devlin et al., 2018) and RoBERTa (Liu et al., 2019): learned positions, norms after attention and MLP."""

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
    tanh,
)
from services.worker.models.reading import read_activation, read_choice, read_head_count, require
from services.worker.ops import Activation, Heads
from services.worker.pooling import read_num_labels


@dataclass(frozen=True, slots=True)
class BertConfig(EncoderNetworkConfig):
    base: str  # scope of the encoder: bert or roberta
    num_layers: int
    num_heads: int
    position_offset: int  # row of the position table for a sequence's first token
    num_token_types: int
    norm_eps: float
    activation: Activation


class Bert(EncoderStack):
    """See `EncoderNetwork`."""

    def __init__(self, config: BertConfig, build: Build) -> None:
        hidden = config.hidden_size
        inside = build.inside(config.base)
        embed, layers = inside.inside("embeddings"), inside.inside("encoder")
        embeddings = Embeddings(
            embed,
            Matrix("word_embeddings", config.vocab_size, hidden),
            LayerNorm(embed, "LayerNorm", hidden, config.norm_eps),
            Matrix("token_type_embeddings", config.num_token_types, hidden),
            PositionTable(embed, "position_embeddings", config.max_model_len, hidden, config.position_offset),
        )
        blocks = [block(config, layers.inside(f"layer.{i}")) for i in range(config.num_layers)]
        super().__init__(embeddings, blocks, classifier=classifier(config, build) if config.num_labels else None)


def block(config: BertConfig, build: Build) -> EncoderBlock:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.hidden_size // config.num_heads
    attention = build.inside("attention")
    return PostNormBlock(
        FullAttention(
            attention,
            Heads(config.num_heads, config.num_heads, dim, dim),
            tuple(Matrix(f"self.{name}", hidden, hidden, has_bias=True) for name in ("query", "key", "value")),
            Matrix("output.dense", hidden, hidden, has_bias=True),
            full_form(dim**-0.5),
        ),
        LayerNorm(attention, "output.LayerNorm", hidden, config.norm_eps),
        MLP(
            build,
            Matrix("intermediate.dense", inner, hidden, has_bias=True),
            Matrix("output.dense", hidden, inner, has_bias=True),
            config.activation,
        ),
        LayerNorm(build, "output.LayerNorm", hidden, config.norm_eps),
    )


def classifier(config: BertConfig, build: Build) -> Classifier:
    """In BERT, the first layer is the pooler that pretraining made."""
    dense, scores = _CLASSIFIERS[config.base]
    hidden = config.hidden_size
    return Classifier(
        build,
        Matrix(dense, hidden, hidden, has_bias=True),
        tanh,
        Matrix(scores, config.num_labels, hidden, has_bias=True),
    )


def read(architecture: str, config: Fields) -> BertConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    is_roberta = not architecture.startswith("Bert")
    read_choice(config, "position_embedding_type", "absolute")
    require(config, "is_decoder", value=False)
    require(config, "add_cross_attention", value=False)
    num_positions = config.count("max_position_embeddings", MAX_POSITIONS, 512)
    # RoBERTa's positions begin after that of padding.
    offset = config.count("pad_token_id", MAX_VOCAB_SIZE, 1, low=0) + 1 if is_roberta else 0
    if offset >= num_positions:
        raise config.wrong("max_position_embeddings", f"more than {offset:,}, the row of the first token")
    hidden = config.count("hidden_size", MAX_SIZE, 768)
    return BertConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 3072),
        max_model_len=num_positions - offset,
        num_labels=read_num_labels(architecture, config),
        base="roberta" if is_roberta else "bert",
        num_layers=config.count("num_hidden_layers", MAX_LAYERS, 12),
        num_heads=read_head_count(config, "num_attention_heads", hidden),
        position_offset=offset,
        num_token_types=config.count("type_vocab_size", MAX_VOCAB_SIZE, 2),
        norm_eps=config.number("layer_norm_eps", 1e-12, above=0, high=1),
        activation=read_activation(config, "hidden_act", "gelu"),
    )


# Names of the classifier's two layers.
_CLASSIFIERS = {
    "bert": ("bert.pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
}
# Heads for other tasks, and buffers in old checkpoints.
_UNUSED = (
    "cls.", "lm_head.", "pooler.dense.weight", "pooler.dense.bias",
    "embeddings.position_ids", "embeddings.token_type_ids",
)  # fmt: skip
_BERT = EncoderArchitecture(read, Bert, base="bert.", unused=_UNUSED)
_ROBERTA = EncoderArchitecture(read, Bert, base="roberta.", unused=_UNUSED)
_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification")
ARCHITECTURES: Mapping[str, EncoderArchitecture[BertConfig]] = {
    **{f"Bert{head}": _BERT for head in _HEADS},
    **{f"{name}{head}": _ROBERTA for name in ("Roberta", "XLMRoberta", "Camembert") for head in _HEADS},
}
